//! Pins: pages that a device uses without faults.
//!
//! An assigned device cannot fault: its pages must stay present and in place. So operations that would move or
//! share a pinned page, or make it [protnone](crate::numa), leave it alone: it has a reference that no entry
//! accounts for. Requests of the owner are still carried out: after `munmap` the entry is gone, and the frame
//! stays in use for the device, as with the kernel's `get_user_pages`.
//!
//! | operation | on a pinned page |
//! |---|---|
//! | migration, the NUMA scanner, merging | leaves it alone: it has more references than entries |
//! | a fork | copies it for the child at once; otherwise this side's next write would leave the device with the old frame |
//! | a write after the page was made read-only | writes in place: pins are not shares |
//!
//! A page pinned **for reading** may be shared by a fork or KSM. It stays shared, and the next write breaks the
//! share: the writer gets a copy, and the pin keeps the old contents. [`PinnedPage`] is a guard for one access
//! to one page.

use crate::arena::Arena;
use crate::error::MmError;
use crate::pages::{hva_of, page_of, pages_of};
use crate::space::AddressSpace;
use crate::vma::aligned;
use slat::{Access, Gfn, HostPage, Hva, Idle, Level, Pfn, Span};
use std::sync::Arc;

/// Pinned pages; dropping it unpins them.
///
/// ```
/// use slat::{Hva, Idle};
/// use slat_mm::*;
///
/// let mut idle = Idle::take().unwrap();
/// let arena = Arena::builder().limit(16 << 20).build()?;
/// let space = AddressSpace::builder(&arena).build()?;
/// let span = space.mmap(Place::Fixed(Hva(0x10_0000)), 8192, Prot::ReadWrite, Backing::Anonymous)?;
/// let pinned = space.pin(&mut idle, span)?;
/// assert_eq!(pinned.frames().len(), 2);
/// assert_eq!(space.migrate(&mut idle, span)?, 0, "pinned pages stay in place");
/// # Ok::<(), MmError>(())
/// ```
#[derive(Debug)]
#[must_use = "pages are pinned only while this lives"]
pub struct Pinned {
    arena: Arc<Arena>,
    frames: Vec<Pfn>,
}

impl Pinned {
    /// Returns the frames, one for each page of the range, in order.
    pub fn frames(&self) -> &[Pfn] {
        &self.frames
    }
}

impl Drop for Pinned {
    /// Unpins the frames: the device no longer uses them.
    fn drop(&mut self) {
        for &pfn in &self.frames {
            // In this order: in between, other threads see one reference too many, which is harmless.
            self.arena.notes().unpin(pfn);
            self.arena.put(Span::sized(pfn, 1));
        }
    }
}

/// One page, pinned for an access by the VMM or a device model.
///
/// ```
/// use slat::{Access, Hva, Idle};
/// use slat_mm::*;
///
/// let mut idle = Idle::take().unwrap();
/// let arena = Arena::builder().limit(16 << 20).build()?;
/// let space = AddressSpace::builder(&arena).build()?;
/// let rom = space.mmap(Place::Fixed(Hva(0x10_0000)), 4096, Prot::Read, Backing::Anonymous)?;
/// let page = space.pin_page(&mut idle, rom.start, Access::Read)?;
/// // SAFETY: the page is pinned while the guard lives; no guest writes to a read-only mapping.
/// assert_eq!(unsafe { page.as_ptr().read() }, 0);
/// assert!(space.pin_page(&mut idle, rom.start, Access::Write).is_err());
/// # Ok::<(), MmError>(())
/// ```
#[derive(Debug)]
#[must_use = "the page is pinned only while this lives"]
pub struct PinnedPage {
    arena: Arc<Arena>,
    pfn: Pfn,
    offset: u64,
}

impl PinnedPage {
    /// Returns its frame.
    pub fn frame(&self) -> Pfn {
        self.pfn
    }

    /// Returns the address in this process of the byte that was asked for. Valid to the end of its page while
    /// the guard lives. Guests and devices may write to it meanwhile.
    pub fn as_ptr(&self) -> *mut u8 {
        self.arena.frame(self.pfn).wrapping_add(self.offset as usize)
    }
}

impl Drop for PinnedPage {
    fn drop(&mut self) {
        self.arena.notes().unpin(self.pfn);
        self.arena.put(Span::sized(self.pfn, 1));
    }
}

impl AddressSpace {
    /// Brings in every page of the range for writing, and pins it. On an error none is pinned. May sleep.
    pub fn pin(&self, idle: &mut Idle, hvas: Span<Hva>) -> Result<Pinned, MmError> {
        self.pin_for(idle, hvas, Access::Write)
    }

    /// Like [`pin`](Self::pin), for this access. `Access::Read` also pins pages of read-only mappings, and does
    /// not break shares.
    pub fn pin_for(&self, idle: &mut Idle, hvas: Span<Hva>, access: Access) -> Result<Pinned, MmError> {
        let pages = pages_of(aligned(hvas)?);
        let mut pinned = Pinned { arena: self.arena.clone(), frames: Vec::new() };
        for page in (pages.start.0..pages.end.0).map(Gfn) {
            pinned.frames.push(self.pin_frame(idle, hva_of(page), access)?);
        }
        Ok(pinned)
    }

    /// Brings in the page at `hva` for this access, and pins it while the guard lives. May sleep.
    pub fn pin_page(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<PinnedPage, MmError> {
        let pfn = self.pin_frame(idle, hva, access)?;
        Ok(PinnedPage { arena: self.arena.clone(), pfn, offset: hva.offset() })
    }

    fn pin_frame(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<Pfn, MmError> {
        loop {
            if let Some(pfn) = self.pin_if_there(hva, access) {
                return Ok(pfn);
            }
            self.fault(idle, hva, access)?;
        }
    }

    /// Pins the page if it is present for this access.
    fn pin_if_there(&self, hva: Hva, access: Access) -> Option<Pfn> {
        let _lock = self.lock_region(page_of(hva));
        let serves = |found: &HostPage| found.writable || access != Access::Write;
        let found = self.lookup(hva, access).filter(serves)?;
        self.arena.share(Span::sized(found.pfn, 1));
        self.arena.notes().pin(found.pfn);
        Some(found.pfn)
    }

    /// Whether any frame of this page is pinned.
    pub(crate) fn is_pinned(&self, pfn: Pfn, level: Level) -> bool {
        (0..level.pages()).any(|frame| self.arena.notes().pins(pfn + frame) > 0)
    }

    /// Whether this entry is the only one that maps its frames; devices may use them too.
    pub(crate) fn is_only_mapping(&self, pfn: Pfn, level: Level) -> bool {
        (0..level.pages()).map(|frame| pfn + frame).all(|pfn| {
            // In this order: a pin removed in between makes the frame look shared, which is harmless.
            let references = u64::from(self.arena.references(pfn));
            references == 1 + self.arena.notes().pins(pfn)
        })
    }
}
