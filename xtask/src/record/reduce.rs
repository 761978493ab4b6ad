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

/// What an access needs of its page, as bits.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Rights(u8);

impl Rights {
    const READ: Self = Self(1);
    const WRITE: Self = Self(2 | Self::READ.0);
    const EXECUTE: Self = Self(4);

    fn of(kind: Kind) -> Self {
        match kind {
            Kind::Fetch => Self::EXECUTE,
            Kind::Load => Self::READ,
            Kind::Store | Kind::Modify => Self::WRITE,
        }
    }

    fn covers(self, needed: Self) -> bool {
        self.0 & needed.0 == needed.0
    }
}

/// See the module's header.
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
        let (pages, needed) = (pages(access), Rights::of(access.kind));
        if pages.clone().all(|page| self.covers(page, needed)) {
            return false;
        }
        for page in pages {
            self.note(page, needed);
        }
        true
    }

    fn covers(&self, page: u64, needed: Rights) -> bool {
        self.recent.iter().any(|&(seen, rights)| seen == page && rights.covers(needed))
    }

    fn note(&mut self, page: u64, needed: Rights) {
        let before = match self.recent.iter().position(|&(seen, _)| seen == page) {
            Some(at) => self.recent.remove(at).1,
            None => Rights(0),
        };
        self.recent.insert(0, (page, Rights(before.0 | needed.0)));
        self.recent.truncate(self.capacity);
    }
}

/// The pages of 4 KiB that `access` touches: one or two.
pub fn pages(access: Access) -> std::ops::RangeInclusive<u64> {
    access.addr >> PAGE_SHIFT..=(access.addr + u64::from(access.size) - 1) >> PAGE_SHIFT
}
