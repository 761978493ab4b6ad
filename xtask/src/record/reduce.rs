//! The reduction: a filter of a few pages that drops what a TLB would answer anyway.
//!
//! The filter remembers the last [`Filter::new`]`(n)` distinct pages **that were kept**, most recent first, and
//! what each kept access needed there: to read, to write (which includes reading), to execute. An access is dropped
//! when its page is among them with rights at least as strong; any other is kept, unchanged, and moves
//! its page to the front. An access across a border is judged by both of its pages.
//!
//! What follows from that:
//! - Kept accesses stand in the order in which the program made them, with their own offset and size.
//! - The first access to a page is kept, and so is the first of each kind: the order of first touches is exact.
//! - A page in steady use is kept again each time that `n` other pages have been kept, so hot pages stay hot.
//! - The filter's state is a function of the kept trace alone, so reducing twice changes nothing, and any
//!   TLB with true LRU of `n` entries or more that replays the kept trace would have answered each dropped access.

use slat_vcpu::trace::{Access, Kind};

const PAGE_SHIFT: u32 = 12;

/// What accesses need of a page, as bits. To write includes to read.
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

pub struct Filter {
    /// Most recently kept first.
    recent: Vec<(u64, Rights)>,
    capacity: usize,
}

impl Filter {
    /// Remembers `pages` pages.
    pub fn new(pages: usize) -> Self {
        Self { recent: Vec::with_capacity(pages + 1), capacity: pages }
    }

    /// Whether `access` belongs to the reduced trace. Accesses are to be asked about in order.
    pub fn keep(&mut self, access: Access) -> bool {
        let (pages, needed) = (pages(access), rights(access.kind));
        if pages.clone().all(|page| self.covers(page, needed)) {
            return false;
        }
        for page in pages {
            self.note(page, needed);
        }
        true
    }

    fn covers(&self, page: u64, needed: Rights) -> bool {
        self.recent.iter().any(|&(seen, rights)| seen == page && rights & needed == needed)
    }

    fn note(&mut self, page: u64, needed: Rights) {
        let before = match self.recent.iter().position(|&(seen, _)| seen == page) {
            Some(at) => self.recent.remove(at).1,
            None => 0,
        };
        self.recent.insert(0, (page, before | needed));
        self.recent.truncate(self.capacity);
    }
}

/// The pages of 4 KiB that `access` touches: one or two.
pub fn pages(access: Access) -> std::ops::RangeInclusive<u64> {
    access.addr >> PAGE_SHIFT..=(access.addr + u64::from(access.size) - 1) >> PAGE_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const PAGES: usize = 8;

    /// A program with hot pages, cold pages and accesses across borders.
    fn program() -> Vec<Access> {
        let mut state = 1u64;
        let mut random = move |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % limit
        };
        let kinds = [Kind::Fetch, Kind::Load, Kind::Store, Kind::Modify];
        (0..20_000)
            .map(|_| {
                let page = if random(4) == 0 { random(200) } else { random(10) };
                let kind = kinds[random(4) as usize];
                Access { addr: page << PAGE_SHIFT | random(4096), size: 1 + random(16) as u16, kind }
            })
            .collect()
    }

    fn reduce(all: &[Access]) -> Vec<Access> {
        let mut filter = Filter::new(PAGES);
        all.iter().copied().filter(|&access| filter.keep(access)).collect()
    }

    /// Pages, and whether they are written, in the order in which each is first needed so. A read of a page that was written
    /// before is the weaker kind: it may be dropped.
    fn first_touches(all: &[Access]) -> Vec<(u64, u8)> {
        let mut seen = HashSet::new();
        let touches =
            all.iter().flat_map(|&access| pages(access).map(move |page| (page, rights(access.kind))));
        let first = touches.filter(|&(page, rights)| {
            !(rights == READ && seen.contains(&(page, WRITE))) && seen.insert((page, rights))
        });
        first.collect()
    }

    #[test]
    fn the_order_of_first_touches_is_exact() {
        let all = program();
        let kept = reduce(&all);
        assert!(kept.len() < all.len() * 3 / 4, "{} of {} kept", kept.len(), all.len());
        assert_eq!(first_touches(&kept), first_touches(&all));
    }

    #[test]
    fn reducing_twice_changes_nothing() {
        let once = reduce(&program());
        assert_eq!(reduce(&once), once);
    }

    #[test]
    fn a_tlb_of_that_size_would_have_answered_what_is_dropped() {
        let (mut filter, mut tlb) = (Filter::new(PAGES), Vec::<u64>::new());
        for access in program() {
            let kept = filter.keep(access);
            for page in pages(access) {
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
    fn stronger_rights_are_kept_and_weaker_dropped() {
        let at = |kind| Access { addr: 0x5000, size: 4, kind };
        let all =
            [Kind::Load, Kind::Load, Kind::Store, Kind::Modify, Kind::Load, Kind::Fetch, Kind::Store].map(at);
        assert_eq!(reduce(&all), [Kind::Load, Kind::Store, Kind::Fetch].map(at));
    }

    #[test]
    fn an_access_across_a_border_needs_both_pages() {
        let load = |addr, size| Access { addr, size, kind: Kind::Load };
        let all = [load(0x1000, 8), load(0x1ffc, 8), load(0x2000, 8), load(0x1ffc, 8)];
        assert_eq!(reduce(&all), all[..2]);
    }
}
