//! Tests of the explorer: it finds nothing in the engine, and finds TLBs that ignore flushes, again and again.

#[path = "../../../slat/src/tries.rs"]
mod tries;

use slat_explore::hunt::Hunt;
use slat_explore::plan::draw;
use slat_explore::shrink;
use slat_explore::world::{STALE, STRAYED, run};
use tries::tries;

fn hunt(seeds: u64) -> Hunt {
    Hunt { first: 1, seeds, at_most: None, cpus: None, rounds: false, faulty_tlbs: false }
}

#[test]
fn the_first_worlds_hold() {
    let worlds = tries(200);
    let found = hunt(worlds).go();
    assert_eq!((found.failing, found.worlds), (None, worlds));
    assert!(found.steps > worlds * 1000, "worlds in which things happen: {} accesses", found.steps);
}

/// Upgrades and overlapping invalidations of two or three pages, whose rounds all CPUs begin together.
#[test]
fn worlds_in_rounds_hold() {
    let worlds = tries(30);
    let found = Hunt { rounds: true, ..hunt(worlds) }.go();
    assert_eq!((found.failing, found.worlds), (None, worlds));
}

#[test]
fn worlds_of_many_cpus_hold() {
    for cpus in [33, 416] {
        let found = Hunt { cpus: Some(cpus), ..hunt(2) }.go();
        assert_eq!((found.failing, found.worlds), (None, 2), "{cpus} CPUs");
    }
}

#[test]
fn two_runs_of_a_seed_are_identical_to_the_last_access() {
    for seed in 1..40 {
        let plan = draw(seed, None, false);
        assert_eq!(plan, draw(seed, None, false));
        let [first, second] = [run(&plan, true), run(&plan, true)];
        assert_eq!(first, second, "seed {seed}");
        // Recording the story changes nothing.
        assert_eq!(run(&plan, false).hash, first.hash, "seed {seed}");
    }
}

#[test]
fn negative_control_another_turn_is_another_run() {
    let plan = draw(1, None, false);
    let turned = slat_explore::plan::Plan { turn: 1, ..plan.clone() };
    assert_ne!(run(&plan, false).hash, run(&turned, false).hash);
}

#[test]
fn negative_control_faulty_tlbs_are_found_shrunk_and_repeated_by_the_command_that_is_printed() {
    let hunt = Hunt { faulty_tlbs: true, ..hunt(200) };
    let (seed, wrong) = hunt.go().failing.expect("TLBs that ignore flushes are found");
    assert!([STALE, STRAYED].contains(&wrong.what), "{}", wrong.what);
    let plan = hunt.plan(seed);
    assert_eq!(hunt.command(&plan), format!("cargo xtask explore --first {seed} --seeds 1 --faulty-tlbs"));

    let small = shrink::shrink(&plan, wrong.what);
    assert!(small.ops() < plan.ops() && small.ops() <= 20, "{} of {}", small.ops(), plan.ops());
    let again = run(&small, true);
    assert_eq!(again.wrong.as_ref().map(|wrong| wrong.what), Some(wrong.what));
    assert!(
        again.story.last().is_some_and(|line| line.contains(wrong.what)),
        "the story ends with what was wrong"
    );

    // The printed command is enough to rebuild the plan.
    let only = shrink::kept(&small);
    let command = hunt.command(&small);
    assert!(command.ends_with(&format!("--only {only} --turn {}", small.turn)), "{command}");
    let kept = shrink::keep(&hunt.plan(seed), &only).unwrap();
    assert_eq!(slat_explore::plan::Plan { turn: small.turn, ..kept }, small);
}

#[test]
fn what_cannot_be_kept_is_said() {
    let plan = draw(1, None, false);
    for only in ["0", "x:1", "0:y", "99:1"] {
        let said = shrink::keep(&plan, only).unwrap_err();
        assert!(said.starts_with("--only "), "{said}");
    }
}
