//! Tests of the explorer: it finds mistakes, finds them again, and finds nothing in the engine without mistakes.

use slat::seeded::Bug;
use slat_explore::hunt::Hunt;
use slat_explore::plan::draw;
use slat_explore::shrink;
use slat_explore::world::{STALE, STRAYED, run};

fn hunt(seeds: u64, bug: Option<Bug>) -> Hunt {
    Hunt { first: 1, seeds, at_most: None, cpus: None, bug }
}

#[test]
fn the_first_worlds_hold() {
    let found = hunt(200, None).go();
    assert_eq!((found.failing, found.worlds), (None, 200));
    assert!(found.steps > 200 * 1000, "worlds in which things happen: {} accesses", found.steps);
}

#[test]
fn worlds_of_many_cpus_hold() {
    for cpus in [33, 416] {
        let found = Hunt { cpus: Some(cpus), ..hunt(2, None) }.go();
        assert_eq!((found.failing, found.worlds), (None, 2), "{cpus} CPUs");
    }
}

#[test]
fn two_runs_of_a_seed_are_identical_to_the_last_access() {
    for seed in 1..40 {
        let plan = draw(seed, None);
        assert_eq!(plan, draw(seed, None));
        let [first, second] = [run(&plan, None, true), run(&plan, None, true)];
        assert_eq!(first, second, "seed {seed}");
        // Recording the story changes nothing.
        assert_eq!(run(&plan, None, false).hash, first.hash, "seed {seed}");
    }
}

#[test]
fn negative_control_another_turn_is_another_run() {
    let plan = draw(1, None);
    let turned = slat_explore::plan::Plan { turn: 1, ..plan.clone() };
    assert_ne!(run(&plan, None, false).hash, run(&turned, None, false).hash);
}

#[test]
fn a_mistake_is_found_shrunk_and_repeated_by_the_command_that_is_printed() {
    let bug = Bug::FlushUnanswered;
    let hunt = hunt(2000, Some(bug));
    let (seed, wrong) = hunt.go().failing.expect("a shootdown that waits for no vCPU is found");
    assert!([STALE, STRAYED].contains(&wrong.what), "{}", wrong.what);
    let plan = draw(seed, None);
    assert_eq!(
        hunt.command(&plan),
        format!("cargo xtask explore --first {seed} --seeds 1 --seeded {}", bug.name())
    );

    let small = shrink::shrink(&plan, Some(bug), wrong.what);
    assert!(small.ops() < plan.ops() && small.ops() <= 20, "{} of {}", small.ops(), plan.ops());
    let again = run(&small, Some(bug), true);
    assert_eq!(again.wrong.as_ref().map(|wrong| wrong.what), Some(wrong.what));
    assert!(
        again.story.last().is_some_and(|line| line.contains(wrong.what)),
        "the story ends with what was wrong"
    );

    // The printed command is enough to rebuild the plan.
    let only = shrink::kept(&small);
    let command = hunt.command(&small);
    assert!(command.ends_with(&format!("--only {only} --turn {}", small.turn)), "{command}");
    let kept = shrink::keep(&draw(seed, None), &only).unwrap();
    assert_eq!(slat_explore::plan::Plan { turn: small.turn, ..kept }, small);
}

#[test]
fn what_cannot_be_kept_is_said() {
    let plan = draw(1, None);
    for only in ["0", "x:1", "0:y", "99:1"] {
        let said = shrink::keep(&plan, only).unwrap_err();
        assert!(said.starts_with("--only "), "{said}");
    }
}
