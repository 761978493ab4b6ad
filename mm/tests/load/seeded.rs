//! Mistakes made in the engine itself ([`slat::seeded`]): each has to be found by a world, and without one the same worlds
//! are right. Under `--cfg seeded` only: `cargo xtask verify --only load`.
//!
//! A mistake is made in a whole process, so each has a process of its own: this very program, asked for the one test that
//! looks, which then must fail.

use crate::stage::Mistake;
use crate::{Setting, run};
use slat::MmuLock;
use slat::seeded::{Bug, Tool, WRONG, each_fails_in_a_process};
use slat::table::formats::Npt4;

/// Guests meet the mistake if they are lucky: there are many worlds, and long ones.
const LOOKS: &str = "seeded::the_worlds_are_right_where_no_mistake_is_made";
/// The end of each world shows the mistake, if guests do not.
const ENDS: &str = "seeded::a_world_is_right_to_its_end";
/// Worlds that are tried, one seed each; of those without a mistake.
const TRIES: u64 = 20;
const RIGHT: u64 = 3;

#[test]
fn the_worlds_are_right_where_no_mistake_is_made() {
    let (mistake, tries) = match std::env::var("SLAT_SEEDED") {
        Ok(_) => (Mistake::Seeded, TRIES),
        Err(_) => (Mistake::None, RIGHT),
    };
    for seed in 1..=tries {
        let setting = Setting { lock: MmuLock::None, contexts: true, thp: false, mistake, seed };
        assert_eq!(run::<Npt4>(setting).wrong, 0, "{WRONG}{seed}.");
    }
    println!("EXECUTIONS Load worlds {tries}");
}

#[test]
fn a_world_is_right_to_its_end() {
    let seed = 1;
    let setting = Setting { lock: MmuLock::None, contexts: true, thp: false, mistake: Mistake::None, seed };
    assert!(std::panic::catch_unwind(|| run::<Npt4>(setting)).is_ok(), "{WRONG}{seed}.");
}

#[test]
fn every_mistake_is_found() {
    let guard = |bug| if bug == Bug::CopiedUnsettled { LOOKS } else { ENDS };
    each_fails_in_a_process(Tool::Load, guard, true);
}
