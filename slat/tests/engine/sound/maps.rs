//! `Map` and `Format`: every table that a walk reaches belongs to the map.

use super::common::{page, vm};
use crate::common::own::Own;
use slat::map::{Map, Place, ReachError};
use slat::table::{Heap, TableMemory, Version, Word, formats::*};
use slat::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

fn leaf_of<F: Format>(pfn: u64, perms: Perms, level: Level) -> Word {
    F::leaf(
        &Leaf {
            pfn: Pfn(pfn),
            perms,
            memory: MemoryType::WriteBack,
            host_writable: true,
            accessed: true,
            dirty: false,
        },
        level,
    )
}

fn leaf(pfn: u64, level: Level) -> Word {
    leaf_of::<X64>(pfn, Perms::RWX, level)
}

/// Whether the place refuses such a word, and is unchanged.
fn refuses<F: Format>(place: Place<'_, F, Heap>, word: Word) -> bool {
    let was = place.load();
    catch_unwind(AssertUnwindSafe(|| place.store(word))).is_err() && place.load() == was
}

#[test]
fn a_place_refuses_a_word_that_links_a_table() {
    let victim = vec![7_u64; 1024];
    let frame = Pfn((victim.as_ptr() as u64).next_multiple_of(4096) >> 12);
    let map = Map::<X64, _>::new(Heap).unwrap();
    for level in [Level::M2, Level::G1] {
        let place = map.reach(Gfn(1 << 30), level).unwrap();
        assert!(refuses(place, X64::link(frame, level)), "a forged link");
        assert!(refuses(place, leaf(frame.0, Level::K4)), "a small leaf is a link where it stands");
    }
    map.reach(Gfn(1 << 30), Level::K4).unwrap().store(leaf(9, Level::K4));
    assert!(victim.iter().all(|&word| word == 7));
}

#[test]
fn a_leaf_without_permissions_is_refused_where_the_format_takes_it_for_a_link() {
    let map = Map::<Sv39x4, _>::new(Heap).unwrap();
    let place = map.reach(Gfn(512), Level::M2).unwrap();
    assert!(refuses(place, leaf_of::<Sv39x4>(512, Perms::NONE, Level::M2)));
    place.store(leaf_of::<Sv39x4>(512, Perms::READ, Level::M2));
    assert_eq!(map.find(Gfn(513)).unwrap().level(), Level::M2);
}

#[test]
fn a_split_links_a_table_of_its_own_map() {
    let (a, b) = (Map::<X64, _>::new(Heap).unwrap(), Map::<X64, _>::new(Heap).unwrap());
    a.reach(Gfn(0), Level::K4).unwrap();
    let place = b.reach(Gfn(0), Level::M2).unwrap();
    place.store(leaf(512, Level::M2));
    let before = (a.table_bytes(), b.table_bytes());
    assert!(place.split(leaf(512, Level::M2), |i| leaf(512 + i, Level::K4)).unwrap());
    assert_eq!((a.table_bytes(), b.table_bytes()), (before.0, before.1 + PAGE_SIZE));
    drop(a);
    assert_eq!(b.find(Gfn(5)).unwrap().load(), leaf(517, Level::K4));
}

#[test]
fn a_split_refuses_children_that_are_links_and_loses_no_page() {
    let map = Map::<X64, _>::new(Heap).unwrap();
    let place = map.reach(Gfn(0), Level::G1).unwrap();
    let large = leaf(1 << 18, Level::G1);
    place.store(large);
    let before = map.table_bytes();
    let forged = |i| if i == 511 { X64::link(Pfn(1), Level::M2) } else { leaf(i << 9, Level::M2) };
    assert!(catch_unwind(AssertUnwindSafe(|| place.split(large, forged))).is_err());
    assert!(!place.split(leaf(1 << 19, Level::G1), |i| leaf(i << 9, Level::M2)).unwrap(), "another leaf");
    assert_eq!((map.table_bytes(), place.load()), (before, large));
}

/// The last page works; the next one, and pages that would share its entry, are refused.
fn edges<F: Format>() {
    let map = Map::<F, _>::new(Heap).unwrap();
    let pages = 1 << F::FRAME_BITS;
    for page in [pages, pages + 5, pages << 1, 1 << 40 << F::ROOT_PAGES.ilog2(), u64::MAX >> 12, u64::MAX] {
        if page >= pages {
            assert!(map.find(Gfn(page)).is_none(), "{} {page:#x}", F::NAME);
            let reached = map.reach(Gfn(page), Level::K4).map(|place| place.level());
            assert_eq!(reached, Err(ReachError::Beyond(F::FRAME_BITS)), "{} {page:#x}", F::NAME);
        }
    }
    let word = leaf_of::<F>(1, Perms::RX, Level::K4);
    map.reach(Gfn(pages - 1), Level::K4).unwrap().store(word);
    let mut seen = Vec::new();
    map.for_each(Span::new(Gfn(0), Gfn(u64::MAX)), |gfns, place| {
        if place.load() == word {
            seen.push(gfns);
        }
    });
    assert_eq!(seen, [Span::new(Gfn(pages - 1), Gfn(pages))], "{}", F::NAME);
    // Halves of the number line share nothing.
    let half = map.find(Gfn(pages / 2 - 1)).unwrap();
    assert!(half.level() > Level::K4, "{}: nothing was linked there", F::NAME);
    for empty in [(pages, u64::MAX), (7, 3), (u64::MAX, 0), (pages - 1, pages - 1)] {
        let empty = Span::new(Gfn(empty.0), Gfn(empty.1));
        map.for_each(empty, |gfns, _| panic!("{}: {gfns:?} is visited for {empty:?}", F::NAME));
        map.age(empty, |_| panic!("{}: {empty:?} has been accessed", F::NAME));
    }
}

#[test]
fn a_page_beyond_the_format_has_no_entry() {
    edges::<X64>();
    edges::<Ept5>();
    edges::<Pae>();
    edges::<Arm64L39>();
    edges::<Arm64L40>();
    edges::<Arm64<43>>();
    edges::<Arm64<44>>();
    edges::<Sv39x4>();
    edges::<Sv57x4>();
    edges::<Sv39x4NoAd>();
}

#[test]
fn a_format_of_another_crate_works_by_an_unsafe_impl() {
    vm!(Own, |hva| Some(page(hva)), idle, vm, _vcpu);
    assert_eq!(vm.memory().translate(&mut idle, Gfn(5)).unwrap().leaf.pfn, Pfn(0x40005));
    assert_eq!(vm.memory().translate(&mut idle, Gfn(6)), None);
    edges::<Own>();
}

/// Memory with `chunks` chunks, of 63 table pages each.
struct Few(AtomicUsize);

// SAFETY: the heap's own functions.
unsafe impl TableMemory for Few {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        self.0.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).ok()?;
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

#[test]
fn a_map_out_of_memory_has_used_every_page_and_loses_none() {
    let map = Map::<X64, _>::new(Few(1.into())).unwrap();
    let mut leaf_tables = 0;
    while map.reach(Gfn(leaf_tables * 512), Level::K4).is_ok() {
        leaf_tables += 1;
    }
    assert_eq!(
        (map.table_bytes() / PAGE_SIZE, leaf_tables),
        (63, 60),
        "one of each upper level, and leaf tables"
    );
    for far in 1..100 {
        let reached = map.reach(Gfn(far << 27), Level::K4).map(|place| place.level());
        assert_eq!(reached, Err(ReachError::NoMemory));
    }
    assert_eq!(map.table_bytes() / PAGE_SIZE, 63);
    map.reach(Gfn(100), Level::K4).unwrap().store(Word::hole(Version::default()));
}

#[test]
fn a_reach_that_fails_gives_back_the_pages_that_it_got() {
    let map = Map::<X64, _>::new(Few(1.into())).unwrap();
    for table in 0..58 {
        map.reach(Gfn(table * 512), Level::K4).unwrap();
    }
    assert_eq!(map.table_bytes() / PAGE_SIZE, 61, "two are left");
    let reached = map.reach(Gfn(1 << 27), Level::K4).map(|place| place.level());
    assert_eq!(reached, Err(ReachError::NoMemory), "three are needed");
    assert_eq!(map.table_bytes() / PAGE_SIZE, 61);
    assert_eq!(map.reach(Gfn(1 << 18), Level::K4).unwrap().level(), Level::K4, "two do");
    assert_eq!(map.table_bytes() / PAGE_SIZE, 63);
}
