//! The claims of a series: a published figure beside ours, and a verdict that follows from both and a tolerance.

use crate::report::facts::{Fact, Params, Source};
use crate::report::published::Text;
use crate::report::report_data::Sim;
use serde::Serialize;
use slat_series::{PatchSeries, change_pte, tdp_mmu};

/// See the module's header.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Claim {
    pub what: String,
    pub published: f64,
    pub ours: f64,
    /// Of both.
    pub unit: String,
    /// Of a ratio: what is divided by what.
    pub sides: Option<[String; 2]>,
    /// Where ours is from.
    pub from: Source,
    pub verdict: Verdict,
    /// How far apart the two may be, and why so far; or why there is no verdict.
    pub tolerance: String,
    pub note: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Reproduced,
    Better,
    NotReproduced,
    #[serde(rename = "no-verdict")]
    None,
}

/// When ours counts as the published figure.
enum Tolerance {
    /// Within [`FACTOR`], or more.
    Factor,
    Same(&'static str),
    None(&'static str),
}

/// How far two machines may be apart in a ratio that is said to be reproduced.
const FACTOR: f64 = 1.25;

impl Tolerance {
    fn verdict(&self, published: f64, ours: f64) -> Verdict {
        match self {
            Self::None(_) => Verdict::None,
            Self::Factor if (1.0 / FACTOR..=FACTOR).contains(&(ours / published)) => Verdict::Reproduced,
            Self::Factor if ours > published => Verdict::Better,
            Self::Same(_) if ours.total_cmp(&published).is_eq() => Verdict::Reproduced,
            _ => Verdict::NotReproduced,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Factor => {
                format!("within a factor of {FACTOR}: another machine has other caches and clocks")
            }
            Self::Same(why) => format!("the same count: {why}"),
            Self::None(why) => format!("no verdict: {why}"),
        }
    }
}

/// A claim that no comparison of the series has row by row.
struct Single {
    series: PatchSeries,
    what: &'static str,
    published: f64,
    unit: &'static str,
    /// Our rows; of several the one with the largest figure counts.
    row: (&'static str, &'static str, Params<'static>),
    figure: fn(&Fact) -> Option<f64>,
    tolerance: Tolerance,
}

const SINGLE: [Single; 4] = [
    Single {
        series: PatchSeries::TdpMmu,
        what: "with one mutex, vCPUs spend nearly all of their time waiting for it",
        published: 100.0 * tdp_mmu::WAITING,
        unit: "% of fault time",
        row: ("demand-paging", "one mutex: before", &[("figure", "waiting for the MMU lock")]),
        figure: |fact| fact.before,
        tolerance: Tolerance::None("this machine has too few CPUs"),
    },
    Single {
        series: PatchSeries::NumaProtection,
        what: "with an assigned device, whose memory is pinned, there is nothing to flush",
        published: 0.0,
        unit: "flushes",
        row: (
            "numa-balancing",
            "range: before",
            &[("device", "pins all memory"), ("mean of", "remote flushes")],
        ),
        figure: |fact| fact.after,
        tolerance: Tolerance::Same("a pinned page is not protected"),
    },
    Single {
        series: PatchSeries::ChangePte,
        what: "less time when the reasons for changes are heeded",
        published: change_pte::SYSTEM_TIME[0] / change_pte::SYSTEM_TIME[1],
        unit: "x",
        row: ("ksm-perf", "mean", &[("figure", "time in MMU code")]),
        figure: |fact| fact.ratio,
        tolerance: Tolerance::None("the series measured all of the kernel's time"),
    },
    Single {
        series: PatchSeries::ChangePte,
        what: "no guest faults for want of a translation while a page is replaced",
        published: 0.0,
        unit: "faults",
        row: (
            "ksm-perf",
            "median, best and worst",
            &[("figure", "faults for want of a translation inside changes of the entry")],
        ),
        figure: |fact| fact.after,
        tolerance: Tolerance::Same("a replaced page is never missing"),
    },
];

/// The row that measures here what a published figure says.
pub fn counterpart<'f>(published: &Fact, measured: &'f [Fact]) -> Option<&'f Fact> {
    let params: Vec<_> = published.params.iter().map(|(key, value)| (&**key, &**value)).collect();
    measured.iter().find(|fact| fact.is(&published.of, &published.name, &params))
}

/// All claims of a series: of each comparison with the largest setting that both have, single figures, and those of simulations.
pub fn claims<'s>(
    text: &Text,
    (published, measured): (&[Fact], &[Fact]),
    sims: impl Iterator<Item = &'s Sim>,
) -> Vec<Claim> {
    let mut claims: Vec<Claim> = Vec::new();
    for (at, theirs) in published.iter().enumerate() {
        let has_pair = |fact: &&Fact| counterpart(fact, measured).is_some();
        let is_last = !published[at + 1..].iter().filter(has_pair).any(|later| {
            (&later.of, &later.name, later.params.get("mean of"))
                == (&theirs.of, &theirs.name, theirs.params.get("mean of"))
        });
        let ours = counterpart(theirs, measured).filter(|_| is_last);
        let pair = ours.and_then(|ours| Some((theirs.ratio?, ours.ratio?, ours)));
        claims.extend(pair.map(|(published, ratio, ours)| ratio_claim(text, published, ratio, ours)));
    }
    claims.extend(SINGLE.iter().filter(|single| single.series == text.series).filter_map(|single| {
        let (of, name, params) = single.row;
        let rows = measured.iter().filter(|fact| fact.is(of, name, params));
        let figures = rows.filter_map(|row| Some(((single.figure)(row)?, row)));
        let (ours, row) = figures.max_by(|a, b| a.0.total_cmp(&b.0))?;
        let sides = (single.unit == "x").then(|| text.sides.map(str::to_owned));
        Some(Claim {
            what: single.what.to_owned(),
            published: single.published,
            ours,
            unit: single.unit.to_owned(),
            sides,
            from: Source::Here,
            verdict: single.tolerance.verdict(single.published, ours),
            tolerance: single.tolerance.text(),
            note: note(row),
        })
    }));
    claims.extend(sims.flat_map(|sim| &sim.against_series).map(|one| Claim {
        what: one.what.clone(),
        published: one.published,
        ours: one.simulated,
        unit: one.unit.to_string(),
        sides: one.sides.clone(),
        from: Source::Simulated,
        verdict: match (one.fitted, one.reproduced) {
            (true, _) => Verdict::None,
            (false, true) => Verdict::Reproduced,
            (false, false) => Verdict::NotReproduced,
        },
        tolerance: if one.fitted { "fitted: it proves nothing".to_owned() } else { one.detail.clone() },
        note: if one.fitted { one.detail.clone() } else { String::new() },
    }));
    claims
}

fn ratio_claim(text: &Text, published: f64, ratio: f64, ours: &Fact) -> Claim {
    let sides = match ours.name.split_once(" → ") {
        Some((before, after)) => [before, after],
        None => text.sides,
    };
    let settings = [("figure", ""), ("mean of", ""), ("vcpus", " vCPUs"), ("slots", " slots")];
    let settings = settings.iter().filter_map(|&(key, unit)| Some(ours.params.get(key)?.clone() + unit));
    Claim {
        what: std::iter::once(ours.name.clone()).chain(settings).collect::<Vec<_>>().join(", "),
        published,
        ours: ratio,
        unit: "x".to_owned(),
        sides: Some(sides.map(str::to_owned)),
        from: Source::Here,
        verdict: Tolerance::Factor.verdict(published, ratio),
        tolerance: Tolerance::Factor.text(),
        note: note(ours),
    }
}

/// Both figures of a row.
fn note(row: &Fact) -> String {
    row.fill("{after} instead of {before}").unwrap_or_default().replace('*', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_reproduced_within_its_tolerance() {
        for (tolerance, ours, verdict) in [
            (Tolerance::Factor, 1.8, Verdict::Reproduced),
            (Tolerance::Factor, 9.0, Verdict::Better),
            (Tolerance::Factor, 1.5, Verdict::NotReproduced),
            (Tolerance::Factor, f64::NAN, Verdict::NotReproduced),
            (Tolerance::Same(""), 2.0, Verdict::Reproduced),
            (Tolerance::Same(""), 2.1, Verdict::NotReproduced),
            (Tolerance::None(""), 2.0, Verdict::None),
        ] {
            assert_eq!(tolerance.verdict(2.0, ours), verdict, "{ours}");
        }
    }
}
