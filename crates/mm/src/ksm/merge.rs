//! The two changes of a merge, and why neither loses a write.
//!
//! ```text
//! protect   around(WriteProtect)  { entry read-only; take a reference }
//! compare                          the bytes compared cannot change any more
//! replace   around(ChangePte)     { still the same frame? entry := stable frame, read-only; notify }
//!           drop KSM's reference and the entry's: the old frame is free
//! ```
//! Guests read throughout: a secondary MMU that uses the reason never loses a translation (the change-pte
//! series).
//!
//! **Why one comparison is enough.** KSM holds a reference, so the entry is not the sole owner of its frame. A
//! thread that writes gets a copy in another frame. The old frame cannot be freed and keeps its contents. An
//! entry that still maps the frame has not been written since the comparison; other entries are skipped.
//!
//! **Batches.** Each step costs a notification and a flush, for one page or many, so the scanner collects pages
//! in a [`Batch`]: a run of neighbours. If all listeners accept changes page by page
//! ([`heeds_pages`](slat::SecondaryMmu::heeds_pages)), it may have gaps. Then the first step also notifies page
//! by page, as changes of entries, so that pages in the gaps are not affected.

use super::contents;
use crate::held::{Held, Released};
use crate::page_lock::RegionLock;
use crate::pages::{hva_of, hvas_of, pages_of};
use crate::pte::Pte;
use crate::space::AddressSpace;
use crate::state::State;
use crate::table::Entry;
use crate::vma::{ADDRESSES, Vma};
use slat::{Gfn, Idle, Level, Pages, Pfn, Reason, Span};

/// Number of entries to look at before the locks are released for a moment.
const STEPS: usize = 4096;

/// Pages of one address space, in order, to merge together, with their new frames.
#[derive(Debug)]
pub(super) struct Batch<'a> {
    /// Each page with its new frame. After the merge the reference is the entry's; until then it counts as one
    /// more sharer.
    pages: Vec<(Gfn, Held<'a>)>,
    /// Whether it may have gaps.
    scattered: bool,
    /// Most pages.
    most: usize,
}

impl<'a> Batch<'a> {
    pub(super) fn begin(space: &AddressSpace, most: u32) -> Self {
        Self { pages: Vec::new(), scattered: space.heeds_pages(), most: most as usize }
    }

    /// Whether it has room for `page`.
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

/// A page that the scan has found.
pub(super) enum Sight {
    /// A page that could be merged: its entry is the frame's sole owner.
    Alone { pfn: Pfn, checksum: u64 },
    /// A merged page.
    Merged,
    /// No page yet: continue from here.
    Nothing,
}

impl AddressSpace {
    /// Returns the first page from `from` on that is merged or could be; `None` if there is none.
    ///
    /// Huge pages count as their small parts. Skips frames with more references than one entry: a fork's share,
    /// a file's page, a pinned page. The scan cannot distinguish these.
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

    /// Write-protects `page`, and returns a reference to its frame, if it may be merged and still has this
    /// checksum. Marks the frame as merged.
    pub(super) fn make_stable(&self, idle: &mut Idle, page: Gfn, checksum: u64) -> Option<Held<'_>> {
        let state = self.state.read();
        let one = Span::sized(page, 1);
        let held = self.protect(&state, idle, (&[page], one), Reason::WriteProtect).pop().flatten()?;
        let same = contents::checksum(&self.arena, held.pfn()) == checksum;
        let lock = self.lock_region(page);
        let stays = same && is_mergeable(&lock, page);
        stays.then(|| {
            self.arena.set_merged(held.pfn(), true);
            held
        })
    }

    /// Makes each page of the batch share its new frame if both hold the same bytes; returns which pages were
    /// merged. The others may not be merged, are being written, or differ.
    pub(super) fn merge(&self, idle: &mut Idle, batch: &Batch<'_>) -> Vec<(Gfn, bool)> {
        let state = self.state.read();
        let range = batch.range();
        let pages: Vec<Gfn> = batch.pages.iter().map(|&(page, _)| page).collect();
        // With gaps, notify page by page: pages in the gaps keep their permission.
        let gaps = range.len() > pages.len() as u64;
        let why = if gaps { Reason::ChangePte } else { Reason::WriteProtect };
        let mut old = self.protect(&state, idle, (&pages, range), why);
        for (old, (_, stable)) in old.iter_mut().zip(&batch.pages) {
            let same = |old: &Held<'_>| contents::equal(&self.arena, old.pfn(), stable.pfn());
            *old = old.take().filter(same);
        }
        let mut merged = vec![false; pages.len()];
        if old.iter().any(Option::is_some) {
            let mut released = self.arena.released();
            self.around(&state, idle, range, Reason::ChangePte, &mut |idle, told| {
                for ((old, (page, stable)), merged) in old.iter().zip(&batch.pages).zip(&mut merged) {
                    let Some(old) = old else { continue };
                    *merged = self.replace(idle, *page, (old.pfn(), stable.pfn()), &mut released, told);
                }
            });
        }
        batch.pages.iter().map(|&(page, _)| page).zip(merged).collect()
    }

    /// Write-protects these pages with one notification of `range`, and returns a reference to the frame of
    /// each that may be merged.
    fn protect(
        &self,
        state: &State,
        idle: &mut Idle,
        (pages, range): (&[Gfn], Span<Gfn>),
        why: Reason,
    ) -> Vec<Option<Held<'_>>> {
        let allowed: Vec<bool> = pages.iter().map(|&page| self.may_merge(page)).collect();
        // A page without write permission needs no notification.
        let unnoticed = |_: Entry<'_>, writable: bool| !writable;
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

    /// Whether the mapping allows merging and the page is small; splits a huge page. Without memory for a table
    /// the page stays huge.
    fn may_merge(&self, page: Gfn) -> bool {
        let lock = self.lock_region(page);
        let (level, entry) = self.map.find(page);
        is_mergeable(&lock, page) && self.split(level, entry).is_ok()
    }

    /// Takes a reference to the frame of `page`, under the page lock, if its entry is the sole owner and
    /// `prepare` agrees. `prepare` gets whether the entry is writable.
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

    /// Makes the entry of `page` map another frame, read-only, if it still maps the old one and the mapping
    /// still allows it.
    fn replace(
        &self,
        idle: &mut Idle,
        page: Gfn,
        (from, to): (Pfn, Pfn),
        released: &mut Released<'_>,
        told: &mut dyn Pages,
    ) -> bool {
        let lock = self.lock_region(page);
        let (level, entry) = self.map.find(page);
        let found = Pte::of(entry.load(), level);
        let same = level == Level::K4
            && is_mergeable(&lock, page)
            && matches!(found, Pte::Mapped { pfn, .. } if pfn == from);
        if same {
            let shared = Pte::Mapped { pfn: to, writable: false };
            // The entry's own: a listener may panic from here on.
            self.arena.share(Span::sized(to, 1));
            self.lru_replace(page, level, to, None);
            released.add(from, level);
            entry.store(shared.word(level));
            told.changed(idle, hvas_of(Span::sized(page, 1)), shared.host_page(page, level));
        }
        same
    }
}

/// Whether the current mapping at `page` allows merging.
fn is_mergeable(lock: &RegionLock<'_>, page: Gfn) -> bool {
    lock.find(hva_of(page)).is_some_and(Vma::is_mergeable)
}
