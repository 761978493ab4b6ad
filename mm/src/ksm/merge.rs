//! One page becomes a share of another: the two changes of a merge, and who must not notice.
//!
//! ```text
//! protect   around(WriteProtect)  { entry read-only; one reference of our own }
//! compare                          what is compared cannot change any more
//! replace   around(ChangePte)     { the same frame still? entry := stable frame, read-only; told }
//!           our reference and the entry's go: the old frame is free
//! ```
//! Guests read on all the while: where the reason is heeded, no translation is ever missing (seed 004).
//!
//! **Why comparing once is enough.** With a reference of our own the entry is not the sole owner of its frame, so
//! whoever writes gets a copy in another frame, and this one, which cannot be freed either, keeps its contents.
//! An entry that still names it has not been written since the comparison. One that does not is given up.

use super::contents;
use crate::held::Held;
use crate::pte::{Pte, hva_of, hvas_of, pages_of};
use crate::space::{AddressSpace, State};
use crate::vma::ADDRESSES;
use slat::table::Entry;
use slat::{Gfn, Idle, Level, Pfn, Span, Why};

/// Entries that are looked at before the address space is let go of for a moment.
const STEPS: usize = 4096;

/// A page on the scanner's way.
pub(super) enum Sight {
    /// One that could be merged: its frame has this one owner.
    Alone { pfn: Pfn, checksum: u64 },
    /// One that is merged.
    Merged,
    /// None yet: go on from here.
    Nothing,
}

/// Negative controls: what a merge leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(hidden)]
pub enum Sabotage {
    /// Nothing.
    #[default]
    None,
    /// The comparison: equal checksums of another day are believed.
    Compare,
    /// The write protection: whoever writes meanwhile is not kept from it.
    Protect,
}

impl AddressSpace {
    /// The first page from `from` on that is merged or could be, and where it is. `None`: there is none.
    ///
    /// Huge pages are seen as the small ones that they are made of. Passed over is what has more references than
    /// its entry: a fork's share, a file's page, a page that a device holds. Nobody here can tell them apart.
    pub(super) fn next_mergeable(&self, from: Gfn) -> Option<(Gfn, Sight)> {
        let state = self.state.read();
        let mut steps = STEPS;
        let rest = Span::new(hva_of(from), ADDRESSES.end.max(hva_of(from)));
        for vma in state.vmas.over(rest).filter(|vma| vma.is_mergeable()) {
            let pages = pages_of(vma.span);
            let mut at = pages.start.max(from);
            while at < pages.end {
                if steps == 0 {
                    return Some((at, Sight::Nothing));
                }
                steps -= 1;
                let _lock = self.lock_region(at);
                let (level, entry) = self.map.find(at);
                let page = Pte::of(entry.load(), level).host_page(at, level);
                match page.map(|page| page.pfn) {
                    Some(pfn) if self.arena.is_merged(pfn) => return Some((at, Sight::Merged)),
                    Some(pfn) if self.arena.references(pfn) == 1 => {
                        let checksum = contents::checksum(&self.arena, pfn);
                        return Some((at, Sight::Alone { pfn, checksum }));
                    }
                    None if level > Level::K4 => at = at.base(level) + level.pages(),
                    _ => at = at + 1,
                }
            }
        }
        None
    }

    /// Makes `page` one that nobody writes to in place, and returns a reference to its frame, if it may be merged.
    /// With `stable` it counts as merged from here on.
    pub(super) fn protect(
        &self,
        idle: &mut Idle,
        page: Gfn,
        stable: bool,
        sabotage: Sabotage,
    ) -> Option<Held<'_>> {
        let state = self.state.read();
        self.protect_in(&state, idle, page, stable, sabotage)
    }

    fn protect_in(
        &self,
        state: &State,
        idle: &mut Idle,
        page: Gfn,
        stable: bool,
        sabotage: Sabotage,
    ) -> Option<Held<'_>> {
        state.vmas.find(hva_of(page)).filter(|vma| vma.is_mergeable())?;
        {
            let _lock = self.lock_region(page);
            let (level, entry) = self.map.find(page);
            self.split(level, entry).ok()?; // out of memory for a table: it stays huge
        }
        // A page that nobody may write to anyway loses nothing.
        let held = self.take_alone(page, stable, |_, writable| !writable || sabotage == Sabotage::Protect);
        if held.is_some() {
            return held;
        }
        let mut held = None;
        self.around(state, idle, Span::sized(page, 1), Why::WriteProtect, &mut |_, _| {
            held = self.take_alone(page, stable, |entry, _| {
                entry.store(Pte::of(entry.load(), Level::K4).read_only().word(Level::K4));
                true
            });
        });
        held
    }

    /// Under the page lock: one more reference to the frame of `page`, if its entry is the only owner so far and
    /// `prepare`, which is told whether it may be written, agrees.
    fn take_alone(
        &self,
        page: Gfn,
        stable: bool,
        prepare: impl FnOnce(&Entry, bool) -> bool,
    ) -> Option<Held<'_>> {
        let _lock = self.lock_region(page);
        let (level, entry) = self.map.find(page);
        let Pte::Mapped { pfn, writable } = Pte::of(entry.load(), level) else { return None };
        let alone = level == Level::K4 && self.is_sole(pfn, level) && !self.arena.is_merged(pfn);
        if !alone || !prepare(entry, writable) {
            return None;
        }
        let frame = Span::sized(pfn, 1);
        self.arena.share(frame);
        if stable {
            self.arena.set_merged(pfn, true);
        }
        Some(Held::new(&self.arena, pfn, level))
    }

    /// Makes `page` a share of `stable`, to which the caller holds a reference, if both hold the same. False: it
    /// may not be merged, or is being written, or holds something else.
    pub(super) fn merge(&self, idle: &mut Idle, page: Gfn, stable: Pfn, sabotage: Sabotage) -> bool {
        let state = self.state.read();
        let Some(old) = self.protect_in(&state, idle, page, false, sabotage) else { return false };
        if sabotage != Sabotage::Compare && !contents::equal(&self.arena, old.pfn(), stable) {
            return false;
        }
        let mut merged = false;
        let mut released = self.arena.released();
        let pages = Span::sized(page, 1);
        self.around(&state, idle, pages, Why::ChangePte, &mut |idle, told| {
            let _lock = self.lock_region(page);
            let (level, entry) = self.map.find(page);
            let found = Pte::of(entry.load(), level);
            if level == Level::K4 && matches!(found, Pte::Mapped { pfn, .. } if pfn == old.pfn()) {
                self.arena.share(Span::sized(stable, 1));
                let shared = Pte::Mapped { pfn: stable, writable: false };
                entry.store(shared.word(level));
                told.changed(idle, hvas_of(pages), shared.host_page(page, level));
                released.add(old.pfn(), level);
                merged = true;
            }
        });
        merged
    }
}
