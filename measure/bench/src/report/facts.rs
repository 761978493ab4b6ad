//! The figures of a report as one kind of row, whatever they come from.
//!
//! | source | name | before | after |
//! |---|---|---|---|
//! | a patch series | what it measured | without the series | with it |
//! | a bench on this machine | the baseline, or the operation | the baseline | slat |
//! | the watched replay | what was counted | – | slat |
//!
//! The figures of simulations have more than two columns: [`Sim`](crate::report::report_data::Sim) has them.

use crate::figure_text::{times, with};
use crate::report::replay::{Replay, Stretch};
use crate::report::report_data::{Bench, Data, Row, text};
use serde::Serialize;
use std::collections::BTreeMap;

/// The comparison of two baselines that the NUMA protection series makes.
pub const KVM_NUMA: &str = "range, yielding: KVM → page, locked: KVM with the series";

/// Where a figure comes from. Every figure of the page says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The patch series.
    Series,
    /// This machine.
    Here,
    /// Simulated CPUs in virtual time.
    Simulated,
}

/// See the module's header.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Fact {
    pub from: Source,
    /// The bench that measures it, or `replay`.
    pub of: String,
    pub name: String,
    pub params: BTreeMap<String, String>,
    pub unit: String,
    pub before: Option<f64>,
    pub after: Option<f64>,
    /// Above 1: after is the better.
    pub ratio: Option<f64>,
}

/// Parameters that tell a row from others of the same name.
pub type Params<'p> = &'p [(&'p str, &'p str)];

impl Fact {
    /// A comparison in which less is better.
    pub fn new(from: Source, (of, name, params): (&str, &str, Params<'_>), unit: &str) -> Self {
        let params = params.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        let (of, name, unit) = (of.to_owned(), name.to_owned(), unit.to_owned());
        Self { from, of, name, params, unit, before: None, after: None, ratio: None }
    }

    /// With both figures.
    #[must_use]
    pub fn of(self, before: f64, after: f64) -> Self {
        let ratio = Some(before / after).filter(|ratio| ratio.is_finite());
        Self { before: Some(before), after: Some(after), ratio, ..self }
    }

    /// Whether it is that figure.
    pub fn is(&self, of: &str, name: &str, params: Params<'_>) -> bool {
        let has = |&(key, value): &(&str, &str)| self.params.get(key).is_some_and(|has| has == value);
        (&*self.of, &*self.name) == (of, name) && params.iter().all(has)
    }

    /// The words, with figures for `{before}`, `{after}` and `{ratio}`, and settings for other names; none where one is missing.
    pub fn fill(&self, words: &str) -> Option<String> {
        let bold = |text: String| format!("**{text}**");
        let mut parts = words.split(['{', '}']);
        let mut filled = parts.next()?.to_owned();
        while let (Some(name), Some(rest)) = (parts.next(), parts.next()) {
            let text = match name {
                "before" => bold(with(self.before?, &self.unit)),
                "after" => bold(with(self.after?, &self.unit)),
                "ratio" => bold(times(self.ratio?)),
                "name" => self.name.clone(),
                setting => self.params.get(setting)?.clone(),
            };
            filled += &text;
            filled += rest;
        }
        Some(filled)
    }
}

/// Everything measured here.
pub fn measured(data: &Data) -> Vec<Fact> {
    let benches = data.benches().flat_map(of_bench);
    let mut facts: Vec<Fact> = benches.chain(data.replay().into_iter().flat_map(of_replay)).collect();
    let pairs = pairs(&facts);
    facts.extend(pairs);
    facts
}

/// See [`KVM_NUMA`].
fn pairs(facts: &[Fact]) -> Vec<Fact> {
    let (before, after) = KVM_NUMA.split_once(" → ").unwrap_or_default();
    let pair = |one: &Fact| {
        let other = facts.iter().find(|fact| fact.name == after && fact.params == one.params)?;
        Some(Fact { name: KVM_NUMA.to_owned(), ..one.clone() }.of(one.before?, other.before?))
    };
    facts.iter().filter(|fact| fact.name == before).filter_map(pair).collect()
}

/// Of each row; its settings are those of the bench, too.
fn of_bench(bench: &Bench) -> Vec<Fact> {
    let row = |row: &Row| Fact {
        from: Source::Here,
        of: bench.bench.to_string(),
        name: row.name.clone(),
        params: bench
            .params
            .iter()
            .chain(&row.params)
            .map(|(key, value)| (key.clone(), text(Some(value))))
            .collect(),
        unit: row.unit.to_string(),
        before: row.baseline,
        after: Some(row.slat),
        ratio: row.ratio,
    };
    bench.rows.iter().map(row).collect()
}

fn of_replay(replay: &Replay) -> Vec<Fact> {
    let fact = |name: &str, unit: &str, value: f64| Fact {
        after: Some(value),
        ..Fact::new(Source::Here, ("replay", name, &[("trace", &replay.trace)]), unit)
    };
    let ages: Vec<f32> = replay.heat.ages.iter().flatten().copied().flatten().collect();
    let share = |holds: &dyn Fn(f32) -> bool| {
        ages.iter().filter(|age| holds(**age)).count() as f64 / ages.len().max(1) as f64
    };
    let mut rates: Vec<f64> = replay.stretches.iter().map(Stretch::dirty_rate).collect();
    rates.sort_by(f64::total_cmp);
    let [median, most] = [rates.get(rates.len() / 2), rates.last()].map(|rate| rate.copied().unwrap_or(0.0));
    let mut facts = vec![
        fact("memory used in the last two aging passes", "share", share(&|age| age < 1.5)),
        fact("memory not used in the last eight", "share", share(&|age| age >= 7.5)),
        fact("dirty rate, at most", "pages", most.round()),
        fact("dirty rate, half of the time below", "pages", median.round()),
    ];
    let quantile = |&(share, ns): &(f64, u64)| {
        let percent = format!("{:.4}", share * 100.0);
        fact(&format!("p{}", percent.trim_end_matches('0').trim_end_matches('.')), "ns", ns as f64)
    };
    facts.extend(replay.quantiles.iter().map(quantile));
    facts.extend(replay.causes.iter().map(|cause| fact(&cause.why, "flushes", cause.flushes as f64)));
    facts
}
