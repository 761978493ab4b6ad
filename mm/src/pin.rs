//! Pins: pages that a device uses, which nobody asks before it does.
//!
//! An assigned device has no faults: what it was given must stay present and stay where it is. So a pinned page
//! is left alone by whatever would move it, share it or make it [protnone](crate::numa): it has a reference that no
//! entry accounts for. What its owner asks for is done all the same: after `munmap` the entry is gone, and the frame
//! waits for the device, as with the kernel's `get_user_pages`.
//!
//! | meets a pinned page | and |
//! |---|---|
//! | migration, the NUMA scanner, merging | leaves it alone: it has more references than entries |
//! | a fork | copies it for the child at once, else the next write here would leave the device behind |
//! | a write to it where it was made read-only | writes in place: pins are no share |

use crate::arena::Arena;
use crate::error::MmError;
use crate::pte::{hva_of, pages_of};
use crate::space::AddressSpace;
use crate::vma::aligned;
use slat::{Access, Gfn, Hva, Idle, Level, Pfn, Span};
use std::sync::Arc;

/// Pinned pages, until it is dropped.
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
/// assert_eq!(space.migrate(&mut idle, span)?, 0, "they stay where the device looks for them");
/// # Ok::<(), MmError>(())
/// ```
#[derive(Debug)]
#[must_use = "pages are pinned only while this lives"]
pub struct Pinned {
    arena: Arc<Arena>,
    frames: Vec<Pfn>,
}

impl Pinned {
    /// The frames, one for each page of the range, in order.
    pub fn frames(&self) -> &[Pfn] {
        &self.frames
    }
}

impl Drop for Pinned {
    /// The device is done with them.
    fn drop(&mut self) {
        for &pfn in &self.frames {
            // In this order: whoever looks in between finds a share too many, which does no harm.
            self.arena.notes().unpin(pfn);
            self.arena.put(Span::sized(pfn, 1));
        }
    }
}

impl AddressSpace {
    /// Brings every page of the range in, for writing, and pins it. On an error none is pinned. May sleep.
    pub fn pin(&self, idle: &mut Idle, hvas: Span<Hva>) -> Result<Pinned, MmError> {
        let pages = pages_of(aligned(hvas)?);
        let mut pinned = Pinned { arena: self.arena.clone(), frames: Vec::new() };
        for page in (pages.start.0..pages.end.0).map(Gfn) {
            while !self.pin_page(page, &mut pinned) {
                self.fault(idle, hva_of(page), Access::Write)?;
            }
        }
        Ok(pinned)
    }

    /// Pins the page if it is there and writable.
    fn pin_page(&self, page: Gfn, pinned: &mut Pinned) -> bool {
        let _lock = self.lock_region(page);
        let Some(found) = self.lookup(hva_of(page), Access::Write).filter(|found| found.writable) else {
            return false;
        };
        self.arena.share(Span::sized(found.pfn, 1));
        self.arena.notes().pin(found.pfn);
        pinned.frames.push(found.pfn);
        true
    }

    /// Whether any frame of this page is pinned.
    pub(crate) fn is_pinned(&self, pfn: Pfn, level: Level) -> bool {
        (0..level.pages()).any(|frame| self.arena.notes().pins(pfn + frame) > 0)
    }

    /// Whether this entry is the only one that maps its frames; devices may use them too.
    pub(crate) fn is_only_mapping(&self, pfn: Pfn, level: Level) -> bool {
        (0..level.pages()).map(|frame| pfn + frame).all(|pfn| {
            // In this order: a pin that is taken off in between makes it look shared, which does no harm.
            let references = u64::from(self.arena.references(pfn));
            references == 1 + self.arena.notes().pins(pfn)
        })
    }
}
