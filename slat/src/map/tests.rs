//! Tests of maps: places, ranges, splits, and misuse by safe code.

use super::*;
use crate::table::format::{MemoryType, Perms};
use crate::table::formats::{Arm64L48, Arm64NoAd, Ept4, Ept4NoAd, Npt4, Pae, Sv39x4NoAd, Sv57x4, X64};
use crate::table::memory::{CHUNK_PAGES, Heap};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::ptr::NonNull;
use std::sync::Mutex;

fn leaf(pfn: u64, level: Level) -> crate::table::Word {
    let leaf = Leaf {
        pfn: Pfn(pfn),
        perms: Perms::RWX,
        memory: MemoryType::WriteBack,
        host_writable: true,
        accessed: false,
        dirty: false,
    };
    X64::leaf(&leaf, level)
}

#[test]
fn a_range_visits_each_entry_once_and_in_order() {
    let map = Map::<X64, _>::new(Heap).unwrap();
    let pages = [0u64, 1, 511, 512, 513, 1 << 18, (1 << 18) + 1, (1 << 27) + 5, (1 << 36) - 1];
    for &page in &pages {
        map.reach(Gfn(page), Level::K4).unwrap().store(leaf(page + 100, Level::K4));
    }
    let mut seen = Vec::new();
    let mut end = 0;
    map.for_each(Span::new(Gfn(1), Gfn((1 << 36) - 1)), |gfns, place| {
        assert!(gfns.start.0 >= end || seen.is_empty(), "in order, no overlap");
        end = gfns.end.0;
        if X64::is_present(place.load()) {
            assert_eq!(place.level(), Level::K4);
            seen.push(gfns.start.0);
        }
    });
    assert_eq!(seen, pages[1..8]);
    assert_eq!(end, (1 << 36) - 1, "gaps are visited too, up to the end of the range");
}

#[test]
fn a_split_shows_the_same_translation_before_and_after() {
    let map = Map::<X64, _>::new(Heap).unwrap();
    let place = map.reach(Gfn(1024), Level::M2).unwrap();
    let large = leaf(4096, Level::M2);
    place.store(large);
    assert!(place.split(large, |i| leaf(4096 + i, Level::K4)).unwrap());
    let small = map.find(Gfn(1024 + 77)).unwrap();
    assert_eq!((small.level(), X64::pfn(small.load())), (Level::K4, Pfn(4096 + 77)));
    assert!(!place.split(large, |i| leaf(i, Level::K4)).unwrap(), "the entry has changed");
    assert!(!place.split(place.load(), |i| leaf(i, Level::K4)).unwrap(), "a link is no leaf");
}

type Race = Box<dyn FnOnce() + Send>;

/// Memory in which another thread is faster: the prepared action runs when a thread needs a page for a table.
#[derive(Clone, Default)]
struct Racing(Arc<Mutex<Option<Race>>>);

// SAFETY: the heap's own functions.
unsafe impl TableMemory for Racing {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        let race = self.0.lock().unwrap().take();
        if let Some(race) = race {
            race();
        }
        Heap.lend(pages)
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        // SAFETY: required of the caller.
        unsafe { Heap.take_back(first, pfn, pages) }
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        Heap.at(pfn)
    }
}

/// Two neighbours link the same tables, several levels of them. The later thread must still reach its own entry.
#[test]
fn two_threads_that_link_the_same_tables_both_reach_their_pages() {
    let racing = Racing::default();
    let map = Arc::new(Map::<X64, _>::new(racing.clone()).unwrap());
    let _all = map.reserve(CHUNK_PAGES - 2).unwrap();
    let faster = map.clone();
    *racing.0.lock().unwrap() = Some(Box::new(move || {
        faster.reach(Gfn(512), Level::K4).unwrap().store(leaf(5, Level::K4));
    }));
    map.reach(Gfn(0), Level::K4).unwrap().store(leaf(6, Level::K4));
    for (page, pfn) in [(512, 5), (0, 6)] {
        let place = map.find(Gfn(page)).unwrap();
        assert_eq!((place.level(), X64::pfn(place.load())), (Level::K4, Pfn(pfn)));
    }
}

/// Memory with one chunk: 63 table pages.
#[derive(Default)]
struct Small(Mutex<bool>);

// SAFETY: the heap's own functions; lends once.
unsafe impl TableMemory for Small {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        (!core::mem::replace(&mut *self.0.lock().unwrap(), true)).then(|| Heap.lend(pages))?
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        // SAFETY: required of the caller.
        unsafe { Heap.take_back(first, pfn, pages) }
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        Heap.at(pfn)
    }
}

/// Returns the number of pages that are not linked after the memory has run out.
fn lost_pages() -> u64 {
    let map = Map::<X64, _>::new(Small::default()).unwrap();
    let linked = (0..58).filter(|table| map.reach(Gfn(table * 512), Level::K4).is_ok()).count() as u64;
    assert!(map.reach(Gfn(1 << 27), Level::K4).is_err(), "three pages are needed, two are left");
    map.table_bytes() / crate::addr::PAGE_SIZE - linked - 3
}

#[test]
fn a_reach_that_fails_gives_back_the_pages_that_it_got() {
    assert_eq!(lost_pages(), 0);
}

/// Returns whether a look-up follows a forged link. The link leads to a table of another map, so it does no harm.
fn follows_a_forged_link() -> bool {
    let [map, victim] = [(); 2].map(|()| Map::<X64, _>::new(Heap).unwrap());
    let word = leaf(9, Level::K4);
    victim.reach(Gfn(0), Level::K4).unwrap().store(word);
    // SAFETY: nothing is unlinked from a map.
    let table = unsafe { victim.radix().descend(&Heap, Gfn(0)) }.node.pfn(&Heap);
    let place = map.reach(Gfn(0), Level::M2).unwrap();
    let store = || place.store(X64::link(table, Level::M2));
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(store));
    map.find(Gfn(0)).unwrap().load() == word
}

#[test]
fn a_link_that_was_forged_is_never_followed() {
    assert!(!follows_a_forged_link());
}

fn plain(pfn: u64, perms: Perms) -> Leaf {
    Leaf { perms, ..Leaf::plain(Pfn(pfn)) }
}

#[test]
fn ranges_are_mapped_in_the_largest_pages_that_fit() {
    let map = Map::<X64, _>::new(Heap).unwrap();
    let sizes = |from: u64, to: u64| {
        let mut sizes = Vec::new();
        map.for_each(Span::new(Gfn(from), Gfn(to)), |_, place| {
            if X64::is_present(place.load()) {
                sizes.push(place.level());
            }
        });
        sizes
    };
    map.map(Span::new(Gfn(510), Gfn(1026)), &plain(0x1_0000 - 2, Perms::RWX)).unwrap();
    assert_eq!(sizes(0, 2048), [Level::K4, Level::K4, Level::M2, Level::K4, Level::K4]);
    // Not congruent.
    map.map(Span::sized(Gfn(2048), 512), &plain(1, Perms::RX)).unwrap();
    assert_eq!(sizes(2048, 2560).len(), 512);
    map.map(Span::sized(Gfn(1 << 18), 1 << 18), &plain(1 << 18, Perms::RWX)).unwrap();
    assert_eq!(sizes(1 << 18, 1 << 19), [Level::G1]);
    let beyond = map.map(Span::new(Gfn((1 << 36) - 1), Gfn((1 << 36) + 1)), &plain(0, Perms::RX));
    assert_eq!(beyond, Err(ReachError::Beyond(36)));
    assert!(!X64::is_present(map.find(Gfn((1 << 36) - 1)).unwrap().load()), "nothing of it");
}

/// A page of a list that a map is compared with: its frame, permissions, and whether it is accessed.
type Listed = Option<(u64, Perms, bool)>;

/// Maps and unmaps random ranges of pages of all sizes, accessed or not, and compares the map with a list, page by page.
fn agrees_with_a_list<F: Format>(seed: u64) {
    const PAGES: u64 = 3 * 512;
    /// Pages of the last range, which is 1 GiB if the format has such pages, with one of them in so many checked.
    const GIB: Span<Gfn> = Span::new(Gfn(1 << 18), Gfn(2 << 18));
    let (mut random, map) = (fastrand::Rng::with_seed(seed), Map::<F, _>::new(Heap).unwrap());
    let found = |page: u64| {
        let place = map.find(Gfn(page)).unwrap();
        place.leaf().map(|leaf| (leaf.pfn.0 + page % place.level().pages(), leaf.perms, leaf.accessed))
    };
    let mut expected: Vec<Listed> = vec![None; PAGES as usize];
    for round in 0..if cfg!(miri) { 10 } else { 200 } {
        let large = random.bool();
        let (from, len) =
            if large { (512 * random.u64(..3), 512) } else { (random.u64(..PAGES), random.u64(1..40)) };
        let range = Span::new(Gfn(from), Gfn((from + len).min(PAGES)));
        let listed = &mut expected[range.start.0 as usize..range.end.0 as usize];
        let there = listed.iter().flatten().count() as u64;
        let replaced = if random.u8(..3) == 0 {
            listed.fill(None);
            map.unmap(range).unwrap()
        } else {
            let perms = if random.bool() { Perms::RWX } else { Perms::RX };
            let (accessed, dirty) = (random.bool(), random.bool());
            let pfn = if large { 512 * random.u64(1..100) } else { random.u64(1..100_000) };
            listed.iter_mut().zip(pfn..).for_each(|(page, pfn)| *page = Some((pfn, perms, accessed)));
            map.map(range, &Leaf { accessed, dirty: dirty && accessed, ..plain(pfn, perms) }).unwrap()
        };
        assert_eq!(replaced, there, "{} round {round}: what was there is to be flushed", F::NAME);
        let all: Vec<Listed> = (0..PAGES).map(found).collect();
        assert_eq!(all, expected, "{} round {round}", F::NAME);
    }
    // The largest page, split by the unmapping of one page, and by the mapping of another.
    for accessed in [true, false] {
        map.unmap(GIB).unwrap();
        let whole = Leaf { accessed, dirty: false, ..plain(GIB.start.0, Perms::RWX) };
        assert_eq!(map.map(GIB, &whole), Ok(0));
        let (hole, other) = (GIB.start + 777, GIB.start + 100_000);
        assert_eq!(map.unmap(Span::sized(hole, 1)), Ok(1), "{}", F::NAME);
        assert_eq!(map.map(Span::sized(other, 1), &plain(5, Perms::RX)), Ok(1), "{}", F::NAME);
        for page in (GIB.start.0..GIB.end.0).step_by(509).chain([hole.0 + 1, hole.0, other.0, other.0 - 1]) {
            let expected = match Gfn(page) {
                page if page == hole => None,
                page if page == other => Some((5, Perms::RX, true)),
                _ => Some((page, Perms::RWX, accessed)),
            };
            assert_eq!(found(page), expected, "{} {page:#x}", F::NAME);
        }
    }
}

#[test]
fn mapping_and_unmapping_agree_with_a_list() {
    agrees_with_a_list::<X64>(3);
    agrees_with_a_list::<Npt4>(4);
    agrees_with_a_list::<Ept4>(5);
    agrees_with_a_list::<Pae>(6);
    agrees_with_a_list::<Arm64L48>(7);
    agrees_with_a_list::<Sv57x4>(8);
}

#[test]
fn mapping_and_unmapping_agree_with_a_list_in_formats_without_a_and_d() {
    agrees_with_a_list::<Ept4NoAd>(9);
    agrees_with_a_list::<Arm64NoAd>(10);
    agrees_with_a_list::<Sv39x4NoAd>(11);
}

#[test]
fn a_part_of_a_large_absent_word_is_mapped_beside_the_word() {
    let map = Map::<X64, _>::new(Heap).unwrap();
    let absent = Word::mmio(Version(7));
    map.reach(Gfn(512), Level::M2).unwrap().store(absent);
    assert_eq!(map.unmap(Span::sized(Gfn(514), 1)), Ok(0));
    assert_eq!(map.find(Gfn(514)).unwrap().load(), absent, "no leaf is there");
    assert_eq!(map.map(Span::sized(Gfn(513), 1), &plain(9, Perms::RX)), Ok(0));
    assert_eq!(map.find(Gfn(513)).unwrap().leaf().map(|leaf| leaf.pfn), Some(Pfn(9)));
    assert_eq!(map.find(Gfn(514)).unwrap().load(), absent);
}

#[test]
fn frames_beyond_the_format_are_refused() {
    let map = Map::<X64, _>::new(Heap).unwrap();
    let last = X64::pfn(Word(X64::ADDRESS));
    let frame = |pfn| Leaf::plain(pfn);
    assert_eq!(map.map(Span::sized(Gfn(0), 1), &frame(last)), Ok(0));
    for (pages, pfn) in [(2, last), (1, last + 1), (1, Pfn(u64::MAX)), (4, Pfn(u64::MAX - 2))] {
        assert_eq!(map.map(Span::sized(Gfn(0), pages), &frame(pfn)), Err(ReachError::Frame(last)));
    }
    assert_eq!(X64::pfn(map.find(Gfn(0)).unwrap().load()), last);
    assert_eq!(map.map(Span::sized(Gfn(9), 0), &frame(last)), Ok(0));
}
