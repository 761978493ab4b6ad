//! Eviction: moves the coldest pages to swap, in batches.
//!
//! ```text
//! choose     the hand finds pages of the oldest generation in one region                no lock
//! ask        reads each Accessed bit again, here and in every secondary MMU             accessed pages become young
//! spare      keeps pages of tiers that refault too often                                one generation younger
//! take       around(Reclaim) { parks each page under its lock, and notifies }           [`crate::swap`]
//! store      writes the contents; the page is gone if it is still parked
//! family     does the same in forks that share the page
//! ```
//! **Second chance.** Aging may have skipped a region, or a listener that cannot answer in bulk, and its answer
//! is old. So eviction asks every listener about every candidate, page by page. If it finds only young pages
//! for several passes, it evicts young pages.
//!
//! **Each page is looked at once per round.** A page leaves the oldest generation upwards: young pages to the
//! youngest, pages that may not be evicted or could not be stored to the next one. So one round of the hand
//! empties a generation.

use crate::lru::bloom::is_dense;
use crate::lru::fork_family::FamilyMember;
use crate::lru::generations::{Kind, MIN_GENS};
use crate::lru::region::{Mark, index, number, region_of};
use crate::lru::stats::Counted;
use crate::lru::tiers;
use crate::lru::young::YoungPages;
use crate::lru::{Lru, LruError};
use crate::nodes::Node;
use crate::pages::{hva_of, hvas_of};
use crate::pte::Pte;
use crate::space::AddressSpace;
use crate::state::{Reading, State};
use crate::swap::Shadow;
use crate::swapping::{Leaving, SwappedOut};
use slat::{Gfn, Idle, Level, Pfn, Span, Young};

/// Most pages that one notification evicts. Faults on pages of the range wait for it.
const BATCH: u64 = 64;
/// Number of passes during which eviction spares young pages. After that it evicts them.
const SPARING_PASSES: u32 = 3;
/// Swappiness that evicts no file pages.
pub(super) const ANON_ONLY: u8 = 201;

/// Result of a batch.
#[derive(Clone, Copy, Default, Debug)]
struct BatchResult {
    /// Pages that have left the oldest generation.
    looked_at: u64,
    /// Evicted pages among these.
    evicted: u64,
    /// The swap had no room for one of them.
    full: bool,
}

impl AddressSpace {
    /// Evicts at most `nr` pages of `node` in generations up to `min_seq`, and returns how many. May sleep.
    ///
    /// # Errors
    /// [`LruError::Invalid`] if `min_seq` is one of the two youngest generations, or `swappiness` is above 201.
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
        let (mut kinds, most) = (self.evictable_kinds(swappiness), nr.unwrap_or(u64::MAX));
        let mut evicted = 0;
        while evicted < most {
            if self.state.exited() {
                return Err(LruError::Interrupted);
            }
            // A reclaimer that finds nothing else to evict waits for this thread's pages.
            let _together = lru.reclaimers.read();
            lru.pass_by_empty(node, kinds.contains(&Kind::Anon));
            let old = |&kind: &Kind| lru.generations.min_seq(node, kind) <= min_seq;
            let Some(kind) = lru.first_to_go(node, kinds.iter().copied().filter(old), swappiness) else {
                break;
            };
            let tried = self.evict_batch(lru, idle, (node, kind), most - evicted, true);
            evicted += tried.evicted;
            if tried.looked_at == 0 {
                break;
            }
            if tried.full {
                kinds.retain(|&other| other != kind);
            }
        }
        Ok(evicted)
    }

    /// Evicts the coldest `pages` pages, aging as needed, and returns how many; fewer if no more can be
    /// evicted. May sleep.
    pub fn reclaim(&self, idle: &mut Idle, pages: u64) -> u64 {
        let Some(lru) = self.lru() else { return 0 };
        let mut evicted = self.drop_unmapped();
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
        let mut kinds = self.evictable_kinds(settings.swappiness);
        let (mut evicted, mut passes) = (0, 0);
        while evicted < most && !kinds.is_empty() {
            let generations = &lru.generations;
            let can_swap = kinds.contains(&Kind::Anon);
            lru.pass_by_empty(node, can_swap);
            if passes <= 2 * SPARING_PASSES && lru.should_age(node, &kinds) {
                if self.make_pass(lru, idle, generations.max_seq(), can_swap, false).is_err() {
                    break;
                }
                passes += 1;
                continue;
            }
            let old = |&kind: &Kind| generations.min_seq(node, kind) + MIN_GENS <= generations.max_seq();
            let old = kinds.iter().copied().filter(old);
            let Some(kind) = lru.first_to_go(node, old, settings.swappiness) else { break };
            // A page that was used after the next generation began is in that one or a younger one.
            if generations.age(generations.min_seq(node, kind) + 1) < settings.min_ttl {
                break;
            }
            let tried = self.evict_batch(lru, idle, (node, kind), most - evicted, passes <= SPARING_PASSES);
            evicted += tried.evicted;
            if tried.looked_at == 0 {
                break;
            }
            // Other pages of the kind find no room either; the next reclaimer tries again.
            if tried.full {
                kinds.retain(|&other| other != kind);
            }
        }
        evicted
    }

    /// Returns the kinds of pages that can be evicted at all.
    fn evictable_kinds(&self, swappiness: u8) -> Vec<Kind> {
        let may = |kind: &Kind| match kind {
            Kind::Anon => swappiness > 0 && self.can_swap(),
            Kind::File => swappiness < ANON_ONLY,
        };
        Kind::ALL.into_iter().filter(may).collect()
    }

    /// Tries to evict some pages of the oldest generation in one region.
    fn evict_batch(
        &self,
        lru: &Lru,
        idle: &mut Idle,
        (node, kind): (Node, Kind),
        most: u64,
        spare_young: bool,
    ) -> BatchResult {
        let pages = lru.choose(node, kind, most.min(BATCH));
        let (tried, shared) = self.evict_pages(lru, idle, kind, &pages, spare_young);
        if !shared.is_empty() {
            self.family.others(self).iter().for_each(|member| member.evict_shared(idle, &shared));
        }
        tried
    }

    /// Tries to evict these pages of one region. Also returns evicted pages whose frame other address spaces
    /// map.
    fn evict_pages(
        &self,
        lru: &Lru,
        idle: &mut Idle,
        kind: Kind,
        pages: &[Gfn],
        spare_young: bool,
    ) -> (BatchResult, Vec<(Gfn, Pfn)>) {
        let Some(&first) = pages.first() else { return Default::default() };
        if self.state.exited() {
            return Default::default();
        }
        let state = self.state.read();
        let candidates = self.candidates(lru, pages);
        let cold = self.ask(lru, &state, idle, candidates, spare_young);
        // Splits a huge page, since only these parts are to go. Without memory for the table the page stays.
        if cold.iter().any(|entry| entry.len() > 1) {
            let _lock = self.lock_region(first);
            let (level, entry) = self.map.find(first);
            let _ = self.split(level, entry);
        }
        let is_cold = |page: &Gfn| cold.iter().any(|entry| entry.contains(*page));
        let going: Vec<Gfn> = pages.iter().copied().filter(is_cold).collect();
        let going = self.spare(lru, kind, going);
        let SwappedOut { gone, shared, full } = self.put_away(lru, state, idle, &going);
        (BatchResult { looked_at: pages.len() as u64, evicted: gone.len() as u64, full }, shared)
    }

    /// Returns the entries, huge or small, that map those of these pages of one region that may be evicted.
    /// Moves the others to the next generation.
    fn candidates(&self, lru: &Lru, pages: &[Gfn]) -> Vec<Span<Gfn>> {
        let mut found: Vec<Span<Gfn>> = Vec::new();
        let Some(&first) = pages.first() else { return found };
        let lock = self.lock_region(first);
        for &page in pages {
            let (level, entry) = self.map.find(page);
            let covers = Span::sized(page.base(level), level.pages());
            if found.last() == Some(&covers) {
                continue;
            }
            match Pte::of(entry.load(), level).pfn() {
                Some(pfn) if level <= Level::M2 && self.may_be_evicted(&lock, page, pfn, level) => {
                    found.push(covers);
                }
                Some(_) => {
                    let passed = lru.pass_over(covers);
                    lru.counters.add(Counted::Unevictable, passed);
                }
                None => {}
            }
        }
        found
    }

    /// Returns the candidates that were not accessed since they were last asked about. Accessed candidates and
    /// young neighbours move to the youngest generation, unless `spare_young` is false.
    fn ask(
        &self,
        lru: &Lru,
        state: &State,
        idle: &mut Idle,
        candidates: Vec<Span<Gfn>>,
        spare_young: bool,
    ) -> Vec<Span<Gfn>> {
        let Some(&Span { start: first, .. }) = candidates.first() else { return candidates };
        let (mut cold, mut young, asked) = (Vec::new(), YoungPages::default(), candidates.len() as u64);
        for entry in candidates {
            if young.contains(entry.start) {
                continue; // a young neighbour of an earlier candidate
            }
            let used = self.was_accessed(state, idle, entry) | lru.was_found_late(entry);
            if used && spare_young {
                young.add(entry);
                self.look_around(state, entry, &mut young);
            } else {
                cold.push(entry);
            }
        }
        if !young.is_empty() {
            let _lock = self.lock_region(first);
            let found = lru.regions.with(first, |region| lru.make_young(region, &young, |_| true));
            lru.counters.add(Counted::Promoted, found.unwrap_or(0));
            // If many are young, the next pass should scan the whole region.
            if is_dense(asked - cold.len() as u64, asked) {
                lru.filters.insert(lru.generations.max_seq(), number(first));
            }
        }
        cold
    }

    /// Clears the Accessed bits of an entry, and returns whether any was set.
    fn was_accessed(&self, state: &State, idle: &mut Idle, entry: Span<Gfn>) -> bool {
        let own = !self.take_accessed(entry).is_empty();
        own | state.listeners.young(idle, hvas_of(entry), Young::Clear)
    }

    /// Neighbours of an accessed page are probably accessed too. Only done without secondary MMUs: asking them
    /// about each neighbour costs more than it saves.
    fn look_around(&self, state: &State, entry: Span<Gfn>, young: &mut YoungPages) {
        if state.listeners.each().next().is_none() {
            let around = Span::sized(Gfn(entry.start.0 & !(BATCH - 1)), BATCH);
            young.add_all(&self.take_accessed(around.clamp(&region_of(entry.start))));
        }
    }

    /// Evicts these pages of one region, which are in order. If the swap is full the rest stays. Releases
    /// `state` before it stores anything.
    fn put_away(&self, lru: &Lru, state: Reading<'_>, idle: &mut Idle, pages: &[Gfn]) -> SwappedOut {
        let Some(&first) = pages.first() else { return SwappedOut::default() };
        let oldest = |mark: Mark| lru.generations.min_seq(mark.node, mark.kind);
        let marks: Vec<_> = pages.iter().map(|&page| lru.mark(page)).collect();
        let shadow = |mark: Mark| tiers::shadow(oldest(mark), mark.tier);
        let leaving = |(&page, mark): (&Gfn, &Option<Mark>)| Leaving {
            page,
            shadow: mark.map_or(Shadow::default(), shadow),
        };
        let leaving: Vec<_> = pages.iter().zip(&marks).map(leaving).collect();
        let out = self.swap_out(state, idle, &leaving);
        let gone = &out.gone;
        if let Some(seen) = &*lru.on_evict.read() {
            for &page in gone {
                seen(hva_of(page));
            }
        }
        let _lock = self.lock_region(first);
        for (&page, mark) in pages.iter().zip(marks) {
            let Some(mark) = mark else { continue };
            if !gone.contains(&page) {
                lru.pass_over(Span::sized(page, 1));
                continue;
            }
            lru.tiers.passed(mark.kind, mark.tier);
            if mark.kind == Kind::File {
                let then = Mark { seq: oldest(mark), ..mark };
                lru.regions.with(page, |region| region.set_gone(index(page), then));
            }
        }
        let failed = pages.len() - gone.len();
        lru.counters.add(Counted::Evicted, gone.len() as u64);
        lru.counters.add(Counted::StoreFailed, failed as u64);
        out
    }

    /// Returns those of these pages of one region whose tier may be evicted. Moves the others to the next
    /// generation.
    fn spare(&self, lru: &Lru, kind: Kind, pages: Vec<Gfn>) -> Vec<Gfn> {
        let highest = lru.tiers.highest_that_goes(kind);
        let Some(&first) = pages.first() else { return pages };
        let spared: Vec<Gfn> = pages
            .iter()
            .copied()
            .filter(|&page| lru.mark(page).is_some_and(|mark| mark.tier > highest))
            .collect();
        if spared.is_empty() {
            return pages;
        }
        let _lock = self.lock_region(first);
        for &page in &spared {
            lru.change(Span::sized(page, 1), |mark| {
                lru.tiers.passed(mark.kind, mark.tier);
                let oldest = lru.generations.min_seq(mark.node, mark.kind);
                Mark { seq: mark.seq.max(oldest + 1), tier: mark.tier.saturating_sub(1), ..mark }
            });
        }
        lru.counters.add(Counted::Protected, spared.len() as u64);
        pages.into_iter().filter(|page| !spared.contains(page)).collect()
    }

    /// Whether pages can be swapped out. A full swap counts too: it may get room without notice.
    pub(super) fn can_swap(&self) -> bool {
        self.swap.is_some()
    }
}

impl FamilyMember for AddressSpace {
    fn evict_shared(&self, idle: &mut Idle, shared: &[(Gfn, Pfn)]) {
        let (Some(lru), Some(&(first, _))) = (self.lru(), shared.first()) else { return };
        // `try_read`: two threads could otherwise wait for each other, each holding the lock of its own address
        // space.
        let Some(_together) = lru.reclaimers.try_read() else { return };
        let (settings, generations) = (lru.settings(), &lru.generations);
        if !self.evictable_kinds(settings.swappiness).contains(&Kind::Anon) {
            return;
        }
        let is_old = |page| {
            let aged = |mark: Mark| {
                mark.seq < generations.max_seq() && generations.age(mark.seq + 1) >= settings.min_ttl
            };
            settings.min_ttl.is_zero() || lru.mark(page).is_some_and(aged)
        };
        let lock = self.lock_region(first);
        let has = |&&(page, pfn): &&(Gfn, Pfn)| {
            let (level, entry) = self.map.find(page);
            let found = Pte::of(entry.load(), level).host_page(page, level);
            found.is_some_and(|found| found.pfn == pfn) && is_old(page)
        };
        let pages: Vec<Gfn> = shared.iter().filter(has).map(|&(page, _)| page).collect();
        drop(lock);
        self.evict_pages(lru, idle, Kind::Anon, &pages, true);
    }
}
