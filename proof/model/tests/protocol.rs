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

/// The scenarios that the mistakes with nested guests name are those of the first design. What is built leaves out other things.
#[test]
fn mistakes_with_nested_guests_are_found_as_they_are_built() {
    let all = nested::scenarios::families().into_iter().filter(|family| family.name.ends_with("as built"));
    let all: Vec<Nested> = all.flat_map(|family| family.scenarios).collect();
    let bugs = [
        Bug::EntryUnchecked,
        Bug::TablesReadFirst,
        Bug::ShadowFaultUnscanned,
        Bug::WriteWithoutDirty,
        Bug::RefusedLeafKept,
        Bug::RefusedOnce,
        Bug::WriteUnmarked,
        Bug::ArmForgetsShadows,
        Bug::ShadowLogBeforeGrace,
        Bug::RemovedBeforeFlush,
        Bug::L1TagOnly,
        Bug::OutsideUnflushed,
        Bug::FirstEntryUnflushed,
        Bug::CoalescedWithOlder,
        Bug::CoalescedUnwaited,
        Bug::BroadcastDeferred,
        Bug::SlotMovedUnderTables,
    ];
    let found = side_by_side(&bugs, |&bug| {
        let name = format!("{}, as built", bug.scenario().trim_end_matches(", as built"));
        let same = all.iter().find(|scenario| scenario.name == name).expect("each has one as built");
        let mut with = [same].into_iter().chain(&all).map(|scenario| scenario.clone().with(bug));
        with.any(|scenario| scenario.check().found.is_some())
    });
    let missed: Vec<_> =
        bugs.iter().zip(found).filter(|(_, found)| !found).map(|(bug, _)| bug.name()).collect();
    assert_eq!(missed, [""; 0]);
}
