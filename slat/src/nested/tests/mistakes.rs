//! Each seeded mistake of the walk is found by one of these tests.

use super::*;
use crate::seeded::{self, Bug};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Whether the oracle, which compares answers, tables and marks, disagrees about random EPT.
fn oracle_disagrees() -> bool {
    let (table, manual) = worlds::of_ept(4, 46, [true, false, true, false]);
    let mut random = random::Random { seed: 3, worlds: 24, ends: random::Ends::new() };
    catch_unwind(AssertUnwindSafe(|| worlds::Check::check(&mut random, table, manual))).is_err()
}

/// Whether a store uses an entry that changed while its A was to be set.
fn change_is_unseen() -> bool {
    let mut world = World::new();
    for level in 0..3 {
        world.put(CHAIN[level], 0, CHAIN[level + 1] << 12 | 7);
    }
    world.put(CHAIN[3], 0, 0x77 << 12 | 6 << 3 | 7);
    world.vm.host().meddles.store(1, Relaxed);
    world.walk(&ept(CHAIN[0], 4, true), L1Access::new(Gpa(0), Access::Write)).unwrap();
    world.get(CHAIN[0], 0) & 1 << 8 == 0
}

#[test]
fn each_mistake_of_the_walk_is_found() {
    assert!(!oracle_disagrees() && !change_is_unseen());
    let bugs = [
        Bug::UpperRightsIgnored,
        Bug::MisconfigurationLate,
        Bug::DirtyUnset,
        Bug::CleanWritable,
        Bug::TableUnlogged,
    ];
    let missed: Vec<Bug> = bugs.into_iter().filter(|&bug| !seeded::with(bug, oracle_disagrees)).collect();
    assert_eq!(missed, []);
    for bug in bugs {
        seeded::found(bug, 1);
    }
    assert!(seeded::with(Bug::ChangeUnseen, change_is_unseen));
    seeded::found(Bug::ChangeUnseen, 1);
    assert_eq!(seeded::with(Bug::TableUntold, memory::told_of_a_walk)[0], []);
    seeded::found(Bug::TableUntold, 1);
}
