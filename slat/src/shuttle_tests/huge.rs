//! Large pages that are split and recovered during faults and moves of pages.

use super::host::{Change, Primary, REGION};
use super::schedules::explore;
use super::vm_on_host::{World, at_once, idle};
use crate::table::formats::Pae;
use crate::{Access::*, Gfn, Level, Span, Why};

const FIRST: Span<Gfn> = Span::new(Gfn(0), Gfn(REGION));

/// A large page is split and recovered, while a page of it moves, after which it cannot be recovered.
fn splitting() {
    let world = World::<Pae>::new(3, Primary::new(true), |builder| builder);
    at_once(&[
        &|| world.guest(0, &[(0, Write), (1, Read), (0, Write)]),
        &|| world.guest(1, &[(1, Write), (0, Read)]),
        &|| world.guest(2, &[(0, Read), (1, Read)]),
        &|| assert!(idle(|idle| world.vm.memory().split(idle, FIRST, Level::K4)).is_ok()),
        &|| assert!(idle(|idle| world.vm.memory().recover(idle, FIRST)) <= 1),
        &|| world.change(0..1, (Change::Move, Why::Migrate)),
    ]);
    world.end();
}

/// Small pages collapse into a large one, in another place, and are protected.
fn collapsing() {
    let world = World::<Pae>::new(3, Primary::new(false), |builder| builder);
    at_once(&[
        &|| world.guest(0, &[(0, Write), (1, Read), (0, Write)]),
        &|| world.guest(1, &[(1, Write), (0, Read)]),
        &|| world.guest(2, &[(0, Read), (1, Read), (1, Write)]),
        &|| {
            world.change(0..REGION, (Change::Collapse, Why::Migrate));
            idle(|idle| world.vm.memory().recover(idle, FIRST));
        },
        &|| world.change(0..2, (Change::Protect, Why::Protect)),
        &|| world.change(1..2, (Change::Move, Why::Migrate)),
    ]);
    world.end();
}

#[test]
fn pages_that_are_split_and_recovered() {
    explore(splitting);
}

#[test]
fn pages_that_collapse() {
    explore(collapsing);
}
