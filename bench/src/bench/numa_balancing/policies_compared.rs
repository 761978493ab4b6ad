//! The report: each policy against slat's, and the bars.

use super::replayed::{Entrant, Sample};
use super::{ALONE, RANGE, SLAT, YIELDING};
use crate::bench::harness::Series;
use crate::bench::report::{Check, Row, params};
use slat_mm::Policy;
use slat_series::{PatchSeries, numa_protection::AVERAGE};

/// The entrants, and the samples of each, in the same order.
pub struct Samples<'s> {
    pub entrants: &'s [Entrant],
    pub samples: &'s [Vec<Sample>],
}

/// A figure: its name, its unit, how a sample says it, and what the NUMA protection series reports: before over after.
type Figure = (&'static str, &'static str, fn(&Sample) -> f64, Option<f64>);

const FIGURES: [Figure; 6] = [
    (
        "remote flushes",
        "flushes",
        |sample| sample.flushes as f64,
        Some(AVERAGE.flushes[0] / AVERAGE.flushes[1]),
    ),
    ("unmap calls", "calls", |sample| sample.unmaps as f64, Some(AVERAGE.calls[0] / AVERAGE.calls[1])),
    ("guest faults", "faults", |sample| sample.faults as f64, None),
    ("hint faults", "faults", |sample| sample.balancing.hint_faults as f64, None),
    ("pages moved to their node", "pages", |sample| sample.balancing.migrated as f64, None),
    ("guest wall time", "ms", |sample| sample.wall_ms, None),
];

/// Of the flushes of [`Policy::Range`], slat's may be this part, in the mean.
const FLUSHES: f64 = 0.53;

/// What an entrant is called.
pub fn name(entrant: &Entrant) -> String {
    match entrant.policy {
        None => "no balancing".into(),
        Some((Policy::Range, _)) if entrant.locked => "range, yielding: KVM".into(),
        Some((Policy::Page, _)) if entrant.locked => "page, locked: KVM with the series".into(),
        Some((Policy::Range, _)) => "range: before".into(),
        Some((Policy::Page, _)) => "page: the series".into(),
        Some((Policy::PageBatched, bytes)) => format!("page-batched by {}M", bytes >> 20),
    }
}

fn mean(samples: &[Sample], figure: fn(&Sample) -> f64) -> f64 {
    samples.iter().map(figure).sum::<f64>() / samples.len() as f64
}

fn device(entrant: &Entrant) -> &'static str {
    if entrant.device { "pins all memory" } else { "none" }
}

impl Samples<'_> {
    fn of(&self, entrant: Entrant) -> Option<&[Sample]> {
        let at = self.entrants.iter().position(|one| *one == entrant)?;
        Some(self.samples[at].as_slice())
    }

    /// Every figure of every other entrant against slat's. The NUMA protection series reports means, best and worst; so do these rows.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for with in [false, true] {
            let slat_here = Entrant { device: with, ..SLAT };
            let Some(slat) = self.of(slat_here) else { continue };
            for (what, unit, figure, published) in FIGURES {
                let others = self.entrants.iter().zip(self.samples);
                for (entrant, samples) in others.filter(|(entrant, _)| entrant.device == with) {
                    // Who does not balance loses nothing: there is nothing to compare.
                    let costs = ["guest faults", "guest wall time"].contains(&what);
                    if *entrant == slat_here || (entrant.policy.is_none() && !costs) {
                        continue;
                    }
                    let series = |samples: &[Sample]| Series::new(samples.iter().map(figure).collect());
                    let params = params! { "mean of": what, "device": device(entrant) };
                    let row = Row::compare(&name(entrant), params, unit, &series(samples), &series(slat));
                    let (before, after) = (mean(samples, figure), mean(slat, figure));
                    let ratio = Some(before / after).filter(|ratio| ratio.is_finite());
                    let answers = *entrant == YIELDING;
                    rows.push(
                        Row { baseline: Some(before), slat: after, ratio, ..row }
                            .answering(PatchSeries::NumaProtection)
                            .claiming(published.filter(|_| answers)),
                    );
                }
            }
        }
        rows
    }

    /// What must hold.
    pub fn checks(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        for (entrant, samples) in self.entrants.iter().zip(self.samples) {
            let who = format!("{}, device {}", name(entrant), device(entrant));
            let sum = |figure: fn(&Sample) -> u64| samples.iter().map(figure).sum::<u64>();
            let [made, to_make] =
                [0, 1].map(|at| samples.iter().map(|sample| sample.accesses[at]).sum::<u64>());
            checks.push(Check {
                name: format!("{who}: the guest made every access and read what it had written"),
                ok: made == to_make && sum(|sample| sample.corrupt) == 0,
                detail: format!("{made} of {to_make}, {} reads corrupt", sum(|sample| sample.corrupt)),
            });
            checks.push(none(&who, "table pages of the guest were freed", sum(|sample| sample.tables_lost)));
            let by_page = matches!(entrant.policy, Some((Policy::Page | Policy::PageBatched, _)));
            if entrant.device && by_page {
                checks.push(none(&who, "pinned pages were unmapped", sum(|sample| sample.unmaps)));
                checks.push(none(&who, "flushes of pinned pages", sum(|sample| sample.flushes)));
            }
            if entrant.policy.is_none() {
                checks.push(none(
                    &who,
                    "flushes: whatever is counted was caused by balancing",
                    sum(|sample| sample.flushes),
                ));
            }
            if !entrant.device && entrant.policy.is_some() {
                let moved = sum(|sample| sample.balancing.migrated);
                checks.push(Check {
                    name: format!("{who}: balancing moved pages to their node"),
                    ok: moved > 0,
                    detail: format!("{moved}"),
                });
            }
        }
        checks.extend(self.nothing_else_is_lost());
        checks.extend(self.bars());
        checks
    }

    /// Told page by page, a guest faults for pages that the host protected or moved, and for no neighbour of theirs.
    fn nothing_else_is_lost(&self) -> Option<Check> {
        let faults: fn(&Sample) -> f64 = |sample| sample.faults as f64;
        let slat = self.of(SLAT)?;
        let first = mean(self.of(ALONE)?, faults);
        let taken = mean(slat, |sample| (sample.balancing.hint_faults + sample.balancing.migrated) as f64);
        let found = mean(slat, faults) - first;
        Some(Check {
            name: "no page is lost to the guest but those that the host protected or moved".into(),
            ok: found <= taken,
            detail: format!(
                "{found:.0} faults more than without balancing, {taken:.0} hint faults and pages moved"
            ),
        })
    }

    fn bars(&self) -> Vec<Check> {
        let (Some(range), Some(slat)) = (self.of(RANGE), self.of(SLAT)) else { return Vec::new() };
        let flushes: fn(&Sample) -> f64 = |sample| sample.flushes as f64;
        let best = |samples: &[Sample]| samples.iter().map(flushes).fold(f64::INFINITY, f64::min);
        let (before, after) = (mean(range, flushes), mean(slat, flushes));
        vec![
            Check {
                name: format!("remote flushes, mean: at most {FLUSHES} of range's"),
                ok: after <= FLUSHES * before,
                detail: format!("{after:.0} of {before:.0}"),
            },
            Check {
                name: "remote flushes, best: no more than range's".into(),
                ok: best(slat) <= best(range),
                detail: format!("{:.0} and {:.0}", best(slat), best(range)),
            },
        ]
    }
}

fn none(who: &str, what: &str, count: u64) -> Check {
    Check { name: format!("{who}: no {what}"), ok: count == 0, detail: count.to_string() }
}
