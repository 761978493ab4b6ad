//! Eviction: the coldest pages go to swap, a batch at a time.
//!
//! ```text
//! choose     the hand goes on to pages of the oldest generation, in one region; no lock
//! ask        each Accessed bit once more, of this table and of every secondary MMU; who was used after all is young
//! take       around(Reclaim) { page lock: entry parked; told; flush
//! put away                     page lock, page by page: still parked? its contents to swap, entry swapped }
//! free       the frames, when the notification is over
//! ```
//! **Second chance.** Aging may have passed over a region, or a listener that cannot be asked about many pages at once;
//! and it was a while ago. So every candidate is asked about, page by page, and every listener answers.
//!
//! **Nothing is lost.** From the flush on nobody can write to a parked page. A fault that wants it maps it again, under
//! the page lock, and then it is not parked any more and stays. So what goes to swap is what the page holds for good,
//! and where the swap does not take it, the entry is put back as it was.
//!
//! **Nothing is looked at twice.** Whatever leaves the oldest generation does so upwards: young pages to the youngest,
//! those that may not be evicted to the next one. So one round of the hand empties a generation.

use super::generations::{Kind, MIN_GENS};
use super::region::{PAGES, index, region_of};
use super::stats::Counted;
use super::{Lru, LruError};
use crate::held::Released;
use crate::numa::Node;
use crate::pte::{Pte, hva_of, hvas_of};
use crate::space::{AddressSpace, State};
use slat::{Gfn, Idle, Level, Pages, Pfn, Span, Why, Young};

/// Pages that are evicted with one notification at most: faults on those between wait for it.
const BATCH: u64 = 64;
/// Passes that are made for one who needs pages, while all candidates turn out to be young. Then he takes what he finds.
const PATIENCE: u32 = 3;
/// Swappiness that leaves files alone.
pub(super) const ANON_ONLY: u8 = 201;

/// What came of a batch.
#[derive(Clone, Copy, Default, Debug)]
struct Tried {
    /// Pages that have left the oldest generation.
    looked_at: u64,
    /// Of these, evicted.
    evicted: u64,
}

impl AddressSpace {
    /// Evicts pages of `node` in the generations up to `min_seq`, at most `nr`, and returns how many. May sleep.
    ///
    /// # Errors
    /// [`LruError::Invalid`] where `min_seq` is one of the two youngest generations, or `swappiness` above 201.
    pub fn evict(
        &self,
        idle: &mut Idle,
        node: Node,
        min_seq: u64,
        swappiness: Option<u8>,
        nr: Option<u64>,
    ) -> Result<u64, LruError> {
        let lru = self.lru_of(node)?;
        let swappiness = swappiness.unwrap_or(lru.settings().swappiness);
        if min_seq.saturating_add(MIN_GENS) > lru.generations.max_seq() || swappiness > ANON_ONLY {
            return Err(LruError::Invalid);
        }
        let (kinds, most) = (self.evictable_kinds(swappiness), nr.unwrap_or(u64::MAX));
        let mut evicted = 0;
        while evicted < most {
            if self.state.read().exited {
                return Err(LruError::Interrupted);
            }
            lru.generations.pass_by_empty(node, kinds.contains(&Kind::Anon));
            let old = |&kind: &Kind| lru.generations.min_seq(node, kind) <= min_seq;
            let Some(kind) = lru.oldest(node, kinds.iter().copied().filter(old)) else { break };
            let tried = self.evict_batch(lru, idle, (node, kind), most - evicted, true);
            evicted += tried.evicted;
            if tried.looked_at == 0 {
                break;
            }
        }
        Ok(evicted)
    }

    /// Evicts the coldest `pages` pages, aging as needed, and returns how many went; fewer where nothing is left to
    /// evict. May sleep.
    pub fn reclaim(&self, idle: &mut Idle, pages: u64) -> u64 {
        let Some(lru) = self.lru() else { return 0 };
        let mut evicted = 0;
        while evicted < pages {
            let before = evicted;
            for node in lru.generations.nodes() {
                evicted += self.shrink(lru, idle, node, (pages - evicted).min(BATCH));
            }
            if evicted == before {
                break;
            }
        }
        evicted
    }

    /// Evicts up to `most` pages of a node.
    fn shrink(&self, lru: &Lru, idle: &mut Idle, node: Node, most: u64) -> u64 {
        let settings = lru.settings();
        let kinds = self.evictable_kinds(settings.swappiness);
        let can_swap = kinds.contains(&Kind::Anon);
        let (mut evicted, mut passes) = (0, 0);
        while evicted < most {
            let generations = &lru.generations;
            generations.pass_by_empty(node, can_swap);
            if passes <= 2 * PATIENCE && self.should_age(lru, node, &kinds) {
                if self.make_pass(lru, idle, generations.max_seq(), can_swap, false).is_err() {
                    break;
                }
                passes += 1;
                continue;
            }
            let old = |&kind: &Kind| generations.min_seq(node, kind) + MIN_GENS <= generations.max_seq();
            let Some(kind) = lru.oldest(node, kinds.iter().copied().filter(old)) else { break };
            // Whoever was used since the next generation began is in that one.
            if generations.age(generations.min_seq(node, kind) + 1) < settings.min_ttl {
                break;
            }
            let tried = self.evict_batch(lru, idle, (node, kind), most - evicted, passes <= PATIENCE);
            evicted += tried.evicted;
            if tried.looked_at == 0 {
                break;
            }
        }
        evicted
    }

    /// Which kinds of pages can be evicted at all.
    fn evictable_kinds(&self, swappiness: u8) -> Vec<Kind> {
        let may = |kind: &Kind| match kind {
            Kind::Anon => swappiness > 0 && self.can_swap(),
            Kind::File => false,
        };
        Kind::ALL.into_iter().filter(may).collect()
    }

    /// Tries to evict some pages of the oldest generation, of one region.
    fn evict_batch(
        &self,
        lru: &Lru,
        idle: &mut Idle,
        (node, kind): (Node, Kind),
        most: u64,
        spare_young: bool,
    ) -> Tried {
        let pages = lru.choose(node, kind, most.min(BATCH));
        let Some(&first) = pages.first() else { return Tried::default() };
        let state = self.state.read();
        if state.exited {
            return Tried::default();
        }
        let mut tried = Tried { looked_at: pages.len() as u64, evicted: 0 };
        let candidates = self.candidates(lru, &pages);
        let (mut cold, mut young) = (Vec::new(), super::aging::Bits::default());
        for entry in candidates {
            if self.was_accessed(&state, idle, entry) && spare_young {
                super::aging::set(&mut young, entry);
                self.look_around(&state, entry, &mut young);
            } else {
                cold.push(entry);
            }
        }
        if young != super::aging::Bits::default() {
            let _lock = self.lock_region(first);
            let found = lru.regions.with(first, |region| lru.make_young(region, &young, |_| true));
            lru.found_young(first, found.unwrap_or(0));
        }
        // Of a huge page only what was asked for; the rest has been divided from it.
        let cold = pages.into_iter().filter(|&page| cold.iter().any(|entry| entry.contains(page)));
        tried.evicted = self.put_away(lru, &state, idle, cold.collect());
        tried
    }

    /// What maps these pages of one region, one huge page or small ones, where they may be evicted. Others are one
    /// generation younger from now on.
    fn candidates(&self, lru: &Lru, pages: &[Gfn]) -> Vec<Span<Gfn>> {
        let mut found: Vec<Span<Gfn>> = Vec::new();
        let Some(&first) = pages.first() else { return found };
        let _lock = self.lock_region(first);
        for &page in pages {
            let (level, entry) = self.map.find(page);
            let covers = Span::sized(page.base(level), level.pages());
            if found.last() == Some(&covers) {
                continue;
            }
            match Pte::of(entry.load(), level).pfn() {
                Some(pfn) if level <= Level::M2 && self.is_sole(pfn, level) => found.push(covers),
                Some(_) => {
                    let passed = lru.pass_over(covers);
                    lru.counters.add(Counted::Unevictable, passed);
                }
                None => {}
            }
        }
        found
    }

    /// Whether any page of an entry was accessed since its bits were cleared, which they are now.
    fn was_accessed(&self, state: &State, idle: &mut Idle, entry: Span<Gfn>) -> bool {
        let mut accessed = self.take_accessed(entry) != super::aging::Bits::default();
        for mmu in state.listeners.each() {
            accessed |= mmu.young(idle, hvas_of(entry), Young::Clear);
        }
        accessed
    }

    /// Neighbours of a page that was in use probably are, too. Only where this table's bits say it all: asking others
    /// about each of them would cost more than it saves.
    fn look_around(&self, state: &State, entry: Span<Gfn>, young: &mut super::aging::Bits) {
        if state.listeners.each().next().is_none() {
            let around = Span::sized(Gfn(entry.start.0 & !(BATCH - 1)), BATCH);
            let neighbours = self.take_accessed(around.clamp(&region_of(entry.start)));
            young.iter_mut().zip(neighbours).for_each(|(young, more)| *young |= more);
        }
    }

    /// Evicts pages of one region, in order, and returns how many went.
    fn put_away(&self, lru: &Lru, state: &State, idle: &mut Idle, pages: Vec<Gfn>) -> u64 {
        let mut evicted = 0;
        // One notification for all, unless it costs somebody those between.
        let together = |a: &Gfn, b: &Gfn| state.listeners.heed_pages() || *a + 1 == *b;
        for batch in pages.chunk_by(together) {
            let (Some(&first), Some(&last)) = (batch.first(), batch.last()) else { continue };
            let mut released = self.arena.released();
            self.around(state, idle, Span::new(first, last + 1), Why::Reclaim, &mut |idle, told| {
                let parked = self.park(lru, idle, batch, told);
                told.flush(idle);
                for (page, before) in parked {
                    evicted += u64::from(self.swap_out(lru, page, before, &mut released));
                }
            });
        }
        lru.counters.add(Counted::Evicted, evicted);
        evicted
    }

    /// Takes pages that still may be evicted from everybody, and says what their entries were.
    fn park(&self, lru: &Lru, idle: &mut Idle, pages: &[Gfn], told: &mut dyn Pages) -> Vec<(Gfn, Pte)> {
        let mut parked = Vec::with_capacity(pages.len());
        let Some(&first) = pages.first() else { return parked };
        let _lock = self.lock_region(first);
        for &page in pages {
            let (level, entry) = self.map.find(page);
            if self.split(level, entry).is_err() {
                // No memory for the table that it takes.
                lru.pass_over(Span::sized(page.base(level), level.pages()));
                continue;
            }
            let (level, entry) = self.map.find(page);
            let before = Pte::of(entry.load(), level);
            if let Some(pfn) = before.pfn().filter(|&pfn| level == Level::K4 && self.is_sole(pfn, level)) {
                entry.store(Pte::Parked(pfn).word(level));
                told.changed(idle, hvas_of(Span::sized(page, 1)), None);
                parked.push((page, before));
            }
        }
        parked
    }

    /// Puts the contents of a parked page away, if it still is one; whether that was done.
    fn swap_out(&self, lru: &Lru, page: Gfn, before: Pte, released: &mut Released<'_>) -> bool {
        let _lock = self.lock_region(page);
        let (level, entry) = self.map.find(page);
        let Some(pfn) = before.pfn().filter(|&pfn| Pte::of(entry.load(), level) == Pte::Parked(pfn)) else {
            return false;
        };
        let Some(swapped) = self.store(pfn) else {
            entry.store(before.word(level));
            lru.pass_over(Span::sized(page, 1));
            lru.counters.add(Counted::StoreFailed, 1);
            return false;
        };
        entry.store(swapped.word(level));
        self.clean.remove(Span::sized(page, 1));
        self.lru_leave(page, level);
        released.add(pfn, level);
        if let Some(seen) = &*lru.on_evict.read() {
            seen(hva_of(page));
        }
        true
    }

    fn can_swap(&self) -> bool {
        false
    }

    fn store(&self, page: Pfn) -> Option<Pte> {
        let _ = page;
        None
    }
}

impl Lru {
    /// Of several kinds, that whose oldest generation is the oldest.
    fn oldest(&self, node: Node, kinds: impl Iterator<Item = Kind>) -> Option<Kind> {
        kinds.min_by_key(|&kind| self.generations.min_seq(node, kind))
    }

    /// Up to `most` pages of the oldest generation, in order and in one region, from where the hand is. Nothing is
    /// locked: they are looked at again. None where a whole round finds none.
    fn choose(&self, node: Node, kind: Kind, most: u64) -> Vec<Gfn> {
        let mut hand = self.hands[usize::from(node.0)][kind as usize].lock();
        let oldest = self.generations.min_seq(node, kind);
        let (begin, mut wrapped) = (*hand, false);
        loop {
            let Some((first, region)) = self.regions.next(hand.base(Level::M2)) else {
                if std::mem::replace(&mut wrapped, true) {
                    return Vec::new();
                }
                *hand = Gfn(0);
                continue;
            };
            if wrapped && first > begin {
                return Vec::new();
            }
            let is_old = |index: &usize| {
                region
                    .get(*index)
                    .is_some_and(|mark| (mark.node, mark.kind) == (node, kind) && mark.seq <= oldest)
            };
            let from = if first < *hand { index(*hand) } else { 0 };
            let found: Vec<Gfn> =
                (from..PAGES).filter(is_old).take(most as usize).map(|index| first + index as u64).collect();
            *hand = found.last().map_or(first + Level::M2.pages(), |&last| last + 1);
            if !found.is_empty() {
                return found;
            }
        }
    }

    /// Pages that stay although they are old are one generation younger; how many that are. The caller holds the page
    /// lock.
    fn pass_over(&self, pages: Span<Gfn>) -> u64 {
        let mut passed = 0;
        self.change(pages, |mark| {
            passed += 1;
            let oldest = self.generations.min_seq(mark.node, mark.kind);
            super::region::Mark { seq: mark.seq.max(oldest + 1), ..mark }
        });
        passed
    }

    /// Candidates in the region around `page` that were young: where they are many, the next pass looks at them all.
    fn found_young(&self, page: Gfn, young: u64) {
        self.counters.add(Counted::Promoted, young);
        if young * 8 >= BATCH {
            self.filters.insert(self.generations.max_seq(), super::region::number(page));
        }
    }
}
