//! Pages become shares of others: the two changes of a merge, and who must not notice.
//!
//! ```text
//! protect   around(WriteProtect)  { entry read-only; one reference of our own }
//! compare                          what is compared cannot change any more
//! replace   around(ChangePte)     { the same frame still? entry := stable frame, read-only; told }
//!           our reference and the entry's go: the old frame is free
//! ```
//! Guests read on all the while: where the reason is heeded, no translation is ever missing (the change-pte series).
//!
//! **Why comparing once is enough.** KSM holds a reference, so the entry is not the sole owner of its frame. So
//! a thread that writes gets a copy in another frame, and this one, which cannot be freed either, keeps its contents.
//! An entry that still names it has not been written since the comparison. One that does not is given up.
//!
//! **Many go together.** Each step costs a notification and a flush, whether it is for one page or for many, so the
//! scanner gathers pages into a [`Batch`]: a run of neighbours. Where all who listen take a change page by page
//! ([`heeds_pages`](slat::SecondaryMmu::heeds_pages)) there may be gaps in it; then the first step, too, is told page by
//! page, as a change of the entry, so that nothing happens to those between.

use super::contents;
use crate::held::Held;
use crate::page_lock::RegionLock;
use crate::pte::{Pte, hva_of, hvas_of, pages_of};
use crate::space::AddressSpace;
use crate::state::State;
use crate::table::Entry;
use crate::vma::{ADDRESSES, Vma};
use slat::{Gfn, Idle, Level, Pages, Pfn, Span, Why};

/// Entries that are looked at before the address space is let go of for a moment.
const STEPS: usize = 4096;

/// Pages of one address space, in order, that are to be merged together, and with what.
#[derive(Debug)]
pub(super) struct Batch<'a> {
    /// Each with its frame to be. The reference is the entry's once the page is merged; until then it says that there is
    /// one sharer more to come.
    pages: Vec<(Gfn, Held<'a>)>,
    /// Whether it may have gaps.
    scattered: bool,
    /// How many at most.
    most: usize,
}

impl<'a> Batch<'a> {
    pub(super) fn begin(space: &AddressSpace, most: u32) -> Self {
        Self { pages: Vec::new(), scattered: space.heeds_pages(), most: most as usize }
    }

    /// Whether there is room for `page`.
    pub(super) fn takes(&self, page: Gfn) -> bool {
        let near = |&(last, _): &(Gfn, Held<'_>)| {
            if self.scattered { last.base(Level::M2) == page.base(Level::M2) } else { last + 1 == page }
        };
        self.pages.len() < self.most && self.pages.last().is_none_or(near)
    }

    pub(super) fn push(&mut self, page: Gfn, stable: Held<'a>) {
        self.pages.push((page, stable));
    }

    fn range(&self) -> Span<Gfn> {
        let page = |at: Option<&(Gfn, Held<'_>)>| at.map_or(Gfn(0), |&(page, _)| page);
        Span::new(page(self.pages.first()), page(self.pages.last()) + 1)
    }
}

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
    /// The write protection: a vCPU can still write meanwhile.
    Protect,
}

impl AddressSpace {
    /// The first page from `from` on that is merged or could be, and where it is. `None`: there is none.
    ///
    /// Huge pages are seen as the small ones that they are made of. Passed over is what has more references than
    /// its entry: a fork's share, a file's page, a page that a device holds. The scan cannot tell them apart.
    pub(super) fn next_mergeable(&self, from: Gfn) -> Option<(Gfn, Sight)> {
        let state = self.state.read();
        let mut steps = STEPS;
        let rest = Span::new(hva_of(from), ADDRESSES.end.max(hva_of(from)));
        for vma in state.vmas().over(rest).filter(|vma| vma.is_mergeable()) {
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

    /// Takes write permission to `page` away, and returns a reference to its frame, if it may be merged and
    /// still has this checksum. It counts as merged from here on.
    pub(super) fn make_stable(
        &self,
        idle: &mut Idle,
        page: Gfn,
        checksum: u64,
        sabotage: Sabotage,
    ) -> Option<Held<'_>> {
        let state = self.state.read();
        let one = Span::sized(page, 1);
        let held = self.protect(&state, idle, (&[page], one), Why::WriteProtect, sabotage).pop().flatten()?;
        let same = contents::checksum(&self.arena, held.pfn()) == checksum;
        let lock = self.lock_region(page);
        let stays = (same || sabotage == Sabotage::Compare) && is_mergeable(&lock, page);
        stays.then(|| {
            self.arena.set_merged(held.pfn(), true);
            held
        })
    }

    /// Makes each page of the batch a share of its frame, where both hold the same, and says which it has made so. The
    /// others may not be merged, or are being written, or hold something else.
    pub(super) fn merge(&self, idle: &mut Idle, batch: Batch<'_>, sabotage: Sabotage) -> Vec<(Gfn, bool)> {
        let state = self.state.read();
        let range = batch.range();
        let pages: Vec<Gfn> = batch.pages.iter().map(|&(page, _)| page).collect();
        // With gaps, page by page: those between keep their permission.
        let gaps = range.len() > pages.len() as u64;
        let why = if gaps { Why::ChangePte } else { Why::WriteProtect };
        let mut old = self.protect(&state, idle, (&pages, range), why, sabotage);
        for (old, (_, stable)) in old.iter_mut().zip(&batch.pages) {
            let same = |old: &Held<'_>| contents::equal(&self.arena, old.pfn(), stable.pfn());
            *old = old.take().filter(|old| sabotage == Sabotage::Compare || same(old));
        }
        let mut merged = vec![false; pages.len()];
        if old.iter().any(Option::is_some) {
            let mut released = self.arena.released();
            self.around(&state, idle, range, Why::ChangePte, &mut |idle, told| {
                for ((old, (page, stable)), merged) in old.iter().zip(&batch.pages).zip(&mut merged) {
                    let Some(old) = old else { continue };
                    *merged = self.replace(idle, *page, (old.pfn(), stable.pfn()), told);
                    if *merged {
                        released.add(old.pfn(), Level::K4);
                    }
                }
            });
        }
        let done = |((page, stable), merged): ((Gfn, Held<'_>), bool)| {
            if merged {
                stable.keep(); // the entry's from now on
            }
            (page, merged)
        };
        batch.pages.into_iter().zip(merged).map(done).collect()
    }

    /// Takes write permission to these pages away, with one notification of `range` around them, and returns a
    /// reference to the frame of each that may be merged.
    fn protect(
        &self,
        state: &State,
        idle: &mut Idle,
        (pages, range): (&[Gfn], Span<Gfn>),
        why: Why,
        sabotage: Sabotage,
    ) -> Vec<Option<Held<'_>>> {
        let allowed: Vec<bool> = pages.iter().map(|&page| self.may_merge(page)).collect();
        // A page without write permission loses nothing.
        let unnoticed = |_: Entry<'_>, writable: bool| !writable || sabotage == Sabotage::Protect;
        let take = |(&page, &allowed)| if allowed { self.take_alone(page, unnoticed) } else { None };
        let mut held: Vec<_> = pages.iter().zip(&allowed).map(take).collect();
        if held.iter().zip(&allowed).all(|(held, &allowed)| held.is_some() || !allowed) {
            return held;
        }
        self.around(state, idle, range, why, &mut |idle, told| {
            for ((&page, &allowed), held) in pages.iter().zip(&allowed).zip(&mut held) {
                if allowed && held.is_none() {
                    *held = self.take_alone(page, |entry, _| {
                        let protected = Pte::of(entry.load(), Level::K4).read_only();
                        entry.store(protected.word(Level::K4));
                        let now = protected.host_page(page, Level::K4);
                        told.changed(idle, hvas_of(Span::sized(page, 1)), now);
                        true
                    });
                }
            }
        });
        held
    }

    /// Whether the mapping wants it, and the page is small, which it becomes if need be. Out of memory for a table it
    /// stays huge.
    fn may_merge(&self, page: Gfn) -> bool {
        let lock = self.lock_region(page);
        let (level, entry) = self.map.find(page);
        is_mergeable(&lock, page) && self.split(level, entry).is_ok()
    }

    /// Under the page lock: one more reference to the frame of `page`, if its entry is the only owner so far and
    /// `prepare`, which is told whether it may be written, agrees.
    fn take_alone(&self, page: Gfn, prepare: impl FnOnce(Entry<'_>, bool) -> bool) -> Option<Held<'_>> {
        let _lock = self.lock_region(page);
        let (level, entry) = self.map.find(page);
        let Pte::Mapped { pfn, writable } = Pte::of(entry.load(), level) else { return None };
        let alone = level == Level::K4 && self.is_sole(pfn, level) && !self.arena.is_merged(pfn);
        (alone && prepare(entry, writable)).then(|| {
            self.arena.share(Span::sized(pfn, 1));
            Held::new(&self.arena, pfn, level)
        })
    }

    /// Makes the entry of `page` name another frame, read-only, if it still names the old one, and the mapping still wants it.
    fn replace(&self, idle: &mut Idle, page: Gfn, (from, to): (Pfn, Pfn), told: &mut dyn Pages) -> bool {
        let lock = self.lock_region(page);
        let (level, entry) = self.map.find(page);
        let found = Pte::of(entry.load(), level);
        let wanted = is_mergeable(&lock, page) || seeded!(MergeUnlooked);
        let same = wanted && level == Level::K4 && matches!(found, Pte::Mapped { pfn, .. } if pfn == from);
        if same {
            let shared = Pte::Mapped { pfn: to, writable: false };
            self.lru_replace(page, level, to, None);
            entry.store(shared.word(level));
            told.changed(idle, hvas_of(Span::sized(page, 1)), shared.host_page(page, level));
        }
        same
    }
}

/// Whether the mapping at `page` wants its pages merged, as it is now.
fn is_mergeable(lock: &RegionLock<'_>, page: Gfn) -> bool {
    lock.find(hva_of(page)).is_some_and(Vma::is_mergeable)
}
