//! Tests of huge pages. The first fault makes them, and an operation that needs a part divides them in place.
//! Their contents never change.

use crate::fixture::*;
use slat::{Level, PAGE_SIZE, Reason};
use slat_mm::{Place, Prot};

/// 4 MiB of huge pages. Each small page holds its number.
fn huge_machine() -> Machine {
    let mut machine = Machine::huge();
    machine.map(0, 1024);
    machine.number(0, 1024);
    assert_eq!(machine.space.stats().huge_mappings, 2);
    assert_eq!(machine.look(700).unwrap().level, Level::M2);
    assert_eq!(machine.look(700).unwrap().pfn.0 % 512, 700 % 512, "frame and address are congruent");
    machine
}

fn numbers_stay(machine: &mut Machine, range: std::ops::Range<u64>) {
    for page in range {
        assert_eq!(machine.get(page), page);
    }
}

#[test]
fn a_mapping_that_covers_no_huge_page_gets_small_ones() {
    let mut machine = Machine::huge();
    machine.map(1, 600);
    machine.number(1, 600);
    assert_eq!(machine.look(5).unwrap().level, Level::K4);
    assert_eq!(machine.space.stats().huge_mappings, 0);
    assert!(machine.all_free());
}

#[test]
fn partial_operations_split_in_place_and_keep_the_rest() {
    type Operation = fn(&mut Machine);
    let operations: [(Operation, Reason); 4] = [
        (|m| m.space.munmap(&mut m.idle, pages(100, 500)).unwrap(), Reason::Unmap),
        (|m| m.space.dontneed(&mut m.idle, pages(100, 500)).unwrap(), Reason::Clear),
        (|m| m.space.mprotect(&mut m.idle, pages(100, 500), Prot::Read).unwrap(), Reason::Protect),
        (|m| m.space.mprotect(&mut m.idle, pages(100, 500), Prot::None).unwrap(), Reason::Clear),
    ];
    for (operate, why) in operations {
        let mut machine = huge_machine();
        operate(&mut machine);
        let seen = machine.recorder.only();
        assert_eq!((seen.why, seen.hvas), (why, pages(100, 500)));
        assert_eq!(machine.space.stats().splits, 2);
        numbers_stay(&mut machine, 0..100);
        numbers_stay(&mut machine, 600..1024);
        assert!(machine.look(99).unwrap().writable && machine.look(600).unwrap().writable);
        if why == Reason::Protect {
            numbers_stay(&mut machine, 100..600);
            assert!(!machine.look(100).unwrap().writable && !machine.look(599).unwrap().writable);
        } else {
            assert!((100..600).all(|page| machine.look(page).is_none()));
        }
        assert!(machine.all_free());
    }
}

#[test]
fn a_whole_huge_page_comes_and_goes_whole() {
    let mut machine = huge_machine();
    machine.space.dontneed(&mut machine.idle, pages(512, 512)).unwrap();
    assert_eq!(machine.get(512), 0);
    assert_eq!(machine.look(513).unwrap().level, Level::M2, "huge again");
    machine.space.mprotect(&mut machine.idle, pages(0, 512), Prot::None).unwrap();
    machine.space.mprotect(&mut machine.idle, pages(0, 512), Prot::ReadWrite).unwrap();
    numbers_stay(&mut machine, 0..512);
    assert_eq!(machine.look(511).unwrap().level, Level::M2);
    assert_eq!(machine.space.stats().splits, 0);
    assert!(machine.all_free());
}

#[test]
fn huge_pages_move_whole_or_are_split_to_fit() {
    for (to, level) in [(2048, Level::M2), (2049, Level::K4)] {
        let mut machine = huge_machine();
        let place = Place::Fixed(at(to));
        machine.space.mremap(&mut machine.idle, pages(0, 1024), 1024 * PAGE_SIZE, place).unwrap();
        assert_eq!(machine.look(to + 800).unwrap().level, level);
        for page in 0..1024 {
            assert_eq!(machine.get(to + page), page);
        }
        assert!(machine.all_free());
    }
}

#[test]
fn migration_keeps_huge_pages_huge_while_there_are_some() {
    let mut machine = huge_machine();
    let before = machine.look(0).unwrap().pfn;
    assert_eq!(machine.space.migrate(&mut machine.idle, pages(0, 512)), Ok(1));
    assert_ne!(machine.look(0).unwrap().pfn, before);
    assert_eq!(machine.look(0).unwrap().level, Level::M2);
    let hoard: Vec<_> = std::iter::from_fn(|| machine.arena.page(Level::M2).ok()).collect();
    assert!(!hoard.is_empty());
    // No whole block is left. Page after page therefore moves to what is left of broken blocks, until that is
    // gone too.
    assert!(machine.space.migrate(&mut machine.idle, pages(512, 512)).is_err());
    assert_eq!(machine.look(512).unwrap().level, Level::K4);
    drop(hoard);
    numbers_stay(&mut machine, 0..1024);
    assert!(machine.all_free());
}

#[test]
fn a_shared_huge_page_is_split_by_the_side_that_writes() {
    let mut machine = huge_machine();
    let child = machine.space.fork(&mut machine.idle).unwrap();
    machine.recorder.take();
    machine.put(3, 333);
    let seen = machine.recorder.only();
    assert_eq!((seen.why, seen.hvas), (Reason::ChangePte, pages(3, 1)));
    assert_eq!(
        child.lookup(at(3), slat::Access::Read).unwrap().level,
        Level::M2,
        "the other side keeps its huge page"
    );
    assert_eq!((machine.get(3), get(&child, &mut machine.idle, 3)), (333, 3));
    assert_eq!(machine.look(4).unwrap().pfn, child.lookup(at(4), slat::Access::Read).unwrap().pfn);
    drop(child);
    machine.put(4, 444);
    assert_eq!(machine.space.stats().cow_breaks, 1, "page 4 has one owner again");
    machine.put(600, 666);
    assert_eq!(
        machine.look(600).unwrap().level,
        Level::M2,
        "a sole owner of the whole huge page needs no split"
    );
    numbers_stay(&mut machine, 5..512);
    assert!(machine.all_free());
}
