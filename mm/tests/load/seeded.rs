//! Tests of mistakes in the engine ([`slat::seeded`]). A world must find each mistake. Without one, the same
//! worlds are right. Only under `--cfg seeded`: `cargo xtask verify --only load`.
//!
//! A mistake applies to a whole process. Each mistake therefore gets its own process: this program, which runs
//! only the test that must fail.

use crate::stage::Mistake;
use crate::{Setting, run};
use slat::baselines::MmuLock;
use slat::seeded::{Tool, WRONG, each_fails_in_a_process};
use slat::table::formats::Npt4;

/// The end of each world shows the mistake, if the guests do not.
const ENDS: &str = "seeded::a_world_is_right_to_its_end";
/// Worlds without a mistake.
const RIGHT: u64 = 3;

fn setting(seed: u64) -> Setting {
    Setting { lock: MmuLock::None, contexts: true, thp: false, mistake: Mistake::None, seed }
}

#[test]
fn the_worlds_are_right_where_no_mistake_is_made() {
    for seed in 1..=RIGHT {
        assert_eq!(run::<Npt4>(setting(seed)).wrong, 0, "world {seed}");
    }
    println!("EXECUTIONS Load worlds {RIGHT}");
}

#[test]
fn a_world_is_right_to_its_end() {
    assert!(std::panic::catch_unwind(|| run::<Npt4>(setting(1))).is_ok(), "{WRONG}1.");
}

#[test]
fn every_mistake_is_found() {
    each_fails_in_a_process(Tool::Load, |_| ENDS, true);
}
