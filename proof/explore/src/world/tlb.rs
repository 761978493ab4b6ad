//! The TLB and the paging-structure cache of a processor, without a size limit. Only flushes remove entries.

use slat::{Access, Format, Gfn, Level, Perms, Pfn, Span, Translations};
use std::cell::RefCell;

/// One translation, as the walker found it.
#[derive(Clone, Copy, Debug)]
pub struct Translation {
    /// The guest frames of the leaf entry.
    pub gfns: Span<Gfn>,
    /// The host frame of the first one.
    pub pfn: Pfn,
    /// Its permissions.
    pub perms: Perms,
    /// True if the Dirty bit is set in the table: a store needs no walk.
    pub dirty: bool,
}

impl Translation {
    /// Returns whether an access can use it without a walk.
    pub fn serves(&self, gfn: Gfn, access: Access) -> bool {
        let allowed = self.perms.allows(access) && (self.dirty || access != Access::Write);
        allowed && self.gfns.contains(gfn)
    }

    /// The host frame of a guest frame in it.
    pub fn frame(&self, gfn: Gfn) -> Pfn {
        self.pfn + (gfn.0 - self.gfns.start.0)
    }
}

/// The TLB of one vCPU.
#[derive(Default, Debug)]
pub struct Tlb {
    /// Leaf entries.
    pub translations: Vec<Translation>,
    /// The paging-structure cache: guest frames, level and frame of the table.
    pub links: Vec<(Span<Gfn>, Level, Pfn)>,
    /// The root in use while the vCPU is in the guest and is not answering a flush.
    pub root: Option<Pfn>,
    /// Whether it ignores flushes.
    is_faulty: bool,
}

impl Tlb {
    /// An empty TLB, or one that ignores flushes.
    pub fn new(is_faulty: bool) -> Self {
        Self { is_faulty, ..Self::default() }
    }

    /// The translation that serves an access.
    pub fn find(&self, gfn: Gfn, access: Access) -> Option<Translation> {
        self.translations.iter().find(|found| found.serves(gfn, access)).copied()
    }

    /// The start of a walk for `gfn`: the lowest cached table, or the root.
    pub fn begin<F: Format>(&self, gfn: Gfn, root: Pfn) -> (Level, Pfn) {
        let links = self.links.iter().filter(|(served, ..)| served.contains(gfn));
        let lowest = links.min_by_key(|(_, level, _)| level.number());
        lowest.map_or_else(|| (F::ROOT_LEVEL, F::top(root, gfn)), |&(_, level, table)| (level, table))
    }

    /// Adds a translation.
    pub fn remember(&mut self, found: Translation) {
        self.translations.retain(|old| !old.gfns.overlaps(&found.gfns));
        self.translations.push(found);
    }
}

/// A vCPU's TLB as the engine calls it.
pub struct Handle<'w>(pub &'w RefCell<Tlb>);

impl Translations for Handle<'_> {
    fn flush_all(&mut self) {
        let mut tlb = self.0.borrow_mut();
        if tlb.is_faulty {
            return;
        }
        tlb.translations.clear();
        tlb.links.clear();
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        let mut tlb = self.0.borrow_mut();
        if tlb.is_faulty {
            return;
        }
        tlb.translations.retain(|found| !found.gfns.overlaps(&gfns));
        tlb.links.retain(|(served, ..)| !served.overlaps(&gfns));
    }
}
