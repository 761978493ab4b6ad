//! Pages become shares of others: the two changes of a merge, and who must not notice.
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
//!
//! **Neighbours go together.** Each change costs a notification and a flush, whether it is of one page or of a run, so
//! the scanner gathers pages that lie side by side ([`RUN`] at most: who writes to one waits for all).

use super::contents;
use crate::held::Held;
use crate::pte::{Pte, hva_of, hvas_of, pages_of};
use crate::space::{AddressSpace, State};
use crate::vma::{ADDRESSES, Vma};
use slat::table::Entry;
use slat::{Gfn, Idle, Level, Pages, Pfn, Span, Why};

/// Entries that are looked at before the address space is let go of for a moment.
const STEPS: usize = 4096;

/// Pages that are merged together, at most.
pub(super) const RUN: usize = 32;

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

    /// Makes `page` one that nobody writes to in place, and returns a reference to its frame, if it may be merged and
    /// still has this checksum. It counts as merged from here on.
    pub(super) fn make_stable(
        &self,
        idle: &mut Idle,
        page: Gfn,
        checksum: u64,
        sabotage: Sabotage,
    ) -> Option<Held<'_>> {
        let state = self.state.read();
        let held = self.protect(&state, idle, Span::sized(page, 1), true, sabotage).pop().flatten()?;
        if sabotage != Sabotage::Compare && contents::checksum(&self.arena, held.pfn()) != checksum {
            self.arena.set_merged(held.pfn(), false);
            return None;
        }
        Some(held)
    }

    /// Makes the pages of `run` ones that nobody writes to in place, with one notification, and returns references to the
    /// frames of those that may be merged. With `stable` they count as merged from here on.
    fn protect(
        &self,
        state: &State,
        idle: &mut Idle,
        run: Span<Gfn>,
        stable: bool,
        sabotage: Sabotage,
    ) -> Vec<Option<Held<'_>>> {
        let pages = || (run.start.0..run.end.0).map(Gfn);
        let allowed: Vec<bool> = pages().map(|page| self.may_merge(state, page)).collect();
        // Pages that nobody may write to anyway lose nothing.
        let unnoticed = |_: &Entry, writable: bool| !writable || sabotage == Sabotage::Protect;
        let take = |(page, &allowed)| if allowed { self.take_alone(page, stable, unnoticed) } else { None };
        let mut held: Vec<_> = pages().zip(&allowed).map(take).collect();
        if held.iter().zip(&allowed).all(|(held, &allowed)| held.is_some() || !allowed) {
            return held;
        }
        self.around(state, idle, run, Why::WriteProtect, &mut |_, _| {
            for ((page, &allowed), held) in pages().zip(&allowed).zip(&mut held) {
                if allowed && held.is_none() {
                    *held = self.take_alone(page, stable, |entry, _| {
                        entry.store(Pte::of(entry.load(), Level::K4).read_only().word(Level::K4));
                        true
                    });
                }
            }
        });
        held
    }

    /// Whether the mapping wants it, and the page is small, which it becomes if need be. Out of memory for a table it
    /// stays huge.
    fn may_merge(&self, state: &State, page: Gfn) -> bool {
        let wanted = state.vmas.find(hva_of(page)).is_some_and(Vma::is_mergeable);
        let _lock = self.lock_region(page);
        let (level, entry) = self.map.find(page);
        wanted && self.split(level, entry).is_ok()
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

    /// Makes the pages from `first` on shares of these frames, each where both hold the same, and says which it has
    /// made so. The others may not be merged, or are being written, or hold something else.
    pub(super) fn merge(
        &self,
        idle: &mut Idle,
        first: Gfn,
        stable: Vec<Held<'_>>,
        sabotage: Sabotage,
    ) -> Vec<bool> {
        let state = self.state.read();
        let run = Span::sized(first, stable.len() as u64);
        let mut old = self.protect(&state, idle, run, false, sabotage);
        for (old, stable) in old.iter_mut().zip(&stable) {
            let same = |old: &Held<'_>| contents::equal(&self.arena, old.pfn(), stable.pfn());
            *old = old.take().filter(|old| sabotage == Sabotage::Compare || same(old));
        }
        let mut merged = vec![false; stable.len()];
        if old.iter().any(Option::is_some) {
            let mut released = self.arena.released();
            self.around(&state, idle, run, Why::ChangePte, &mut |idle, told| {
                for (nth, old) in old.iter().enumerate() {
                    let (page, to) = (first + nth as u64, stable[nth].pfn());
                    merged[nth] = old.as_ref().is_some_and(|old| {
                        self.replace(idle, page, (old.pfn(), to), told)
                            .inspect(|&pfn| released.add(pfn, Level::K4))
                            .is_some()
                    });
                }
            });
        }
        for (stable, _) in stable.into_iter().zip(&merged).filter(|(_, merged)| **merged) {
            stable.keep(); // the entry's from now on
        }
        merged
    }

    /// Makes the entry of `page` name another frame, if it still names the old one, and returns that.
    fn replace(
        &self,
        idle: &mut Idle,
        page: Gfn,
        (from, to): (Pfn, Pfn),
        told: &mut dyn Pages,
    ) -> Option<Pfn> {
        let _lock = self.lock_region(page);
        let (level, entry) = self.map.find(page);
        let found = Pte::of(entry.load(), level);
        if level != Level::K4 || !matches!(found, Pte::Mapped { pfn, .. } if pfn == from) {
            return None;
        }
        let shared = Pte::Mapped { pfn: to, writable: false };
        entry.store(shared.word(level));
        told.changed(idle, hvas_of(Span::sized(page, 1)), shared.host_page(page, level));
        Some(from)
    }
}
