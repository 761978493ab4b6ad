//! Three and more concurrent invalidations, over the same pages and over several regions, narrow and wide, while faults
//! ask a host that sleeps.
//!
//! Here a narrow invalidation has at most two regions. The changes hold a lock only for the moment of the edit.

use super::host::{Change, Primary, REGION, hva};
use super::schedules::explore;
use super::vm_on_host::{World, at_once, idle};
use crate::table::formats::Pae;
use crate::{Access::*, Gfn, Reason, Slot, SlotId, Span};

const SECOND: u64 = REGION;
const THIRD: u64 = 2 * REGION;
const ALL: u64 = 4 * REGION;

/// A VM whose memslot has four regions of a host that sleeps.
fn crowd(vcpus: u32) -> World<Pae> {
    let world = World::<Pae>::new(vcpus, Primary::sleepy(), |builder| builder);
    world.slots([(0, 0..ALL)].into(), |idle| {
        let slot = Slot::new(SlotId(0), Gfn(0), ALL, hva(0));
        let grown = world.vm.memory().commit(idle, |tx| tx.delete(SlotId(0)).and(tx.create(slot)));
        grown.expect("room");
    });
    world
}

/// Invalidations of one page, of two regions, and of four, which are wide, move pages or drop them at once.
fn crowding() {
    let world = crowd(2);
    at_once(&[
        &|| world.guest(0, &[(0, Write), (SECOND, Read), (0, Read), (0, Write)]),
        &|| world.guest(1, &[(0, Read), (THIRD, Write), (0, Read)]),
        &|| world.change_beside(0..1, (Change::Move, Reason::Migrate)),
        &|| world.change_beside(0..2 * REGION, (Change::Move, Reason::Migrate)),
        &|| world.change_beside(0..ALL, (Change::Drop, Reason::Unmap)),
    ]);
    world.end();
}

/// Transactions exchange memslots while their pages change, one by a wide invalidation, and a range of frames.
fn exchanging() {
    let world = crowd(2);
    let half = |id, gfn, page| Slot::new(SlotId(id), Gfn(gfn), 2 * REGION, hva(page));
    at_once(&[
        &|| world.guest(0, &[(0, Write), (THIRD, Read), (0, Read)]),
        &|| world.guest(1, &[(THIRD, Write), (0, Read), (THIRD, Read)]),
        &|| {
            world.slots([(0, THIRD..ALL), (THIRD, 0..THIRD)].into(), |idle| {
                let exchanged = world.vm.memory().commit(idle, |tx| {
                    tx.delete(SlotId(0))?;
                    tx.create(half(1, 0, THIRD))?;
                    tx.create(half(2, THIRD, 0))
                });
                exchanged.expect("room");
            });
        },
        &|| world.change_beside(0..1, (Change::Move, Reason::Migrate)),
        &|| world.change_beside(0..ALL, (Change::Move, Reason::Migrate)),
        &|| {
            idle(|idle| {
                drop(
                    world
                        .vm
                        .memory()
                        .invalidate(Span::sized(Gfn(0), REGION), Reason::Clear)
                        .apply(idle)
                        .settle(),
                );
            });
        },
    ]);
    world.end();
}

/// A page gets write permission, loses it, and moves, at once.
fn upgrading() {
    let world = crowd(2);
    at_once(&[
        &|| world.guest(0, &[(0, Read), (0, Write), (0, Read)]),
        &|| world.guest(1, &[(0, Read), (0, Read), (0, Read)]),
        &|| world.change_beside(0..1, (Change::Move, Reason::Migrate)),
        &|| world.change_beside(0..2, (Change::Protect, Reason::Protect)),
        &|| world.change_beside(0..1, (Change::Drop, Reason::Clear)),
    ]);
    world.end();
}

#[test]
fn pages_regions_and_all_that_change_at_once() {
    explore(crowding);
}

#[test]
fn memslots_frames_and_pages_that_change_at_once() {
    explore(exchanging);
}

#[test]
fn permissions_that_come_and_go_at_once() {
    explore(upgrading);
}
