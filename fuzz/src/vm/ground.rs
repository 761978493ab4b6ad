//! The host: a plain map from pages to frames.
//!
//! Frames follow addresses, in pages as large as they come, but for those pages that were changed: these are small, and
//! wherever they are now.

use slat::table::TableMemory;
use slat::{Access, Host, HostError, HostPage, Hva, Idle, Level, PAGE_SIZE, Pfn, Span};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many pages the host has.
pub const PAGES: u64 = 3 << 18;
/// Where they begin.
const BASE: Hva = Hva(1 << 40);
/// The frame of the first, while nothing is changed: with room for the largest page.
const FRAMES: u64 = 1 << 20;

/// The address of page number `page`.
pub fn hva(page: u64) -> Hva {
    BASE + page * PAGE_SIZE
}

/// The number of the page at `hva`.
pub fn number(hva: Hva) -> u64 {
    (hva.0 - BASE.0) / PAGE_SIZE
}

/// A page that was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed {
    pub pfn: Pfn,
    pub writable: bool,
}

/// See the module's header.
#[derive(Debug)]
pub struct Ground {
    largest: Level,
    /// Whether every answer may sleep: the engine is told nothing inside its sections.
    sleeps: bool,
    changed: Mutex<BTreeMap<u64, Option<Changed>>>,
    fresh: AtomicU64,
}

// SAFETY: the defaults keep the contract.
unsafe impl TableMemory for Ground {}

impl Ground {
    pub fn new(largest: Level, sleeps: bool) -> Self {
        Self { largest, sleeps, changed: Mutex::default(), fresh: AtomicU64::new(1 << 30) }
    }

    /// What page number `page` is.
    pub fn page(&self, page: u64) -> Option<HostPage> {
        let changed = self.changed.lock().unwrap();
        if let Some(now) = changed.get(&page) {
            return now.map(|Changed { pfn, writable }| HostPage { pfn, writable, ..HostPage::PLAIN });
        }
        let mut level = self.largest;
        while level > Level::K4 {
            let first = page & !(level.pages() - 1);
            if changed.range(first..first + level.pages()).next().is_none() {
                break;
            }
            level = level.down();
        }
        Some(HostPage { pfn: Pfn(FRAMES + page), level, ..HostPage::PLAIN })
    }

    /// The answer that needs no sleep.
    pub fn at_once(&self, page: u64, access: Access) -> Option<HostPage> {
        self.page(page).filter(|page| !self.sleeps && (page.writable || access != Access::Write))
    }

    /// The answer in the end.
    pub fn in_the_end(&self, page: u64, access: Access) -> Option<HostPage> {
        self.page(page).filter(|page| page.writable || access != Access::Write)
    }

    /// Changes one page; `None`: it is there no more.
    pub fn change(&self, page: u64, to: Option<Changed>) {
        self.changed.lock().unwrap().insert(page, to);
    }

    /// A frame that was never used.
    pub fn frame(&self) -> Pfn {
        Pfn(self.fresh.fetch_add(1, Relaxed))
    }

    /// Everything in `pages` is as it was in the beginning.
    pub fn restore(&self, pages: Span<slat::Gfn>) {
        self.changed.lock().unwrap().retain(|&page, _| !pages.contains(slat::Gfn(page)));
    }
}

impl Host for Ground {
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        self.at_once(number(hva), access)
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.in_the_end(number(hva), access).ok_or(HostError::Fault)
    }
}
