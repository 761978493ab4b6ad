//! Faults during invalidations by the host.

use super::host::{Change, Primary};
use super::schedules::explore;
use super::vm_on_host::{World, at_once, idle};
use crate::baselines::Baseline;
use crate::table::formats::{Ept4NoAd, Pae};
use crate::{Access::*, Gfn, Span, Why};

/// Pages move to other frames, and back, while vCPUs use them.
fn moving() {
    let world = World::<Pae>::new(3, Primary::new(false), |builder| builder);
    at_once(&[
        &|| world.guest(0, &[(0, Write), (1, Read), (0, Read), (1, Write)]),
        &|| world.guest(1, &[(1, Write), (0, Read), (0, Write)]),
        &|| world.guest(2, &[(0, Read), (1, Read)]),
        &|| world.change(0..1, (Change::Move, Why::Migrate)),
        &|| world.change(0..2, (Change::Move, Why::Migrate)),
    ]);
    world.end();
}

/// As [`moving`], under the reader-writer lock of the TDP MMU series.
fn moving_under_a_lock() {
    let world = World::<Pae>::new(3, Primary::new(false), |builder| builder.baseline(Baseline::READ_WRITE));
    at_once(&[
        &|| world.guest(0, &[(0, Write), (1, Read), (0, Read)]),
        &|| world.guest(1, &[(1, Write), (0, Read), (0, Write)]),
        &|| world.guest(2, &[(0, Read), (1, Read)]),
        &|| world.change(0..2, (Change::Move, Why::Migrate)),
    ]);
    world.end();
}

/// Pages lose write permission and get it back by stores; and move.
fn protecting() {
    let world = World::<Pae>::new(3, Primary::new(false), |builder| builder);
    at_once(&[
        &|| world.guest(0, &[(0, Read), (0, Write), (0, Write)]),
        &|| world.guest(1, &[(0, Write), (0, Read), (0, Read)]),
        &|| world.guest(2, &[(0, Read), (0, Read), (0, Write)]),
        &|| world.change(0..1, (Change::Protect, Why::Protect)),
        &|| world.change(0..1, (Change::Move, Why::Migrate)),
        &|| world.change(0..1, (Change::Protect, Why::WriteProtect)),
    ]);
    world.end();
}

/// One guest reads a page and then writes it, another reads it repeatedly, and it moves.
fn upgrading() {
    let world = World::<Pae>::new(3, Primary::new(false), |builder| builder);
    at_once(&[
        &|| world.guest(0, &[(0, Read), (0, Write)]),
        &|| world.guest(1, &[(0, Read), (0, Read), (0, Read)]),
        &|| world.guest(2, &[(0, Read), (0, Write)]),
        &|| world.change(0..1, (Change::Move, Why::Migrate)),
    ]);
    world.end();
}

/// One vCPU asks for write permission to a page that another reads, while the page moves.
fn freezing() {
    let world = World::<Pae>::new(2, Primary::new(false), |builder| builder);
    at_once(&[
        &|| world.guest(0, &[(0, Read), (1, Read), (0, Write), (1, Write)]),
        &|| world.guest(1, &[(0, Read), (1, Read), (0, Read), (1, Read)]),
        &|| world.change(0..2, (Change::Move, Why::Migrate)),
    ]);
    world.end();
}

/// The host replaces pages by others with the same contents, in place; guests write them again.
fn replacing() {
    let world = World::<Pae>::new(3, Primary::new(false), |builder| builder);
    at_once(&[
        &|| world.guest(0, &[(0, Write), (1, Read), (0, Read), (0, Write)]),
        &|| world.guest(1, &[(1, Read), (0, Read), (1, Write)]),
        &|| world.guest(2, &[(0, Read), (0, Read)]),
        &|| idle(|idle| world.host.replace(idle, &world.vm, 0)),
        &|| idle(|idle| world.host.replace(idle, &world.vm, 1)),
        &|| world.change(0..2, (Change::Drop, Why::Clear)),
    ]);
    world.end();
}

/// Six vCPUs, and pages that go to swap in events that may not block.
fn swapping() {
    let world = World::<Pae>::new(6, Primary::new(false), |builder| builder);
    at_once(&[
        &|| world.guest(0, &[(0, Write), (1, Read)]),
        &|| world.guest(1, &[(1, Write), (0, Read)]),
        &|| world.guest(2, &[(0, Read), (1, Read)]),
        &|| world.guest(3, &[(1, Read), (0, Write)]),
        &|| world.guest(4, &[(0, Write), (0, Read)]),
        &|| world.guest(5, &[(1, Read), (1, Write)]),
        &|| idle(|idle| world.host.reclaim(idle, &world.vm, 0)),
        &|| world.change(0..2, (Change::Move, Why::Migrate)),
        &|| idle(|idle| world.host.reclaim(idle, &world.vm, 1)),
    ]);
    world.end();
}

/// An aging pass withdraws leaves, in a format without Accessed bits, and pages move.
fn tracking() {
    let world = World::<Ept4NoAd>::new(3, Primary::new(false), |builder| builder);
    at_once(&[
        &|| world.guest(0, &[(0, Write), (1, Read), (0, Read), (0, Write)]),
        &|| world.guest(1, &[(0, Read), (1, Write), (0, Write)]),
        &|| world.guest(2, &[(1, Read), (0, Read)]),
        &|| world.age(2),
        &|| world.change(0..1, (Change::Move, Why::Migrate)),
        &|| world.change(0..2, (Change::Protect, Why::Protect)),
    ]);
    world.end();
}

/// One or two trackers track stores to a page, while vCPUs use it and its neighbour, and both move.
fn telling() {
    let world = World::<Pae>::new(3, Primary::new(false), |builder| builder);
    at_once(&[
        &|| world.guest(0, &[(0, Read), (0, Write), (1, Write), (0, Write)]),
        &|| world.guest(1, &[(0, Write), (0, Write), (1, Write), (0, Write)]),
        &|| world.guest(2, &[(1, Write), (0, Read), (0, Write)]),
        &|| world.track(0..1, 2, false),
        &|| world.change(0..2, (Change::Move, Why::Migrate)),
    ]);
    world.end();
}

/// As [`telling`], for small pages of which large ones are made.
fn telling_of_huge() {
    let world = World::<Pae>::new(2, Primary::new(true), |builder| builder);
    at_once(&[
        &|| world.guest(0, &[(0, Write), (1, Write), (0, Write)]),
        &|| world.guest(1, &[(1, Read), (0, Write), (0, Write)]),
        &|| world.track(0..1, 1, true),
        &|| idle(|idle| _ = world.vm.memory().recover(idle, Span::new(Gfn(0), Gfn(512)))),
    ]);
    world.end();
}

#[test]
fn pages_that_move() {
    explore(moving);
}

#[test]
fn pages_that_move_under_a_lock() {
    explore(moving_under_a_lock);
}

#[test]
fn pages_that_lose_permissions() {
    explore(protecting);
}

#[test]
fn pages_that_are_upgraded() {
    explore(upgrading);
}

#[test]
fn pages_that_are_replaced() {
    explore(replacing);
}

#[test]
fn pages_that_are_swapped() {
    explore(swapping);
}

#[test]
fn pages_that_are_withdrawn() {
    explore(tracking);
}

#[test]
fn pages_whose_entry_is_frozen_while_they_move() {
    explore(freezing);
}

#[test]
fn pages_whose_stores_are_tracked() {
    explore(telling);
}

#[test]
fn large_pages_of_which_stores_are_tracked() {
    explore(telling_of_huge);
}
