//! Tests of mistakes in the engine ([`slat::seeded`]) with nested guests. vCPUs that run L2 must find each of
//! these, too. Only under `--cfg seeded`: `cargo xtask seeded test -p slat-vcpu nested::seeded`.
//!
//! The worlds have one thread, so the same world finds a mistake each time. Mistakes that need threads are for
//! loom and shuttle.

use super::exact::{self, Way};
use slat::seeded::Bug;
use std::process::Command;

const LOOKS: &str = "nested::seeded::the_worlds_are_right_where_no_mistake_is_made";
/// The message of a wrong world.
const WRONG: &str = "wrong in nested world";
/// Worlds to try with a mistake, and without one.
const TRIES: u64 = 120;
const RIGHT: u64 = 4;

/// The mistakes that a check of each use can find.
const MISTAKES: &[Bug] = &[
    Bug::ShadowsForgotten,
    Bug::L1TagOnly,
    Bug::RefusedLeafKept,
    Bug::FirstEntryUnflushed,
    Bug::FlushBelieved,
    Bug::BroadcastDeferred,
    Bug::DirtyUnset,
    Bug::CleanWritable,
    Bug::OneTableAlone,
    Bug::PcidIgnored,
    Bug::FramesUnforgotten,
    Bug::RefusedForOne,
    Bug::KeptUnaccessed,
    Bug::KeptWritable,
    Bug::RowIgnored,
    Bug::RefusedOnce,
];

#[test]
fn the_worlds_are_right_where_no_mistake_is_made() {
    let tries = if std::env::var("SLAT_SEEDED").is_ok() { TRIES } else { RIGHT };
    for seed in 0..tries {
        assert!(exact::is_right(seed, Way::Stepped), "{WRONG} {seed}");
    }
}

#[test]
fn each_mistake_is_found_by_l2() {
    let is_found = |bug: Bug| {
        let mut test = Command::new(std::env::current_exe().unwrap());
        let output =
            test.args(["--exact", "--nocapture", LOOKS]).env("SLAT_SEEDED", bug.name()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let by = said.lines().find(|line| line.contains(WRONG) || line.contains("panicked at"));
        println!("{}: {}", bug.name(), by.unwrap_or("not found"));
        !output.status.success()
    };
    let missed: Vec<_> = MISTAKES.iter().filter(|&&bug| !is_found(bug)).collect();
    assert!(missed.is_empty(), "no world is wrong with {missed:?}");
}
