//! The scenarios, by family: a set for every run, and a larger set.

mod held;
mod kicks;
mod large;
mod logs;
mod memo;
mod regions;
mod shapes;
mod slots;
mod terms;
mod tracked;

use crate::bug::Bug;
use crate::check::{Checked, Verdict};
use crate::scenario::{Family, Scenario};
use crate::state::{Op, Range};
use crate::{daemon, fleet, nested, primary};
use terms::{Clear, Protect, Unmap, gfns, hvas, initial_states, slow};

/// Returns all families.
pub fn families() -> Vec<Family> {
    let family = |name, scenarios| Family { name, scenarios };
    vec![
        family("dirty", shapes::dirty()),
        family("answers", slots::answers()),
        family("shapes", shapes::shapes()),
        family("parts", shapes::parts()),
        family("regions", regions::regions()),
        family("regions and more", regions::more_regions()),
        family("passes", regions::passes()),
        family("dirty, by host address", by_host(shapes::dirty())),
        family("slots", slots::slots()),
        family("versions", slots::versions()),
        family("told", slots::told()),
        family("tracked", tracked::tracked()),
        family("held", held::held()),
        family("memo", memo::memo()),
        family("leaked", slots::leaked()),
        family("copies", slots::copies()),
        family("by W", logs::by_writes()),
        family("by D", logs::by_bits()),
        family("kicks", kicks::kicks()),
        family("broadcasts", kicks::broadcasts()),
        family("two", two()),
    ]
}

/// Returns further families for longer runs.
pub fn large_families() -> Vec<Family> {
    let family = |name, scenarios| Family { name, scenarios };
    vec![
        family("two vCPUs", large::two_vcpus(&families())),
        family("shapes, by host address", by_host(shapes::shapes())),
        family("three edits", large::three_edits()),
        family("four threads", large::four_threads()),
        family("more", large::more()),
    ]
}

/// Returns the scenarios for [`Scenario::check_ends`].
pub fn stuck() -> Vec<Scenario> {
    [shapes::dirty(), logs::by_bits(), kicks::kicks()].into_iter().flatten().collect()
}

/// Two edits beside a fault.
fn two() -> Vec<Scenario> {
    let edits = [
        ("clear 0..1", hvas(Clear, 0, 1)),
        ("clear 0..2", gfns(Clear, 0, 2)),
        ("unmap 0..2", hvas(Unmap, 0, 2)),
        ("protect 0..2", hvas(Protect, 0, 2)),
    ];
    let mut all = Vec::new();
    for (state_name, shared) in initial_states() {
        for (a, (name_a, edit_a)) in edits.iter().enumerate() {
            for (name_b, edit_b) in &edits[a..] {
                let name = format!("{state_name}: {name_a} | {name_b} | slow fault on 0");
                all.push(shared(Scenario::new(&name, &[&[*edit_a], &[*edit_b], &[slow(0)]])));
            }
        }
    }
    all
}

/// Repeats the scenarios with invalidations by frame, with invalidations by host address.
fn by_host(scenarios: Vec<Scenario>) -> Vec<Scenario> {
    let by_frame = |op: &Op| matches!(op, Op::Invalidate { range: Range::Gfns(_), .. });
    let has = |scenario: &Scenario| scenario.programs.iter().flatten().any(by_frame);
    scenarios.into_iter().filter(has).map(Scenario::by_host).collect()
}

/// Makes `bug` in the scenario that must find it. Returns that scenario's name, and the verdict.
pub fn find(bug: Bug) -> (&'static str, Verdict) {
    let name = bug.scenario();
    let nested = nested::scenarios::families().into_iter().chain(nested::scenarios::large_families());
    if let Some(scenario) = nested.flat_map(|family| family.scenarios).find(|scenario| scenario.name == name)
    {
        return (name, scenario.with(bug).check());
    }
    let parts = nested::parts::families().into_iter().flat_map(|family| family.scenarios);
    if let Some(scenario) = { parts }.find(|scenario| scenario.name == name) {
        return (name, scenario.with(bug).check());
    }
    let primary = primary::scenarios::families().into_iter().flat_map(|family| family.scenarios);
    if let Some(scenario) = { primary }.find(|scenario| scenario.name == name) {
        return (name, scenario.with(bug).check());
    }
    let fleet = fleet::scenarios::families().into_iter().flat_map(|family| family.scenarios);
    if let Some(scenario) = { fleet }.find(|scenario| scenario.name == name) {
        return (name, scenario.with(bug).check());
    }
    let daemon = daemon::scenarios::families().into_iter().flat_map(|family| family.scenarios);
    if let Some(scenario) = { daemon }.find(|scenario| scenario.name == name) {
        return (name, scenario.with(bug).check());
    }
    let mut all = families().into_iter().chain(large_families()).flat_map(|family| family.scenarios);
    let scenario = all.find(|scenario| scenario.name == name);
    (name, scenario.unwrap_or_else(|| panic!("no scenario is called {name}")).with(bug).check())
}
