//! Aging: a pass over all regions, after which a new generation begins.
//!
//! ```text
//! for each region      new, or dense in the last pass; every region if the pass is forced
//!   Accessed bits of the primary table, and of each secondary MMU that answers in bulk   no lock, no flush
//!   page lock: accessed pages move to the youngest generation     lock taken? its next holder moves them
//! max_seq + 1          pages that come from here on are younger
//! forget               flushes each secondary MMU that was asked, soon: a cached translation hides the next access
//! ```
//! When the pass ends, young pages are in the last generation but one, as if a fault had put them there just
//! before. One thread makes a pass; others wait for it and find it done.

use crate::lru::bloom::is_dense;
use crate::lru::generations::{Kind, MAX_GENS, MIN_GENS};
use crate::lru::region::{Mark, Region, number, region_of};
use crate::lru::stats::Counted;
use crate::lru::young::YoungPages;
use crate::lru::{Lru, LruError};
use crate::nodes::Node;
use crate::pages::hvas_of;
use crate::space::AddressSpace;
use slat::{Gfn, Idle, Level, Span};
use std::sync::atomic::Ordering::Relaxed;

impl AddressSpace {
    /// Begins a new generation; pages accessed since the last one stay in the one before it. `seq` is the
    /// youngest generation that the caller knows of. `can_swap` includes anonymous pages; `force_scan` includes
    /// regions that are not dense. Returns true if it made a pass, false if another thread has made it
    /// meanwhile. May sleep.
    ///
    /// # Errors
    /// [`LruError::Invalid`] if there is no generation `seq` yet; [`LruError::OutOfRange`] if the number of
    /// generations is at its maximum and the pass is not forced. A forced pass merges the oldest two.
    pub fn age(
        &self,
        idle: &mut Idle,
        node: Node,
        seq: u64,
        can_swap: bool,
        force_scan: bool,
    ) -> Result<bool, LruError> {
        let lru = self.lru_of(node)?;
        let (max, kind) = (lru.generations.max_seq(), if can_swap { Kind::Anon } else { Kind::File });
        if seq > max {
            return Err(LruError::Invalid);
        }
        let room = max + 1 - lru.generations.min_seq(node, kind) < MAX_GENS;
        if seq == max && !room && !force_scan {
            return Err(LruError::OutOfRange);
        }
        self.make_pass(lru, idle, seq, can_swap, force_scan)
    }

    /// Makes the pass that ends generation `seq`, unless another thread has made it.
    pub(super) fn make_pass(
        &self,
        lru: &Lru,
        idle: &mut Idle,
        seq: u64,
        can_swap: bool,
        force: bool,
    ) -> Result<bool, LruError> {
        let _walk = lru.walker.lock();
        if lru.generations.max_seq() != seq {
            return Ok(false);
        }
        let settings = lru.settings();
        lru.filters.clear(seq + 1);
        let mut walked = Span::sized(Gfn(0), 0);
        let mut at = Gfn(0);
        while settings.walk_pages
            && let Some((first, region)) = lru.regions.next(at)
        {
            at = first + Level::M2.pages();
            let new = region.seen.load(Relaxed) == 0;
            if !force && !new && !lru.filters.contains(seq, number(first)) {
                lru.counters.add(Counted::RegionsSkipped, 1);
                continue;
            }
            if self.state.exited() {
                return Err(LruError::Interrupted);
            }
            let state = self.state.read();
            region.seen.store(seq, Relaxed);
            let mut young = self.take_accessed(region_of(first));
            if settings.walk_secondary {
                for mmu in state.listeners.each().filter(|mmu| mmu.ages()) {
                    let hvas = hvas_of(region_of(first));
                    mmu.age(idle, hvas, &mut |accessed| young.add_secondary(accessed));
                }
            }
            lru.counters.add(Counted::RegionsWalked, 1);
            young.add_all(&region.take_late(&YoungPages::ALL));
            // A region without young pages costs no lock, and the pass does not wait for one.
            if !young.is_empty() || region.present() == 0 {
                if let Some(_lock) = self.try_lock_region(first) {
                    let found = lru.make_young(&region, &young, |mark| can_swap || mark.kind == Kind::File);
                    lru.counters.add(Counted::Young, found);
                    if is_dense(found, region.present()) {
                        lru.filters.insert(seq + 1, number(first));
                    }
                    lru.regions.forget_empty(first);
                } else {
                    region.add_late(&young);
                    lru.filters.insert(seq + 1, number(first));
                }
            }
            walked = if walked.is_empty() { region_of(first) } else { Span::new(walked.start, at) };
        }
        lru.generations.begin_next();
        lru.charge.begin();
        lru.counters.add(Counted::Passes, 1);
        if settings.flush && settings.walk_secondary && !walked.is_empty() {
            self.forget_in_tlbs(idle, walked);
        }
        Ok(true)
    }

    /// Returns which of these pages, all of one region, were accessed through the primary table, and clears
    /// their Accessed bits.
    pub(super) fn take_accessed(&self, pages: Span<Gfn>) -> YoungPages {
        let mut young = YoungPages::default();
        self.map.age(pages, |accessed| young.add_own(accessed));
        young
    }

    fn forget_in_tlbs(&self, idle: &mut Idle, pages: Span<Gfn>) {
        let state = self.state.read();
        for mmu in state.listeners.each().filter(|mmu| mmu.ages()) {
            mmu.forget(idle, hvas_of(pages));
        }
    }
}

impl Lru {
    /// Whether a pass should come before eviction on this node, as the kernel decides. It should if only two
    /// generations are left; or if three are left, and young pages are more than half or old pages fewer than a
    /// quarter.
    pub(super) fn should_age(&self, node: Node, kinds: &[Kind]) -> bool {
        let generations = &self.generations;
        let max = generations.max_seq();
        let Some(min) = kinds.iter().map(|&kind| generations.min_seq(node, kind)).min() else { return false };
        if min + MIN_GENS > max {
            return true;
        }
        if min + MIN_GENS < max {
            return false;
        }
        let pages = |seq| kinds.iter().map(|&kind| generations.pages(node, kind, seq)).sum::<u64>();
        let (young, old) = (pages(max), pages(max - MIN_GENS));
        let total = young + old + pages(max - 1);
        young * MIN_GENS > total || old * (MIN_GENS + 2) < total
    }

    /// Moves those of these pages that are present and pass `which` to the youngest generation; returns how
    /// many. The caller holds the page lock.
    pub(super) fn make_young(
        &self,
        region: &Region,
        young: &YoungPages,
        which: impl Fn(&Mark) -> bool,
    ) -> u64 {
        let mut counters = self.generations.counters();
        let seq = counters.max_seq();
        let (mut found, mut run) = (0, 0);
        let mut last: Option<Mark> = None;
        let mut count = |mark: Mark, pages: i64| {
            counters.add(mark.node, mark.kind, mark.seq, -pages);
            counters.add(mark.node, mark.kind, seq, pages);
        };
        for index in young.indices() {
            let Some(mark) = region.get(index).filter(&which) else { continue };
            region.update(index, Mark { seq, tier: (mark.tier + 1).min(3), ..mark });
            found += 1;
            // Neighbours mostly have equal marks, so runs are counted together.
            if let Some(last) = last.filter(|&last| !last.is_counted_with(mark)) {
                count(last, std::mem::take(&mut run));
            }
            (last, run) = (Some(mark), run + 1);
        }
        if let Some(last) = last {
            count(last, run);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lru::LruSettings;

    #[test]
    fn a_pass_is_due_as_in_the_kernel() {
        // Number of pages from the oldest generation to the youngest.
        let due = |pages: &[i64]| {
            let lru = Lru::new(LruSettings::default(), None, 1);
            let first = lru.generations.max_seq() + 1 - pages.len() as u64;
            for (seq, &pages) in (first..).zip(pages) {
                lru.generations.counters().add(Node(0), Kind::Anon, seq, pages);
            }
            lru.generations.pass_by_empty(Node(0), false);
            lru.should_age(Node(0), &[Kind::Anon])
        };
        assert!(due(&[7, 9]), "two generations: none can be evicted");
        assert!(due(&[0, 0, 7, 9]), "empty generations do not count");
        assert!(!due(&[1, 0, 0, 9]), "four generations: enough pages to evict first");
        assert!(!due(&[30, 40, 30]), "three generations of about the same size");
        assert!(due(&[25, 24, 51]), "most are young");
        assert!(due(&[24, 26, 50]), "few are old");
        assert!(!due(&[25, 25, 50]));
    }
}
