//! The protocol has no hole in some of the small scenarios, and the checker finds some of the seeded mistakes. `cargo run -p
//! slat-model push`, which CI runs too, checks all of both; without a word it checks the large scenarios as well.

use slat_model::check::side_by_side;
use slat_model::{Bug, Checked, Nested, Scenario, library, nested};

/// Of so many scenarios, and of so many mistakes, one is checked here.
const SOME: usize = 4;

#[test]
fn nothing_bad_happens_and_all_can_end() {
    let all = library::families().into_iter().flat_map(|family| family.scenarios);
    let scenarios: Vec<_> = all.step_by(SOME).collect();
    for (scenario, verdict) in scenarios.iter().zip(side_by_side(&scenarios, Scenario::check)) {
        assert!(verdict.found.is_none(), "{}: {:?}", scenario.name, verdict.found);
        assert!(verdict.ends, "{}: it cannot end", scenario.name);
    }
}

#[test]
fn nothing_bad_happens_to_nested_guests_and_all_can_end() {
    let all = nested::scenarios::families().into_iter().flat_map(|family| family.scenarios);
    let scenarios: Vec<_> = all.step_by(SOME).collect();
    for (scenario, verdict) in scenarios.iter().zip(side_by_side(&scenarios, Nested::check)) {
        assert!(verdict.found.is_none(), "{}: {:?}", scenario.name, verdict.found);
        assert!(verdict.ends, "{}: it cannot end", scenario.name);
    }
}

#[test]
fn nothing_gets_stuck() {
    for scenario in library::stuck().into_iter().step_by(SOME) {
        let ends = scenario.check_ends();
        assert!(ends.is_ok(), "{}: stuck in {:#?}", scenario.name, ends.unwrap_err());
    }
}

#[test]
fn mistakes_are_found() {
    let some: Vec<Bug> = Bug::ALL.iter().copied().step_by(SOME).collect();
    for (bug, (scenario, verdict)) in some.iter().zip(side_by_side(&some, |&bug| library::find(bug))) {
        assert!(verdict.found.is_some(), "{}: not found in {scenario}: {}", bug.name(), bug.what());
    }
}
