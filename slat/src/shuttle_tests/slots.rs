//! Memslots that move, are deleted and created, during faults and moves of pages.

use super::host::{Change, Handle, Primary, REGION, hva, own};
use super::schedules::explore;
use super::vm_on_host::{World, at_once, idle};
use crate::table::formats::Pae;
use crate::{Access::*, Gfn, Host, Slot, SlotId, Span, Why};

/// The frame to which the memslot moves.
const AWAY: u64 = 4 * REGION;

/// The memslot moves by four regions, and another takes its place, with the host's regions in the other order.
fn moving() {
    let world = World::<Pae>::new(3, Primary::new(false), |builder| builder);
    let half = |id, gfn, page| Slot::new(SlotId(id), Gfn(gfn), REGION, hva(page));
    at_once(&[
        &|| world.guest(0, &[(0, Write), (AWAY, Read), (0, Read), (0, Write)]),
        &|| world.guest(1, &[(0, Read), (REGION, Write), (0, Write)]),
        &|| world.guest(2, &[(AWAY, Read), (0, Read), (AWAY, Write)]),
        &|| {
            world.slots([(AWAY, 0..2 * REGION)].into(), |idle| {
                world.vm.memory().commit(idle, |tx| tx.move_to(SlotId(0), Gfn(AWAY))).expect("room");
            });
            world.slots(
                [(AWAY, 0..2 * REGION), (0, REGION..2 * REGION), (REGION, 0..REGION)].into(),
                |idle| {
                    let slots = world.vm.memory();
                    slots
                        .commit(idle, |tx| tx.create(half(1, 0, REGION)).and(tx.create(half(2, REGION, 0))))
                        .expect("room");
                },
            );
        },
        &|| world.change(0..1, (Change::Move, Why::Migrate)),
    ]);
    world.end();
}

/// A transaction exchanges the memslot for two halves in the other order; another one reverses that.
fn exchanging() {
    let world = World::<Pae>::new(3, Primary::new(false), |builder| builder);
    let half = |id, gfn, page| Slot::new(SlotId(id), Gfn(gfn), REGION, hva(page));
    at_once(&[
        &|| world.guest(0, &[(0, Write), (REGION, Read), (0, Read)]),
        &|| world.guest(1, &[(0, Read), (REGION, Write), (0, Write)]),
        &|| world.guest(2, &[(REGION, Read), (0, Read)]),
        &|| {
            world.slots([(0, REGION..2 * REGION), (REGION, 0..REGION)].into(), |idle| {
                let slots = world.vm.memory();
                let exchanged = slots.commit(idle, |tx| {
                    tx.delete(SlotId(0))?;
                    tx.create(half(1, 0, REGION))?;
                    tx.create(half(2, REGION, 0))
                });
                exchanged.expect("room");
            });
        },
        &|| world.change(0..2, (Change::Move, Why::Migrate)),
        &|| world.change(REGION..REGION + 1, (Change::Drop, Why::Clear)),
    ]);
    world.end();
}

/// The memslot is deleted, and another is created.
fn deleting() {
    let world = World::<Pae>::new(3, Primary::new(false), |builder| builder);
    at_once(&[
        &|| world.guest(0, &[(0, Write), (REGION, Read), (0, Read), (1, Write)]),
        &|| world.guest(1, &[(0, Read), (REGION, Write), (0, Write)]),
        &|| world.guest(2, &[(REGION, Read), (0, Read)]),
        &|| {
            world.slots([].into(), |idle| {
                world.vm.memory().commit(idle, |tx| tx.delete(SlotId(0))).expect("it is there");
            });
            world.slots([(0, REGION..2 * REGION)].into(), |idle| {
                let slot = Slot::new(SlotId(1), Gfn(0), REGION, hva(REGION));
                world.vm.memory().commit(idle, |tx| tx.create(slot)).expect("room");
            });
        },
        &|| world.change(0..1, (Change::Move, Why::Migrate)),
        &|| world.change(REGION..REGION + 1, (Change::Drop, Why::Clear)),
    ]);
    world.end();
}

/// Two memslots share a leaf table. One is deleted during faults on both. A reader of the old slots delays its
/// transaction after the publication, until the guest has ended.
fn sharing() {
    let world = World::<Pae>::new(1, Primary::new(false), |builder| builder);
    let slot = |id, gfn, page| Slot::new(SlotId(id), Gfn(gfn), 2, hva(page));
    world.slots([(0, 0..2), (2, 2..4)].into(), |idle| {
        // The host sleeps for none of these pages, so the short path maps them.
        for page in 0..4 {
            Handle(world.host.clone()).resolve(idle, hva(page), Write).expect("it has room");
        }
        let divided = world.vm.memory().commit(idle, |tx| {
            tx.delete(SlotId(0))?;
            tx.create(slot(0, 0, 0))?;
            tx.create(slot(1, 2, 2))
        });
        divided.expect("room");
    });
    at_once(&[
        &|| world.guest(0, &[(0, Write), (1, Write), (2, Write), (3, Write)]),
        &|| {
            idle(|idle| {
                let slots = world.vm.memory();
                let _snapshot = slots.snapshot(idle);
                world.outlast_guests();
            });
        },
        &|| {
            world.slots([(0, 0..2)].into(), |idle| {
                world.vm.memory().commit(idle, |tx| tx.delete(SlotId(1))).expect("it is there");
            });
        },
    ]);
    world.end();
}

/// A memslot is created where a guest has found none, and has no table yet.
fn appearing() {
    let world = World::<Pae>::new(2, Primary::new(false), |builder| builder);
    world.slots([(0, 0..REGION)].into(), |idle| {
        let half = Slot::new(SlotId(0), Gfn(0), REGION, hva(0));
        let divided = world.vm.memory().commit(idle, |tx| tx.delete(SlotId(0)).and(tx.create(half)));
        divided.expect("room");
    });
    at_once(&[
        &|| world.guest(0, &[(REGION, Read), (REGION, Write), (REGION, Read)]),
        &|| world.guest(1, &[(0, Read), (REGION, Read), (REGION, Read)]),
        &|| {
            world.slots([(0, 0..REGION), (REGION, REGION..2 * REGION)].into(), |idle| {
                let slot = Slot::new(SlotId(1), Gfn(REGION), REGION, hva(REGION));
                world.vm.memory().commit(idle, |tx| tx.create(slot)).expect("room");
            });
        },
        &|| world.change(0..1, (Change::Move, Why::Migrate)),
    ]);
    world.end();
}

/// A frame becomes private, and shared again, while both of its pages change.
fn converting() {
    let world = World::<Pae>::new(2, Primary::divided(), |builder| builder);
    world.slots([(0, 0..REGION)].into(), |idle| {
        let both = Slot::new(SlotId(0), Gfn(0), REGION, hva(0));
        let divided = world.vm.memory().commit(idle, |tx| {
            tx.delete(SlotId(0))?;
            tx.create_with_private(both, own(REGION))
        });
        divided.expect("room");
    });
    let convert = |private| {
        let first = if private { REGION..REGION + 1 } else { 0..1 };
        world.slots([(0, first), (1, 1..REGION)].into(), |idle| {
            world.vm.memory().set_private(idle, Span::sized(Gfn(0), 1), private).expect("room");
        });
    };
    at_once(&[
        &|| world.guest(0, &[(0, Write), (1, Read), (0, Read), (0, Write)]),
        &|| world.guest(1, &[(0, Read), (0, Write), (1, Write)]),
        &|| {
            convert(true);
            convert(false);
        },
        &|| world.change(0..1, (Change::Move, Why::Migrate)),
        &|| world.change(REGION..REGION + 1, (Change::Drop, Why::Clear)),
    ]);
    world.end();
}

#[test]
fn memory_that_becomes_private_and_shared() {
    explore(converting);
}

#[test]
fn memslots_that_go_and_come() {
    explore(deleting);
}

#[test]
fn memslots_that_move() {
    explore(moving);
}

#[test]
fn memslots_that_are_exchanged() {
    explore(exchanging);
}

#[test]
fn memslots_that_come_where_none_was() {
    explore(appearing);
}

#[test]
fn memslots_that_share_a_table() {
    explore(sharing);
}
