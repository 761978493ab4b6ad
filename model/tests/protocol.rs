//! The protocol has no hole in the scenarios of every run, and the checker would have found one.

use slat_model::{Bug, library};

#[test]
fn nothing_bad_happens_and_all_can_end() {
    let mut states = 0;
    for scenario in library::every_run() {
        let verdict = scenario.check();
        states += verdict.states;
        assert!(verdict.found.is_none(), "{}: {:?}", scenario.name, verdict.found);
        assert!(verdict.ends, "{}: it cannot end", scenario.name);
    }
    println!("{states} states");
}

#[test]
fn nothing_gets_stuck() {
    for scenario in library::small() {
        let ends = scenario.check_ends();
        assert!(ends.is_ok(), "{}: stuck in {:#?}", scenario.name, ends.unwrap_err());
    }
}

#[test]
fn every_mistake_is_found() {
    println!("| mistake | found as | steps | states | scenario |\n|---|---|---|---|---|");
    for &(bug, what) in Bug::ALL {
        let found = library::find(bug);
        let (scenario, states, (bad, actions)) = found.unwrap_or_else(|| panic!("not found: {what}"));
        println!("| {what} | {bad:?} | {} | {states} | {scenario} |", actions.len());
    }
}
