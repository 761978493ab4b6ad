//! The oracle checks each TLB of a vCPU in the guest, and each walk that its processor could make.

use super::{EMULATED, LEFT, LOST, STALE, STRAYED, TORN, UNTOLD, World};
use crate::plan::layout::{self, USED, WINDOWS};
use slat::inject::GIVEN_BACK;
use slat::table::Word;
use slat::{Access, Format, Gfn, Level, Pfn};

impl<F: Format> World<'_, F> {
    /// Checks everything in the header of [`super`], without an access that the machine would notice.
    pub fn check(&self) {
        if self.is_wrong() {
            return;
        }
        let mut roots: Vec<Pfn> = self.tlbs.iter().filter_map(|tlb| tlb.borrow().root).collect();
        roots.sort_unstable();
        roots.dedup();
        let look_at = |window| (0..USED).for_each(|nth| self.look_at(layout::frame(window, nth), &roots));
        let (in_use, others) = self.windows.by_use();
        in_use.into_iter().for_each(look_at);
        for &(gfn, pfn, access) in &*self.kept.borrow() {
            if self.page(gfn, pfn, access).is_none() {
                self.wrong(STALE, || format!("frame {:#x} is held as {:#x}, for {access:?}", gfn.0, pfn.0));
            }
        }
        // A window without a memslot now may have had one before.
        others.into_iter().for_each(look_at);
    }

    fn look_at(&self, gfn: Gfn, roots: &[Pfn]) {
        for &root in roots {
            self.look_by((F::ROOT_LEVEL, F::top(root, gfn)), gfn, "a walk from the root");
        }
        for tlb in &self.tlbs {
            let tlb = tlb.borrow();
            if tlb.root.is_none() {
                continue;
            }
            for found in tlb.translations.iter().filter(|found| found.gfns.contains(gfn)) {
                let access = if found.serves(gfn, Access::Write) { Access::Write } else { Access::Read };
                self.demand(gfn, found.frame(gfn), access, "a translation in a TLB");
            }
            for &(_, level, table) in tlb.links.iter().filter(|(served, ..)| served.contains(gfn)) {
                self.look_by((level, table), gfn, "a walk from a table in a TLB");
            }
        }
    }

    /// Walks as the hardware would, but sets no bits.
    fn look_by(&self, (mut level, mut table): (Level, Pfn), gfn: Gfn, by: &str) {
        loop {
            let word = Word(self.host.memory.peek(table, F::index(gfn, level)));
            if word == GIVEN_BACK {
                self.wrong(STRAYED, || format!("{by} for frame {:#x}, at {level:?}", gfn.0));
            }
            if !F::is_present(word) {
                return;
            }
            if !F::is_table(word, level) {
                let leaf = F::read_leaf(word);
                let access = if leaf.perms.allows(Access::Write) { Access::Write } else { Access::Read };
                return self.demand(gfn, leaf.pfn + (gfn.0 - gfn.base(level).0), access, by);
            }
            (level, table) = (level.down(), F::pfn(word));
        }
    }

    /// The page that `pfn` serves for `gfn`, if the host maps it for this access now.
    fn page(&self, gfn: Gfn, pfn: Pfn, access: Access) -> Option<u64> {
        let window = layout::window_of(gfn)?;
        let pages = self.windows.pages(window, gfn.0 - WINDOWS[window]);
        pages.into_iter().find(|&page| self.host.allows(page, pfn, access))
    }

    fn demand(&self, gfn: Gfn, pfn: Pfn, access: Access, by: &str) {
        if access == Access::Write && self.tracked.borrow().iter().any(|gfns| gfns.contains(gfn)) {
            self.wrong(UNTOLD, || format!("{by}: frame {:#x}", gfn.0));
        }
        if self.page(gfn, pfn, access).is_none() {
            self.wrong(STALE, || format!("{by}: frame {:#x} is {:#x}, for {access:?}", gfn.0, pfn.0));
        }
    }

    /// Checks a guest's use of `pfn` now.
    pub fn used(&self, (gfn, access): (Gfn, Access), pfn: Pfn) {
        self.story(|| format!("uses {:#x} for {access:?} at {:#x}", pfn.0, gfn.0));
        match self.page(gfn, pfn, access) {
            None => {
                self.wrong(STALE, || {
                    format!("an access: frame {:#x} is {:#x}, for {access:?}", gfn.0, pfn.0)
                });
            }
            Some(page) if access == Access::Write => self.host.stored(page, pfn),
            Some(page) if !self.host.is_whole(page, pfn) => {
                self.wrong(TORN, || format!("frame {:#x} is {:#x}", gfn.0, pfn.0));
            }
            Some(_) => {}
        }
    }

    /// Checks an access, begun at step `begun`, that was reported as MMIO.
    pub fn emulated(&self, gfn: Gfn, begun: u64) {
        if !self.windows.was_empty(gfn, begun) {
            self.wrong(EMULATED, || format!("frame {:#x}", gfn.0));
        }
    }

    /// All threads have ended and every log was harvested: the copies must equal the stores.
    pub fn compare_copies(&self) {
        for slot in self.windows.logging() {
            for page in layout::used_pages(slot) {
                let copied = self.copies.borrow().get(&page).copied().unwrap_or(0);
                let stored = self.host.stores(page);
                if copied != stored {
                    self.wrong(LOST, || format!("page {page:#x}: {copied} of {stored} stores"));
                }
            }
        }
    }

    /// Checks a leaf entry that is left at the end.
    pub fn left_over(&self, gfn: Gfn, pfn: Pfn, access: Access) {
        if self.page(gfn, pfn, access).is_none() {
            self.wrong(LEFT, || format!("frame {:#x} is {:#x}, for {access:?}", gfn.0, pfn.0));
        }
    }
}
