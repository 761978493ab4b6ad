//! The host: the page behind each host address. The judge changes it as a host would.
//!
//! ```text
//! SMALL  regions of 2 MiB: 512 pages, each some frame of the pattern or none; or one block of 2 MiB, as a huge page
//! GIB    one page of 1 GiB that the pattern lies in
//! FIXED  what the guest needs itself: frame n at FIXED + n pages
//! ```

use crate::machine_trait::Ram;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use slat::{Access, Host, HostError, HostPage, Hva, Idle, Level, PAGE_SHIFT, Pfn, Span};

/// Regions of 2 MiB at [`SMALL`].
pub(crate) const REGIONS: u64 = 24;
pub(crate) const SMALL: Hva = Hva(1 << 32);
pub(crate) const GIB: Hva = Hva(1 << 40);
pub(crate) const FIXED: Hva = Hva(1 << 52);

const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
/// The frame number is above the flags.
const FRAME: u32 = 2;

/// The host.
#[derive(Debug)]
pub(crate) struct Backing {
    ram: Ram,
    pages: Box<[AtomicU64]>,
    huge: Box<[AtomicBool]>,
    gib_writable: AtomicBool,
    /// `lookup` answers nothing, so each fault must call `resolve`.
    shy: bool,
}

impl Backing {
    /// Makes the host: the small regions are empty; the GiB is writable.
    pub(crate) fn new(ram: Ram, shy: bool) -> Self {
        Self {
            ram,
            pages: (0..REGIONS * Level::M2.pages()).map(|_| AtomicU64::new(0)).collect(),
            huge: (0..REGIONS).map(|_| AtomicBool::new(false)).collect(),
            gib_writable: AtomicBool::new(true),
            shy,
        }
    }

    /// Returns the current page at a host address.
    pub(crate) fn page(&self, hva: Hva) -> Option<HostPage> {
        if hva >= FIXED {
            let pfn = Pfn((hva.0 - FIXED.0) >> PAGE_SHIFT);
            return Some(HostPage { pfn, ..HostPage::PLAIN });
        }
        if Span::sized(GIB, Level::G1.bytes()).contains(hva) {
            let pfn = self.ram.gib + ((hva.0 - GIB.0) >> PAGE_SHIFT);
            return Some(HostPage {
                pfn,
                level: Level::G1,
                writable: self.gib_writable.load(Relaxed),
                ..HostPage::PLAIN
            });
        }
        let page = hva.0.checked_sub(SMALL.0)? >> PAGE_SHIFT;
        let word = self.pages.get(page as usize)?.load(Relaxed);
        let huge = self.huge[(page / Level::M2.pages()) as usize].load(Relaxed);
        (word & PRESENT != 0).then_some(HostPage {
            pfn: Pfn(word >> FRAME),
            level: if huge { Level::M2 } else { Level::K4 },
            writable: word & WRITABLE != 0,
            ..HostPage::PLAIN
        })
    }

    /// Sets or removes the small page number `page` of the small regions.
    pub(crate) fn set(&self, page: u64, to: Option<(Pfn, bool)>) {
        let word = to.map_or(0, |(pfn, writable)| pfn.0 << FRAME | u64::from(writable) * WRITABLE | PRESENT);
        self.huge[(page / Level::M2.pages()) as usize].store(false, Relaxed);
        self.pages[page as usize].store(word, Relaxed);
    }

    /// Makes a region one huge page: 2 MiB of frames from `pfn` on.
    pub(crate) fn set_huge(&self, region: u64, pfn: Pfn, writable: bool) {
        for page in 0..Level::M2.pages() {
            self.set(region * Level::M2.pages() + page, Some((pfn + page, writable)));
        }
        self.huge[region as usize].store(true, Relaxed);
    }

    pub(crate) fn is_huge(&self, region: u64) -> bool {
        self.huge[region as usize].load(Relaxed)
    }

    /// Sets the write permission of a whole region.
    pub(crate) fn set_region_writable(&self, region: u64, writable: bool) {
        for page in region * Level::M2.pages()..(region + 1) * Level::M2.pages() {
            let word = self.pages[page as usize].load(Relaxed) & !WRITABLE;
            let given = if writable && word & PRESENT != 0 { WRITABLE } else { 0 };
            self.pages[page as usize].store(word | given, Relaxed);
        }
    }

    pub(crate) fn set_gib_writable(&self, writable: bool) {
        self.gib_writable.store(writable, Relaxed);
    }

    /// Returns the number of this frame's page in the GiB.
    pub(crate) fn gib_page(&self, pfn: Pfn) -> u64 {
        pfn.0 - self.ram.gib.0
    }

    fn answer(&self, hva: Hva, access: Access) -> Option<HostPage> {
        self.page(hva).filter(|page| page.writable || access != Access::Write)
    }
}

impl Host for Backing {
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        if self.shy { None } else { self.answer(hva, access) }
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.answer(hva, access).ok_or(HostError::Fault)
    }
}
