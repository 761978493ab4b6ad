//! The report: each policy against slat's, and the bars.

use super::replayed::{Entrant, Sample};
use super::{ALONE, KVM, KVM_WITH_THE_SERIES, NO_DEVICE, PINNED, RANGE, SLAT, YIELDING};
use crate::bench::harness::Series;
use crate::bench::report::{Check, Row, params};
use slat_mm::Policy;
use slat_series::{PatchSeries, numa_protection::AVERAGE};
use slat_threads::benches::numa::kvm_walk::RangeWalk;

/// The entrants, and the samples of each, in the same order.
pub struct Samples<'s> {
    pub entrants: &'s [Entrant],
    pub samples: &'s [Vec<Sample>],
}

/// A figure: its name, its unit, how a sample says it, and what the NUMA protection series reports: before and after.
type Figure = (&'static str, &'static str, fn(&Sample) -> f64, Option<[f64; 2]>);

const FIGURES: [Figure; 6] = [
    ("remote flushes", "flushes", |sample| sample.counts.flushes as f64, Some(AVERAGE.flushes)),
    ("unmap calls", "calls", |sample| sample.counts.unmaps as f64, Some(AVERAGE.calls)),
    ("guest faults", "faults", |sample| sample.counts.faults as f64, None),
    ("hint faults", "faults", |sample| sample.counts.balancing.hint_faults as f64, None),
    ("pages moved to their node", "pages", |sample| sample.counts.balancing.migrated as f64, None),
    ("guest wall time", "ms", |sample| sample.wall_ms, None),
];

/// A check of an entrant: its name, of which entrants, what is counted in all samples, and whether that must be none. Else it must be some.
type Rule = (&'static str, fn(&Entrant) -> bool, fn(&Sample) -> u64, bool);

const RULES: [Rule; 6] = [
    ("the guest made every access and read what it had written", |_| true, |sample| sample.wrong, true),
    ("no table pages of the guest were freed", |_| true, |sample| sample.counts.tables_freed, true),
    ("no pinned pages were unmapped", Entrant::spares_pins, |sample| sample.counts.unmaps, true),
    ("no flushes of pinned pages", Entrant::spares_pins, |sample| sample.counts.flushes, true),
    (
        "no flushes: whatever is counted was caused by balancing",
        |entrant| entrant.policy.is_none(),
        |sample| sample.counts.flushes,
        true,
    ),
    (
        "balancing moved pages to their node",
        |entrant| !entrant.device && entrant.policy.is_some(),
        |sample| sample.counts.balancing.migrated,
        false,
    ),
];

/// Of the flushes of [`Policy::Range`], slat's may be this part, in the mean.
const FLUSHES: f64 = 0.53;

impl Entrant {
    fn name(&self) -> String {
        match (self.policy, self.walk) {
            (None, _) => "no balancing".into(),
            (Some((Policy::Range, _)), RangeWalk::Kvm) => KVM.into(),
            (Some((Policy::Page, _)), RangeWalk::Kvm) => KVM_WITH_THE_SERIES.into(),
            (Some((Policy::Range, _)), _) => "range: before".into(),
            (Some((Policy::Page, _)), _) => "page: the series".into(),
            (Some((Policy::PageBatched, bytes)), _) => format!("page-batched by {}M", bytes >> 20),
        }
    }

    fn device(&self) -> &'static str {
        if self.device { PINNED.1 } else { NO_DEVICE.1 }
    }

    /// All memory is pinned, and the policy takes away no page that is.
    fn spares_pins(&self) -> bool {
        self.device && matches!(self.policy, Some((Policy::Page | Policy::PageBatched, _)))
    }
}

fn mean(samples: &[Sample], figure: fn(&Sample) -> f64) -> f64 {
    samples.iter().map(figure).sum::<f64>() / samples.len() as f64
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
                    // Without balancing a guest loses nothing: there is nothing to compare.
                    let costs = ["guest faults", "guest wall time"].contains(&what);
                    if *entrant == slat_here || (entrant.policy.is_none() && !costs) {
                        continue;
                    }
                    let series = |samples: &[Sample]| Series::new(samples.iter().map(figure).collect());
                    let params = params! { "mean of": what, "device": entrant.device() };
                    let row = Row::compare(&entrant.name(), params, unit, &series(samples), &series(slat));
                    let (before, after) = (mean(samples, figure), mean(slat, figure));
                    let ratio = Some(before / after).filter(|ratio| ratio.is_finite());
                    let row = Row { baseline: Some(before), slat: after, ratio, ..row };
                    let published =
                        published.filter(|_| *entrant == YIELDING).map(|[before, after]| before / after);
                    rows.push(row.answering(PatchSeries::NumaProtection).claiming(published));
                }
            }
        }
        rows
    }

    /// What must hold.
    pub fn checks(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        for (entrant, samples) in self.entrants.iter().zip(self.samples) {
            for (what, _, count, none) in RULES.iter().filter(|(_, applies, ..)| applies(entrant)) {
                let name = format!("{}, device {}: {what}", entrant.name(), entrant.device());
                let sum: u64 = samples.iter().map(count).sum();
                checks.push(Check { name, ok: (sum == 0) == *none, detail: sum.to_string() });
            }
        }
        checks.extend(self.bars().into_iter().flatten());
        checks
    }

    fn bars(&self) -> Option<[Check; 3]> {
        let faults: fn(&Sample) -> f64 = |sample| sample.counts.faults as f64;
        let flushes: fn(&Sample) -> f64 = |sample| sample.counts.flushes as f64;
        let (range, slat) = (self.of(RANGE)?, self.of(SLAT)?);
        let best = |samples: &[Sample]| samples.iter().map(flushes).fold(f64::INFINITY, f64::min);
        let (before, after) = (mean(range, flushes), mean(slat, flushes));
        // Page by page, a guest faults for pages that the host protected or moved, and for no neighbour of theirs.
        let found = mean(slat, faults) - mean(self.of(ALONE)?, faults);
        let taken = |sample: &Sample| sample.counts.balancing.hint_faults + sample.counts.balancing.migrated;
        let taken = slat.iter().map(taken).sum::<u64>() as f64 / slat.len() as f64;
        Some([
            Check {
                name: "no page is lost to the guest but those that the host protected or moved".into(),
                ok: found <= taken,
                detail: format!(
                    "{found:.0} faults more than without balancing, {taken:.0} hint faults and pages moved"
                ),
            },
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
        ])
    }
}
