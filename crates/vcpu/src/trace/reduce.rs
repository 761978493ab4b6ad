//! The reduction of a trace: a filter of a few pages drops accesses that a TLB would hit.
//!
//! The filter stores the last distinct pages **that were kept**, most recent first, with the rights that their
//! kept accesses needed: to read, to write (which includes reading), to execute. An access is dropped if its
//! page is stored with at least the rights that it needs. Any other access is kept, unchanged, and moves its
//! page to the front. An access that crosses a page border needs both pages.
//!
//! Consequences:
//! - Kept accesses are in program order, with their own offset and size.
//! - The first access to a page is kept, and the first of each kind: the order of first touches is exact.
//! - A page in steady use is kept again after that many other pages were kept, so hot pages stay hot.
//! - The filter's state depends on the kept trace only. So reducing twice changes nothing. A TLB with true LRU
//!   and at least as many entries, which replays the kept trace, would hit on each dropped access.

use super::{Access, Kind};

/// Rights that accesses need on a page, as bits. Writing includes reading.
type Rights = u8;
const READ: Rights = 1;
const WRITE: Rights = 2 | READ;
const EXECUTE: Rights = 4;

fn rights(kind: Kind) -> Rights {
    match kind {
        Kind::Fetch => EXECUTE,
        Kind::Load => READ,
        Kind::Store | Kind::Modify => WRITE,
    }
}

/// A filter for the accesses of a trace, in order. The bundled traces were reduced with 64 pages.
#[derive(Clone, Debug)]
pub struct Filter {
    /// Most recently kept first.
    recent: Vec<(u64, Rights)>,
    capacity: usize,
}

impl Filter {
    /// Creates a filter of `pages` pages.
    pub fn new(pages: usize) -> Self {
        Self { recent: Vec::with_capacity(pages + 1), capacity: pages }
    }

    /// Whether `access` belongs to the reduced trace. Call it for all accesses, in order.
    pub fn keep(&mut self, access: Access) -> bool {
        let (pages, needed) = (access.pages(), rights(access.kind));
        let covers =
            |page| self.recent.iter().any(|&(seen, rights)| seen == page && rights & needed == needed);
        if pages.clone().all(covers) {
            return false;
        }
        for page in pages {
            let before = self.recent.iter().position(|&(seen, _)| seen == page);
            let before = before.map_or(0, |at| self.recent.remove(at).1);
            self.recent.insert(0, (page, before | needed));
            self.recent.truncate(self.capacity);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const PAGES: usize = 8;

    /// A program with hot pages, cold pages, and accesses that cross borders.
    fn program() -> Vec<Access> {
        let mut random = fastrand::Rng::with_seed(1);
        let kinds = [Kind::Fetch, Kind::Load, Kind::Store, Kind::Modify];
        let access = |_| {
            let pages = if random.u8(..4) == 0 { 200 } else { 10 };
            let addr = random.u64(..pages) * 4096 + random.u64(..4096);
            Access { addr, size: random.u16(1..=16), kind: kinds[random.usize(..4)] }
        };
        (0..20_000).map(access).collect()
    }

    fn reduce(all: &[Access]) -> Vec<Access> {
        let mut filter = Filter::new(PAGES);
        all.iter().copied().filter(|&access| filter.keep(access)).collect()
    }

    /// Returns pages, and whether they are written, in the order in which each right is first needed. A read of
    /// a page that was written before is the weaker kind, and may be dropped.
    fn first_touches(all: &[Access]) -> Vec<(u64, u8)> {
        let mut seen = HashSet::new();
        let touches =
            all.iter().flat_map(|&access| access.pages().map(move |page| (page, rights(access.kind))));
        let is_first = |&(page, rights): &(u64, u8)| {
            !(rights == READ && seen.contains(&(page, WRITE))) && seen.insert((page, rights))
        };
        touches.filter(is_first).collect()
    }

    #[test]
    fn first_touches_keep_their_order_and_reducing_twice_changes_nothing() {
        let all = program();
        let kept = reduce(&all);
        assert!(kept.len() < all.len() * 3 / 4, "{} of {} kept", kept.len(), all.len());
        assert_eq!(first_touches(&kept), first_touches(&all));
        assert_eq!(reduce(&kept), kept);
    }

    #[test]
    fn a_tlb_of_that_size_hits_on_dropped_accesses() {
        let (mut filter, mut tlb) = (Filter::new(PAGES), Vec::<u64>::new());
        for access in program() {
            let kept = filter.keep(access);
            for page in access.pages() {
                if kept {
                    tlb.retain(|&held| held != page);
                    tlb.push(page);
                    tlb.drain(..tlb.len().saturating_sub(PAGES));
                } else {
                    assert!(tlb.contains(&page));
                }
            }
        }
    }

    #[test]
    fn stronger_rights_are_kept_weaker_dropped_and_a_border_needs_both_pages() {
        use Kind::{Fetch, Load, Modify, Store};
        let at = |kind| Access { addr: 0x5000, size: 4, kind };
        let all = [Load, Load, Store, Modify, Load, Fetch, Store].map(at);
        assert_eq!(reduce(&all), [Load, Store, Fetch].map(at));
        let load = |addr, size| Access { addr, size, kind: Load };
        let all = [load(0x1000, 8), load(0x1ffc, 8), load(0x2000, 8), load(0x1ffc, 8)];
        assert_eq!(reduce(&all), all[..2]);
    }
}
