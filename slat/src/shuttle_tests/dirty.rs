//! Stores during harvests, aging, and moves of pages: no store is missing from the last copy.

use super::host::{Change, Primary, REGION};
use super::schedules::explore;
use super::vm_on_host::{World, at_once};
use crate::table::formats::Pae;
use crate::{Access::*, DirtyLog, RingSize, Splitting, Track, Why};

/// Three guests store; other threads harvest, move a page, and age.
fn storing(log: DirtyLog, huge: bool) {
    let world = World::<Pae>::new(3, Primary::new(huge), |builder| builder.dirty_log(log));
    world.log();
    at_once(&[
        &|| world.guest(0, &[(0, Write), (1, Read), (0, Write), (1, Write)]),
        &|| world.guest(1, &[(0, Read), (0, Write), (REGION, Write)]),
        &|| world.guest(2, &[(1, Write), (0, Write)]),
        &|| world.migrate(2),
        &|| world.change(0..1, (Change::Move, Why::Migrate)),
        &|| world.age(1),
    ]);
    world.end();
}

/// The log begins while two guests already store.
fn beginning(log: DirtyLog, huge: bool) {
    let world = World::<Pae>::new(2, Primary::new(huge), |builder| builder.dirty_log(log));
    at_once(&[
        &|| world.guest(0, &[(0, Write), (1, Write), (0, Read), (0, Write)]),
        &|| world.guest(1, &[(0, Read), (1, Write), (0, Write)]),
        &|| {
            world.log();
            world.migrate(1);
        },
        &|| world.change(0..1, (Change::Move, Why::Migrate)),
    ]);
    world.end();
}

/// The log begins with all pages dirty while two guests already store, and another thread harvests it at once.
fn harvested_at_once(log: DirtyLog) {
    let world = World::<Pae>::new(2, Primary::new(false), |builder| builder.dirty_log(log.initially_set()));
    at_once(&[
        &|| world.guest(0, &[(0, Write), (1, Write), (0, Read), (0, Write)]),
        &|| world.guest(1, &[(0, Read), (1, Write), (0, Write)]),
        &|| world.begin_log(),
        &|| world.harvests(3),
    ]);
    world.migrate(0);
    world.end();
}

fn harvested_at_once_by_permissions() {
    harvested_at_once(DirtyLog::bitmap());
}

fn harvested_at_once_by_bits() {
    harvested_at_once(DirtyLog::bitmap().track(Track::DirtyBits));
}

fn begun_by_permissions() {
    beginning(DirtyLog::bitmap(), false);
}

fn begun_by_bits() {
    beginning(DirtyLog::bitmap().track(Track::DirtyBits), false);
}

fn begun_over_large_pages() {
    beginning(DirtyLog::bitmap().splitting(Splitting::Lazy), true);
}

/// A page that is stored to repeatedly moves during harvests by D bits.
fn taken_away() {
    let log = DirtyLog::bitmap().track(Track::DirtyBits);
    let world = World::<Pae>::new(2, Primary::new(false), |builder| builder.dirty_log(log));
    world.log();
    at_once(&[
        &|| world.guest(0, &[(0, Write), (0, Write), (0, Write)]),
        &|| world.guest(1, &[(0, Write), (0, Write)]),
        &|| world.migrate(1),
        &|| world.change(0..1, (Change::Move, Why::Migrate)),
    ]);
    world.end();
}

fn by_permissions() {
    storing(DirtyLog::bitmap(), false);
}

fn by_bits() {
    storing(DirtyLog::bitmap().track(Track::DirtyBits), false);
}

fn by_rings() {
    storing(DirtyLog::ring(RingSize::new(4096).expect("within the rules")), false);
}

/// Stores split large pages.
fn of_large_pages() {
    storing(DirtyLog::bitmap().track(Track::DirtyBits).initially_set(), true);
}

#[test]
fn stores_by_permissions() {
    explore(by_permissions);
}

#[test]
fn stores_by_bits() {
    explore(by_bits);
}

#[test]
fn stores_to_pages_that_are_taken_away() {
    explore(taken_away);
}

#[test]
fn stores_by_rings() {
    explore(by_rings);
}

#[test]
fn stores_to_large_pages() {
    explore(of_large_pages);
}

#[test]
fn logs_that_begin_by_permissions() {
    explore(begun_by_permissions);
}

#[test]
fn logs_that_begin_by_bits() {
    explore(begun_by_bits);
}

#[test]
fn logs_that_begin_over_large_pages() {
    explore(begun_over_large_pages);
}

#[test]
fn logs_that_are_harvested_at_once_by_permissions() {
    explore(harvested_at_once_by_permissions);
}

#[test]
fn logs_that_are_harvested_at_once_by_bits() {
    explore(harvested_at_once_by_bits);
}
