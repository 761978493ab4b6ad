//! Tests of mistakes in the engine ([`slat::seeded`]). A world must find each mistake. Without one, the same
//! worlds are right. Only under `--cfg seeded`: `cargo xtask verify --only worlds`.
//!
//! A mistake applies to a whole process. Each mistake therefore gets its own process: this program, which runs
//! only the test that must fail.

use super::collector::Way;
use super::world::{Around, Mistake, Setting, run};
use slat::Track;
use slat::seeded::{Bug, Tool, WRONG, each_fails_in_a_process};
use slat::table::formats::Npt4;
use std::panic::catch_unwind;

const LOOKS: &str = "dirty::seeded::the_worlds_are_right_where_no_mistake_is_made";
/// Worlds to try with a mistake, one seed each. Then worlds without a mistake, which take long.
const TRIES: u64 = 40;
const RIGHT: u64 = 2;

/// Each mistake, and the worlds in which it shows.
const CASES: [(Bug, Way, Track, Around); 5] = [
    (Bug::LeafUnmarked, Way::Harvest, Track::DirtyBits, Around::Zaps),
    (Bug::TableUnemptied, Way::Harvest, Track::DirtyBits, Around::Everything),
    (Bug::RegainUnmarked, Way::Harvest, Track::Writes, Around::Nothing),
    (Bug::RingUnarmed, Way::Ring, Track::Writes, Around::Nothing),
    (Bug::GivenBackLost, Way::HarvestAll, Track::Writes, Around::Nothing),
];

/// The first of `seeds` whose world is wrong or panics.
fn wrong(
    (_, way, track, around): (Bug, Way, Track, Around),
    mut seeds: std::ops::RangeInclusive<u64>,
) -> Option<u64> {
    seeds.find(|&seed| {
        let setting = Setting { around, mistake: Mistake::Seeded, ..Setting::plain(way, track, seed) };
        catch_unwind(|| run::<Npt4>(setting).wrong > 0).unwrap_or(true)
    })
}

#[test]
fn the_worlds_are_right_where_no_mistake_is_made() {
    let made = std::env::var("SLAT_SEEDED").ok();
    let tries = if made.is_some() { TRIES } else { RIGHT };
    for case in CASES.into_iter().filter(|(bug, ..)| made.as_ref().is_none_or(|made| bug.name() == made)) {
        if let Some(world) = wrong(case, 1..=tries) {
            panic!("{}: {WRONG}{world}.", case.0.name());
        }
        println!("EXECUTIONS Worlds {:?} {tries}", (case.1, case.2, case.3));
    }
}

#[test]
fn every_mistake_is_found() {
    let worlds = Bug::ALL.iter().filter(|bug| bug.tool() == Tool::Worlds);
    assert!(worlds.eq(CASES.iter().map(|(bug, ..)| bug)), "each mistake has its worlds, in order");
    each_fails_in_a_process(Tool::Worlds, |_| LOOKS, true);
}
