//! The scenarios, by family: a set for every run, and a larger set.

mod held;
mod kicks;
mod large;
mod logs;
mod memo;
mod regions;
mod shapes;
mod slots;
mod tracked;

use crate::bug::Bug;
use crate::check::{Checked, Verdict};
use crate::scenario::Scenario;
use crate::shared::Span;
use crate::thread::{Op, Range, Why};
use crate::{fleet, nested, primary};

const fn read(gfn: u8) -> Op {
    Op::Access { gfn, write: false, sleeps: false, large: false }
}

const fn write(gfn: u8) -> Op {
    Op::Access { gfn, write: true, sleeps: false, large: false }
}

/// A load whose fault asks a host that sleeps.
const fn slow(gfn: u8) -> Op {
    Op::Access { gfn, write: false, sleeps: true, large: false }
}

/// A store whose fault asks a host that sleeps, and that lets the page be written.
const fn slow_store(gfn: u8) -> Op {
    Op::Access { gfn, write: true, sleeps: true, large: false }
}

const fn large(gfn: u8, sleeps: bool) -> Op {
    Op::Access { gfn, write: false, sleeps, large: true }
}

const fn gfns(why: Why, start: u8, end: u8) -> Op {
    Op::Invalidate { range: Range::Gfns(Span::new(start, end)), why, yields: false }
}

const fn hvas(why: Why, start: u8, end: u8) -> Op {
    Op::Invalidate { range: Range::Hvas(Span::new(start, end)), why, yields: false }
}

const fn commit(start: u8, end: u8, hva: u8) -> Op {
    Op::Commit { gfns: Span::new(start, end), hva }
}

use Why::{ChangePte, Clear, Leaked, Park, Protect, Track, Unmap};

type Shared = (&'static str, fn(Scenario) -> Scenario);

/// The initial states for two invalidations and a fault.
fn initial_states() -> Vec<Shared> {
    vec![
        ("nothing", |s| s),
        ("an empty table", Scenario::empty),
        ("small leaves", |s| s.small(true, true)),
        ("read-only leaves", |s| s.small(false, false)),
        ("a large leaf", |s| s.large(true)),
        ("a large leaf, no page at hand", |s| s.large(true).pageless()),
    ]
}

/// Scenarios about one subject.
pub struct Family<S = Scenario> {
    /// Name of the subject.
    pub name: &'static str,
    /// The scenarios.
    pub scenarios: Vec<S>,
}

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
    let mut all = families().into_iter().chain(large_families()).flat_map(|family| family.scenarios);
    let scenario = all.find(|scenario| scenario.name == name);
    (name, scenario.unwrap_or_else(|| panic!("no scenario is called {name}")).with(bug).check())
}
