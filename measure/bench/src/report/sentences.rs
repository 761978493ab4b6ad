//! The sentences of the report: which row, and which words. Every figure in a sentence is that row's.
//!
//! A figure stands between `**`. A sentence that compares slat with something says so where slat loses. A sentence without its row
//! is left out.

use crate::figure_text::with;
use crate::report::facts::{Fact, KVM_NUMA, Params, Source};
use crate::report::published::AGING_LOCK;
use crate::report::report_data::{Sim, SimRow};
use serde::Serialize;
use slat_series::PatchSeries::{self, ChangePte, Kvm, MglruAging, NumaProtection, ScalableMemslots, TdpMmu};

/// A sentence of the page.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Sentence {
    pub from: Source,
    pub text: String,
    /// The plot that shows the same; others stand in the summary.
    pub plot: Option<String>,
}

/// The place of a sentence.
#[derive(Clone, Copy)]
enum At {
    /// In the summary: of the last such row.
    Summary,
    /// Below a plot: of each such row, below a plot each.
    Plot(&'static str),
}

/// Ends a sentence in which slat loses.
const LOSES: &str = "slat loses";

type Template = (PatchSeries, At, Source, (&'static str, &'static str, Params<'static>), &'static str);

/// The templates. `{before}`, `{after}` and `{ratio}` are figures of the row; other names in braces are its settings.
#[rustfmt::skip]
const TEMPLATES: &[Template] = &[
    (MglruAging, At::Summary, Source::Series, ("access-tracking-perf", AGING_LOCK, &[]),
     "With {vcpus} vCPUs, an aging pass page by page takes {before} with the MMU lock held and {after} without it: {ratio}."),
    (MglruAging, At::Summary, Source::Here, ("access-tracking-perf", AGING_LOCK, &[("figure", "average pass")]),
     "With {vcpus} vCPUs, an aging pass page by page takes {before} with the MMU lock held and {after} without it: {ratio}."),
    (MglruAging, At::Summary, Source::Here, ("access-tracking-perf", "page by page, lock (no opt) → slat", &[("figure", "average pass")]),
     "With {vcpus} vCPUs, an aging pass takes {before} page by page with the lock held, and {after} by tables in slat."),
    (MglruAging, At::Plot("replay: ages"), Source::Here, ("replay", "memory used in the last two aging passes", &[]),
     "Of the memory of {trace}, {after} was used in the last two aging passes."),
    (MglruAging, At::Plot("replay: ages"), Source::Here, ("replay", "memory not used in the last eight", &[]),
     "Of the memory of {trace}, {after} was not used in the last eight."),

    (ScalableMemslots, At::Summary, Source::Series, ("memslot-perf", "unmap", &[]),
     "With {slots} memslots, an `unmap` test takes {before} with a sorted array and {after} with trees: {ratio}."),
    (ScalableMemslots, At::Summary, Source::Here, ("memslot-perf", "unmap", &[]),
     "With {slots} memslots, an `unmap` test takes {before} with a sorted array and {after} in slat: {ratio}."),

    (NumaProtection, At::Summary, Source::Series, ("numa-balancing", KVM_NUMA, &[("mean of", "remote flushes")]),
     "A boot takes {before} by whole ranges and {after} page by page."),
    (NumaProtection, At::Summary, Source::Here, ("numa-balancing", "range: before", &[("mean of", "remote flushes"), ("device", "none")]),
     "A replay of {traces} takes {before} by whole ranges and {after} in slat."),
    (NumaProtection, At::Plot("replay: causes"), Source::Here, ("replay", "migrate", &[]),
     "Moves of pages cost {trace} {after}."),
    (NumaProtection, At::Plot("replay: causes"), Source::Here, ("replay", "aging", &[]),
     "Aging costs it {after}."),

    (TdpMmu, At::Summary, Source::Series, ("demand-paging", "one mutex: before", &[]),
     "With {vcpus} vCPUs, {before} of the time is spent waiting for the MMU lock."),
    (TdpMmu, At::Summary, Source::Here, ("migrate", "downtime", &[]),
     "A guest that writes all the time halts for {after} to migrate over TCP, and for {before} where it is halted first."),
    (TdpMmu, At::Plot("demand-paging: latency"), Source::Here, ("demand-paging", "one mutex: before", &[("figure", "p99")]),
     "With {vcpus} vCPUs, pages served {served}, the p99 of a fault is {before} with one mutex and {after} in slat."),
    (TdpMmu, At::Plot("replay: dirty rate"), Source::Here, ("replay", "dirty rate, at most", &[]),
     "In one second {trace} writes to {after} at most."),
    (TdpMmu, At::Plot("replay: dirty rate"), Source::Here, ("replay", "dirty rate, half of the time below", &[]),
     "Half of the time it writes to fewer than {after}."),
    (TdpMmu, At::Plot("replay: faults"), Source::Here, ("replay", "p50", &[]), "The {name} of its faults is {after}."),
    (TdpMmu, At::Plot("replay: faults"), Source::Here, ("replay", "p99.99", &[]), "The {name} of its faults is {after}."),

    (ChangePte, At::Summary, Source::Series, ("ksm-perf", "system time", &[("of its runs", "mean")]),
     "While KSM merges, a guest's kernel takes {before} with the reasons for changes ignored and {after} with them heeded."),
    (ChangePte, At::Summary, Source::Here, ("ksm-perf", "mean", &[("figure", "time in MMU code")]),
     "While KSM merges, {vms} VMs spend {before} in MMU code with the reasons ignored and {after} with them heeded: {ratio}."),

    (Kvm, At::Summary, Source::Series, ("dirty-log-perf", "the log is enabled, up front → gradually", &[]),
     "The dirty log of {memory} is enabled in {before} up front and in {after} gradually."),
];

/// Figures of a simulation that have a plot, beside the one that ranks its policies.
const PLOTTED: [&str; 2] = ["average pass", "fault beside it"];

/// The sentences of a series.
pub fn sentences<'s>(
    series: PatchSeries,
    facts: &[&Fact],
    sims: impl Iterator<Item = &'s Sim>,
) -> Vec<Sentence> {
    let mut all = Vec::new();
    for (_, at, from, (of, name, params), words) in TEMPLATES.iter().filter(|template| template.0 == series) {
        let rows = facts.iter().filter(|fact| fact.from == *from && fact.is(of, name, params));
        let mut texts = rows.filter_map(|row| {
            let loses = *from != Source::Series && words.contains("{before}") && row.after > row.before;
            let text = row.fill(words)?;
            Some(if loses { format!("{}; {LOSES}.", text.trim_end_matches('.')) } else { text })
        });
        let sentence = |plot| move |text| Sentence { from: *from, text, plot };
        match at {
            At::Summary => all.extend(texts.next_back().map(sentence(None))),
            At::Plot(plot) => {
                let named = |(nth, text)| sentence(Some(format!("{plot} {}", nth + 1)))(text);
                all.extend(texts.enumerate().map(named));
            }
        }
    }
    all.extend(sims.flat_map(of_sim));
    all
}

/// A sentence for each plot of a simulation: every policy with the most vCPUs, and where slat loses. The first is in the summary, too.
fn of_sim(sim: &Sim) -> Vec<Sentence> {
    let first = sim.rows.iter().find_map(SimRow::first).map(|figure| &*figure.name);
    let names = first.into_iter().chain(PLOTTED.into_iter().filter(|name| Some(*name) != first));
    let sentence = |name: &str| {
        let value = |row: &SimRow| match name {
            WAITING => Some((row.waiting, "share".to_owned())),
            name => row.figure(name).map(|figure| (figure.value, figure.unit.to_string())),
        };
        let largest = *sim.vcpus().last()?;
        let policies = sim.policies();
        let each = policies.iter().filter_map(|policy| {
            let (value, unit) = value(sim.at(largest, policy)?)?;
            Some(format!("**{}** with `{policy}`", with(value, &unit)))
        });
        let each: Vec<String> = each.collect();
        let losses: Vec<String> = sim
            .vcpus()
            .iter()
            .filter(|vcpus| sim.loses(**vcpus, |row| Some(value(row)?.0)))
            .map(u32::to_string)
            .collect();
        let loses = if losses.is_empty() {
            String::new()
        } else {
            format!("; {LOSES} with {} vCPUs", losses.join(", "))
        };
        let text = format!("`{}`, {largest} vCPUs, {name}: {}{loses}.", sim.sim, each.join(", "));
        (!each.is_empty()).then(|| Sentence {
            from: Source::Simulated,
            text,
            plot: Some(format!("{}: {name}", sim.sim)),
        })
    };
    let plots: Vec<Sentence> = names.chain([WAITING]).filter_map(sentence).collect();
    let summary = plots.first().map(|first| Sentence { plot: None, ..first.clone() });
    summary.into_iter().chain(plots.clone()).collect()
}

/// The share of their time that vCPUs wait.
const WAITING: &str = "waiting for locks and cache lines";
