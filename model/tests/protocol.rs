//! The protocol has no hole in the small scenarios, and the checker would have found one. `cargo run -p
//! slat-model` checks the large ones too.

use slat_model::check::side_by_side;
use slat_model::{Bug, Scenario, library};

#[test]
fn nothing_bad_happens_and_all_can_end() {
    let scenarios: Vec<_> = library::families().into_iter().flat_map(|family| family.scenarios).collect();
    for (scenario, verdict) in scenarios.iter().zip(side_by_side(&scenarios, Scenario::check)) {
        assert!(verdict.found.is_none(), "{}: {:?}", scenario.name, verdict.found);
        assert!(verdict.ends, "{}: it cannot end", scenario.name);
    }
}

#[test]
fn nothing_gets_stuck() {
    for scenario in library::stuck() {
        let ends = scenario.check_ends();
        assert!(ends.is_ok(), "{}: stuck in {:#?}", scenario.name, ends.unwrap_err());
    }
}

#[test]
fn every_mistake_is_found() {
    for (bug, (scenario, verdict)) in Bug::ALL.iter().zip(side_by_side(Bug::ALL, |&bug| library::find(bug))) {
        assert!(verdict.found.is_some(), "{}: not found in {scenario}: {}", bug.name(), bug.what());
    }
}
