//! What a processor remembers: translations, and links to tables by what they serve. Of any size, and never emptied unasked.

use slat::{Access, Format, Gfn, Level, Perms, Pfn, Span, Translations};
use std::cell::RefCell;

/// One translation, as the walker found it.
#[derive(Clone, Copy, Debug)]
pub struct Translation {
    /// The frames of the leaf.
    pub gfns: Span<Gfn>,
    /// Of the first frame.
    pub pfn: Pfn,
    /// What it lets through.
    pub perms: Perms,
    /// Dirty is set in the table: a store need not walk for it.
    pub dirty: bool,
}

impl Translation {
    /// Whether an access can be made by it without a walk.
    pub fn serves(&self, gfn: Gfn, access: Access) -> bool {
        let allowed = self.perms.allows(access) && (self.dirty || access != Access::Write);
        allowed && self.gfns.contains(gfn)
    }

    /// The frame of a page in it.
    pub fn frame(&self, gfn: Gfn) -> Pfn {
        self.pfn + (gfn.0 - self.gfns.start.0)
    }
}

/// See the module's header.
#[derive(Default, Debug)]
pub struct Tlb {
    /// Leaves.
    pub translations: Vec<Translation>,
    /// The paging-structure cache: which frames, level and frame of the table.
    pub links: Vec<(Span<Gfn>, Level, Pfn)>,
    /// The root that the vCPU uses while it is in the guest, and answers no flush at this moment.
    pub root: Option<Pfn>,
}

impl Tlb {
    /// What serves an access.
    pub fn find(&self, gfn: Gfn, access: Access) -> Option<Translation> {
        self.translations.iter().find(|found| found.serves(gfn, access)).copied()
    }

    /// Where a walk for `gfn` begins: at the lowest table known, or at the root.
    pub fn begin<F: Format>(&self, gfn: Gfn, root: Pfn) -> (Level, Pfn) {
        let links = self.links.iter().filter(|(served, ..)| served.contains(gfn));
        let lowest = links.min_by_key(|(_, level, _)| level.number());
        lowest.map_or_else(|| (F::ROOT_LEVEL, F::top(root, gfn)), |&(_, level, table)| (level, table))
    }

    /// A walk has found it.
    pub fn remember(&mut self, found: Translation) {
        self.translations.retain(|old| !old.gfns.overlaps(&found.gfns));
        self.translations.push(found);
    }
}

/// A vCPU's TLB as the engine has it.
pub struct Handle<'w>(pub &'w RefCell<Tlb>);

impl Translations for Handle<'_> {
    fn flush_all(&mut self) {
        let mut tlb = self.0.borrow_mut();
        tlb.translations.clear();
        tlb.links.clear();
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        let mut tlb = self.0.borrow_mut();
        tlb.translations.retain(|found| !found.gfns.overlaps(&gfns));
        tlb.links.retain(|(served, ..)| !served.overlaps(&gfns));
    }
}
