//! Faults beside invalidations by the host.

use super::host::{Change, Primary};
use super::run::{explore, finds};
use super::world::{FRAME, MAPPED, World};
use crate::seeded::Bug;
use crate::table::formats::Pae;
use crate::{Access::*, Why};

/// What is said where a page is used, or left behind, that the host has taken back.
pub(super) const STALE: &[&str] = &[FRAME, MAPPED];

/// Pages move to other frames, and back, while two vCPUs use them.
fn moving() {
    let world = World::<Pae>::new(2, Primary::new(false), |builder| builder);
    world.run(&[
        &|| world.guest(0, &[(0, Write), (1, Read), (0, Read), (1, Write)]),
        &|| world.guest(1, &[(1, Write), (0, Read), (0, Write)]),
        &|| world.change(0..1, (Change::Move, Why::Migrate)),
        &|| world.change(0..2, (Change::Move, Why::Migrate)),
    ]);
    world.end();
}

#[test]
fn pages_that_move() {
    explore(moving);
}

#[test]
fn mistake_not_to_confirm_the_stamp() {
    finds(Bug::StampUnconfirmed, STALE, moving);
}
