//! Faults and lockless walks while other threads unhook tables and reuse their pages.

use super::host::{Change, Primary, REGION};
use super::schedules::explore;
use super::vm_on_host::{World, at_once, idle};
use crate::table::formats::Pae;
use crate::{Access::*, Builder, Host, Why};

/// The second region's first page.
const SECOND: u64 = REGION;

/// A VM whose table pages are reused at once: no thread keeps more spare pages than a fault needs.
fn thrifty<H: Host>(builder: Builder<Pae, H>) -> Builder<Pae, H> {
    builder.table_budget(1 << 30)
}

/// A whole region is unmapped with its table repeatedly, during faults in it and in another; `after` runs each time.
fn unmapping_and(after: impl Fn(&World<Pae>) + Sync) {
    let world = World::<Pae>::new(3, Primary::new(false), thrifty);
    at_once(&[
        &|| world.guest(0, &[(SECOND, Write), (0, Read), (SECOND + 1, Read), (SECOND, Write)]),
        &|| world.guest(1, &[(SECOND, Read), (0, Write), (SECOND, Write)]),
        &|| world.guest(2, &[(0, Read), (SECOND, Read), (1, Write)]),
        &|| {
            world.change(SECOND..2 * REGION, (Change::Drop, Why::Unmap));
            after(&world);
        },
        &|| {
            world.change(SECOND..2 * REGION, (Change::Move, Why::Remap));
            after(&world);
        },
        &|| world.age(2),
    ]);
    world.end();
}

fn unmapping() {
    unmapping_and(|world| idle(|idle| world.vm.collect(idle)));
}

/// Free table memory goes back to the host at once: no walk may be in it.
fn shrinking() {
    unmapping_and(|world| {
        idle(|idle| world.vm.shrink(idle));
    });
}

/// The root is replaced during faults, lockless walks, and moves of pages.
fn zapping_all() {
    let world = World::<Pae>::new(3, Primary::new(false), thrifty);
    at_once(&[
        &|| world.guest(0, &[(0, Write), (SECOND, Read), (0, Read), (SECOND, Write)]),
        &|| world.guest(1, &[(SECOND, Write), (0, Read), (0, Write)]),
        &|| world.guest(2, &[(0, Read), (1, Read), (0, Read)]),
        &|| idle(|idle| world.vm.zap_all(idle).expect("there is memory")),
        &|| world.change(0..1, (Change::Move, Why::Migrate)),
        &|| world.age(2),
    ]);
    world.end();
}

/// The root is replaced while pages of two regions move, and a guest stays in guest mode.
fn zapping_beside_moves() {
    let world = World::<Pae>::new(1, Primary::new(false), thrifty);
    at_once(&[
        &|| world.guest(0, &[(0, Write), (0, Read), (0, Write), (0, Read)]),
        &|| idle(|idle| world.vm.zap_all(idle).expect("there is memory")),
        &|| world.change(SECOND..SECOND + 1, (Change::Move, Why::Migrate)),
        &|| world.change(0..1, (Change::Move, Why::Migrate)),
    ]);
    world.end();
}

/// Pages of one region move during faults in both: each move ends a quiet moment of the VM.
fn moving() {
    let world = World::<Pae>::new(2, Primary::new(false), |builder| builder);
    at_once(&[
        &|| world.guest(0, &[(0, Write), (1, Write), (SECOND, Read), (SECOND + 1, Write), (2, Read)]),
        &|| world.guest(1, &[(SECOND + 2, Write), (3, Write), (SECOND + 1, Read), (SECOND, Write)]),
        &|| world.change(SECOND..SECOND + 2, (Change::Move, Why::Migrate)),
        &|| world.change(SECOND..SECOND + 2, (Change::Move, Why::Migrate)),
    ]);
    world.end();
}

/// The root is replaced, and its tables are freed, while one guest runs.
fn zapping_beside_one() {
    let world = World::<Pae>::new(1, Primary::new(false), thrifty);
    at_once(&[
        &|| world.guest(0, &[(0, Write), (1, Write), (2, Write), (SECOND, Read), (3, Write)]),
        &|| {
            idle(|idle| {
                world.vm.zap_all(idle).expect("there is memory");
                world.vm.collect(idle);
            });
        },
    ]);
    world.end();
}

/// A budget for one region's tables, and guests that use two.
fn reclaiming() {
    // The root, a table for 1 GiB and one for 2 MiB; and as many spare pages of each of two vCPUs.
    let pages = 3 + 2 * 3 + 1;
    let world = World::<Pae>::new(2, Primary::new(false), |builder| builder.table_budget(pages << 12));
    at_once(&[
        &|| world.guest(0, &[(0, Write), (SECOND, Read), (0, Read)]),
        &|| world.guest(1, &[(SECOND, Write), (0, Read)]),
        &|| world.change(0..1, (Change::Move, Why::Migrate)),
    ]);
    world.end();
}

#[test]
fn memory_that_goes_back() {
    explore(shrinking);
}

#[test]
fn regions_that_go() {
    explore(unmapping);
}

#[test]
fn roots_that_are_replaced() {
    explore(zapping_all);
}

#[test]
fn roots_that_are_replaced_beside_moves() {
    explore(zapping_beside_moves);
}

#[test]
fn quiet_moments() {
    explore(moving);
}

#[test]
fn roots_that_are_replaced_beside_one_guest() {
    explore(zapping_beside_one);
}

#[test]
fn tables_that_are_taken_back() {
    explore(reclaiming);
}
