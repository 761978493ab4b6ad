//! The LRU's marks of the pages of an address space: a word for each, in regions of 2 MiB.
//!
//! ```text
//! 63 .......... 16 | 15 .......... 8 | 7 .. 4 |  3   |  2 1  |  0
//! generation + 1   | node            |   –    | gone | tier  | file page        0: no page is present
//! ```
//! **Gone** marks an evicted page of a file, with the word that it had. Its page-table entry is empty, while
//! the entry of an anonymous page keeps a shadow ([`super::tiers`]).
//!
//! A region is created with its first page, and changes under its page lock. There are **no lists**. A list
//! would keep the order of pages within a generation. But it would cost a lock shared by all faults of a node,
//! two pointers for each page, and cache misses to follow them. Here a fault stores one word of its own region.
//! Eviction finds the oldest pages by reading consecutive words, about 64 per microsecond, once around per
//! generation.

use super::generations::Kind;
use super::young::YoungPages;
pub(crate) use super::young::{PAGES, index};
use crate::nodes::Node;
use crate::shards::Shards;
use parking_lot::RwLock;
use slat::{Gfn, Level, Span};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The LRU's mark of a present page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    /// Its generation when it was last looked at. A number below the oldest counts as the oldest.
    pub(crate) seq: u64,
    pub(crate) node: Node,
    pub(crate) kind: Kind,
    /// How often it was found accessed, up to 3.
    pub(crate) tier: u8,
}

impl Mark {
    const TIER: u64 = 0b110;
    const GONE: u64 = 1 << 3;

    /// Whether both have the same generation, node and kind.
    pub(crate) fn is_counted_with(self, other: Self) -> bool {
        Self { tier: 0, ..self } == Self { tier: 0, ..other }
    }

    fn word(self) -> u64 {
        let tier = u64::from(self.tier) << 1 & Self::TIER;
        (self.seq + 1) << 16 | u64::from(self.node.0) << 8 | tier | self.kind as u64
    }

    fn of(word: u64) -> Option<Self> {
        if word & Self::GONE == 0 { Self::decode(word) } else { None }
    }

    fn decode(word: u64) -> Option<Self> {
        Some(Self {
            seq: (word >> 16).checked_sub(1)?,
            node: Node((word >> 8) as u8),
            kind: Kind::ALL[(word & 1) as usize],
            tier: ((word & Self::TIER) >> 1) as u8,
        })
    }
}

/// The words of a 2 MiB region. They change under its page lock; other threads may read them as a hint.
#[derive(Debug)]
pub(crate) struct Region {
    // ORDER(marks): Relaxed, all of them: the page lock orders the threads that write them.
    words: [AtomicU64; PAGES],
    present: AtomicU32,
    /// Number of the last pass that scanned it; 0 if none has.
    pub(crate) seen: AtomicU64,
    /// Pages that a pass found accessed while another thread held the page lock. The next holder of that lock
    /// makes them young.
    late: [AtomicU64; PAGES / 64],
}

impl Region {
    fn new() -> Self {
        Self {
            words: [const { AtomicU64::new(0) }; PAGES],
            present: AtomicU32::new(0),
            seen: AtomicU64::new(0),
            late: [const { AtomicU64::new(0) }; PAGES / 64],
        }
    }

    /// Records accessed pages without the page lock; they are not marked young yet.
    pub(crate) fn add_late(&self, young: &YoungPages) {
        for (late, &bits) in self.late.iter().zip(young.words()) {
            late.fetch_or(bits, Relaxed);
        }
    }

    /// Takes those of `asked` that are recorded and not marked young yet. The caller marks them.
    pub(crate) fn take_late(&self, asked: &YoungPages) -> YoungPages {
        let take = |(late, &asked): (&AtomicU64, &u64)| {
            // Mostly there are none, and a load does not take the cache line away from others.
            if late.load(Relaxed) & asked == 0 { 0 } else { late.fetch_and(!asked, Relaxed) & asked }
        };
        let mut words = self.late.iter().zip(asked.words()).map(take);
        YoungPages::of(std::array::from_fn(|_| words.next().unwrap_or(0)))
    }

    pub(crate) fn get(&self, index: usize) -> Option<Mark> {
        Mark::of(self.words[index].load(Relaxed))
    }

    /// Sets the mark of a page, and returns the old one.
    pub(crate) fn set(&self, index: usize, mark: Option<Mark>) -> Option<Mark> {
        let new = mark.map_or(0, Mark::word);
        let old = Mark::of(self.words[index].load(Relaxed));
        self.words[index].store(new, Relaxed);
        let present = self.present();
        match (&old, &mark) {
            (None, Some(_)) => self.present.store(present as u32 + 1, Relaxed),
            (Some(_), None) => self.present.store(present as u32 - 1, Relaxed),
            _ => {}
        }
        old
    }

    /// Changes the mark of a present page.
    pub(crate) fn update(&self, index: usize, mark: Mark) {
        self.words[index].store(mark.word(), Relaxed);
    }

    /// Records the mark of an evicted page. Does nothing if a page is present there again.
    pub(crate) fn set_gone(&self, index: usize, mark: Mark) {
        if self.words[index].load(Relaxed) == 0 {
            self.words[index].store(mark.word() | Mark::GONE, Relaxed);
        }
    }

    /// Returns the mark of the page that was evicted from there.
    pub(crate) fn gone(&self, index: usize) -> Option<Mark> {
        let word = self.words[index].load(Relaxed);
        if word & Mark::GONE == 0 { None } else { Mark::decode(word) }
    }

    /// Forgets evicted pages that cannot come back.
    pub(crate) fn forget_gone(&self, indices: Range<usize>) {
        for word in &self.words[indices] {
            if word.load(Relaxed) & Mark::GONE != 0 {
                word.store(0, Relaxed);
            }
        }
    }

    /// Returns the number of pages present.
    pub(crate) fn present(&self) -> u64 {
        u64::from(self.present.load(Relaxed))
    }
}

type Map = BTreeMap<u64, Arc<Region>>;

/// The regions that have pages: several equal maps, one for each shard of threads. A fault reads its own
/// shard's map, so faults share no lock. Adding or removing a region locks and changes all maps.
#[derive(Debug)]
pub(crate) struct Regions(Shards<RwLock<Map>>);

impl Regions {
    pub(crate) fn new() -> Self {
        Self(Shards::new())
    }

    /// Runs `with` on the region of a page, if it exists.
    pub(crate) fn with<T>(&self, page: Gfn, with: impl FnOnce(&Region) -> T) -> Option<T> {
        self.0.mine().read().get(&number(page)).map(|region| with(region))
    }

    /// Makes the same change to all maps.
    fn change(&self, change: impl Fn(&mut Map)) {
        let mut all: Vec<_> = self.0.iter().map(RwLock::write).collect();
        for map in &mut all {
            change(map);
        }
    }

    /// Like `with`, but creates the region if needed. The caller holds its page lock.
    pub(crate) fn with_new<T>(&self, page: Gfn, with: impl Fn(&Region) -> T) -> T {
        if let Some(done) = self.with(page, &with) {
            return done;
        }
        let fresh = Arc::new(Region::new());
        // The page lock keeps other threads from adding the same region.
        self.change(|map| drop(map.insert(number(page), fresh.clone())));
        with(&fresh)
    }

    /// Returns the first region that begins at `from` or later, with its first page.
    pub(crate) fn next(&self, from: Gfn) -> Option<(Gfn, Arc<Region>)> {
        let from = number(from + (Level::M2.pages() - 1));
        let regions = self.0.mine().read();
        let (&number, region) = regions.range(from..).next()?;
        Some((first_page(number), region.clone()))
    }

    /// Removes a region without pages. The caller holds its page lock.
    pub(crate) fn forget_empty(&self, page: Gfn) {
        if self.with(page, Region::present) == Some(0) {
            self.change(|map| drop(map.remove(&number(page))));
        }
    }
}

/// Returns the number of the region around a page.
pub(crate) fn number(page: Gfn) -> u64 {
    page.0 >> Level::M2.shift()
}

fn first_page(number: u64) -> Gfn {
    Gfn(number << Level::M2.shift())
}

/// Returns all pages of the region around `page`.
pub(crate) fn region_of(page: Gfn) -> Span<Gfn> {
    Span::sized(page.base(Level::M2), Level::M2.pages())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_survives_its_word() {
        for (seq, node, kind, tier) in
            [(0, 0, Kind::Anon, 0), (1 << 40, 254, Kind::File, 3), (7, 3, Kind::Anon, 2)]
        {
            let mark = Mark { seq, node: Node(node), kind, tier };
            assert_eq!(Mark::of(mark.word()), Some(mark));
        }
        assert_eq!(Mark::of(0), None);
        let (region, mark) = (Region::new(), Mark { seq: 5, node: Node(1), kind: Kind::File, tier: 2 });
        region.set_gone(7, mark);
        assert_eq!((region.get(7), region.gone(7), region.present()), (None, Some(mark), 0));
        assert_eq!(region.set(7, Some(mark)), None);
        region.set_gone(7, Mark { seq: 6, ..mark });
        assert_eq!((region.get(7), region.gone(7), region.present()), (Some(mark), None, 1));
    }

    #[test]
    fn a_late_page_is_taken_once() {
        let region = Region::new();
        let pages = |first, len| {
            let mut pages = YoungPages::default();
            pages.add(Span::sized(Gfn(first), len));
            pages
        };
        let take = |asked: &YoungPages| region.take_late(asked).indices().collect::<Vec<_>>();
        region.add_late(&pages(62, 4));
        region.add_late(&pages(511, 1));
        assert_eq!(take(&pages(64, 1)), [64]);
        assert_eq!(take(&pages(0, 512)), [62, 63, 65, 511]);
        assert!(take(&pages(0, 512)).is_empty());
    }

    #[test]
    fn regions_are_found_in_order_until_they_are_empty() {
        let regions = Regions::new();
        let mark = Mark { seq: 3, node: Node(0), kind: Kind::Anon, tier: 0 };
        for page in [5, 6, 1024] {
            regions.with_new(Gfn(page), |region| region.set(index(Gfn(page)), Some(mark)));
        }
        let from = |page| regions.next(Gfn(page)).map(|(first, region)| (first.0, region.present()));
        assert_eq!([0, 1, 1024, 1025].map(from), [Some((0, 2)), Some((1024, 1)), Some((1024, 1)), None]);
        regions.with(Gfn(1024), |region| region.set(0, None));
        regions.forget_empty(Gfn(1024));
        regions.forget_empty(Gfn(0));
        assert_eq!([0, 1].map(from), [Some((0, 2)), None]);
    }
}
