//! The report: aging that asks the guest against aging that does not, and both against the best there can be.

use super::bounds;
use super::limited_guest::{Entrant, Job, Sample};
use crate::bench::harness::Series;
use crate::bench::report::{Check, Row, params};
use slat_series::PatchSeries;

/// The samples of each entrant, in the order of `entrants`.
pub struct Samples<'s> {
    pub jobs: &'s [Job],
    pub entrants: &'s [Entrant],
    pub samples: &'s [Vec<Sample>],
    /// Parts of the footprint, in percent.
    pub limits: &'s [u64],
    /// Whether the work is whole: how near exact LRU it comes says nothing about a part.
    pub whole: bool,
}

/// At this limit, in percent, so many times exact LRU's pages may come back.
const BAR_LIMIT: u64 = 50;
const OF_LRU: f64 = 1.5;
/// What may be charged, of the limit.
const HELD: f64 = 1.02;

/// A figure: its name, its unit, how a sample says it.
type Figure = (&'static str, &'static str, fn(&Sample) -> f64);

const FIGURES: [Figure; 3] = [
    ("mean rank of a page that went (0: the coldest, exact LRU's)", "%", |sample| {
        100.0 * sample.rank.unwrap_or(0.0)
    }),
    ("pages that were to go and were found in use", "pages", |sample| sample.spared as f64),
    ("aging passes", "passes", |sample| sample.aging_passes as f64),
];

/// One job at one limit.
struct Case<'s> {
    job: &'s Job,
    limit: u64,
    on: &'s [Sample],
    off: &'s [Sample],
    whole: &'s [Sample],
    lru: u64,
    belady: u64,
}

fn refaults(samples: &[Sample]) -> f64 {
    series(samples, |sample| sample.refaults as f64).median()
}

/// One figure of each sample.
pub(super) fn series<S>(samples: &[S], figure: impl Fn(&S) -> f64) -> Series {
    Series::new(samples.iter().map(figure).collect())
}

impl Samples<'_> {
    fn of(&self, entrant: Entrant) -> &[Sample] {
        let at = self.entrants.iter().position(|other| *other == entrant);
        at.map_or(&[], |at| &self.samples[at])
    }

    fn cases(&self) -> Vec<Case<'_>> {
        let all = self.jobs.iter().enumerate().flat_map(|(number, job)| {
            let stream = &job.work.stream;
            self.limits.iter().map(move |&limit| {
                let of = |limit, walk_secondary| self.of(Entrant { job: number, limit, walk_secondary });
                Case {
                    job,
                    limit,
                    on: of(Some(limit), true),
                    off: of(Some(limit), false),
                    whole: of(None, true),
                    lru: bounds::lru(&stream.gfns, stream.end, job.room(limit)),
                    belady: bounds::belady(&stream.gfns, stream.end, job.room(limit)),
                }
            })
        });
        all.collect()
    }

    /// The rows, and what must hold for them to count, with the bars.
    pub fn report(&self) -> (Vec<Row>, Vec<Check>) {
        let (mut rows, mut checks) = (Vec::new(), Vec::new());
        for case in self.cases() {
            rows.extend(case.rows());
            checks.extend(case.checks(self.whole));
        }
        (rows, checks)
    }
}

impl Case<'_> {
    fn rows(&self) -> Vec<Row> {
        let row = |name: &str, figure: &str, unit, baseline: Series, on: Series| {
            let params = params! {
                "guest": self.job.work.trace.name,
                "limit": format!("{}%", self.limit),
                "figure": figure,
            };
            Row::compare(name, params, unit, &baseline, &on).answering(PatchSeries::MglruAging)
        };
        let bound = |count: u64| Series::new(vec![count as f64]);
        let all = |samples: &[Sample]| series(samples, |sample| sample.refaults as f64);
        let wall = |samples: &[Sample]| series(samples, |sample| sample.wall_ms);
        let off = "walk-secondary off: before";
        let refaults = "pages brought in again";
        let mut rows = vec![
            row(off, refaults, "pages", all(self.off), all(self.on)),
            row("exact LRU", refaults, "pages", bound(self.lru), all(self.on)),
            row("Belady's optimum", refaults, "pages", bound(self.belady), all(self.on)),
        ];
        for (figure, unit, of) in FIGURES {
            rows.push(row(off, figure, unit, series(self.off, of), series(self.on, of)));
        }
        rows.push(row(off, "guest wall time", "ms", wall(self.off), wall(self.on)));
        rows.push(row("no limit", "guest wall time", "ms", wall(self.whole), wall(self.on)));
        rows
    }

    fn checks(&self, whole: bool) -> Vec<Check> {
        let mut checks = Vec::new();
        let mut check = |who: &str, name: &str, ok: bool, detail: String| {
            let name = format!("{} at {}%, {who}: {name}", self.job.work.trace.name, self.limit);
            checks.push(Check { name, ok, detail });
        };
        for (who, samples) in [("on", self.on), ("off", self.off)] {
            let sum = |figure: fn(&Sample) -> u64| samples.iter().map(figure).sum::<u64>();
            let [made, to_make] = [sum(|sample| sample.accesses[0]), sum(|sample| sample.accesses[1])];
            let corrupt = sum(|sample| sample.corrupt);
            check(
                who,
                "the guest made every access and read what it had written",
                made == to_make && corrupt == 0,
                format!("{made} of {to_make}, {corrupt} reads corrupt"),
            );
            let part = |sample: &Sample| sample.charged[0] as f64 / sample.charged[1] as f64;
            let most = samples.iter().map(part).fold(0.0, f64::max);
            check(who, "the limit holds within 2%", most <= HELD, format!("{:.1}% of it", 100.0 * most));
            let least = samples.iter().map(|sample| sample.refaults).min().unwrap_or(0);
            let most = samples.iter().map(|sample| sample.refaults).max().unwrap_or(0);
            check(who, "every round evicts the same", least == most, format!("{least}..{most}"));
            check(
                who,
                "no fewer pages come back than under Belady's optimum",
                least >= self.belady,
                format!("{least}, and {}", self.belady),
            );
        }
        if whole && self.limit == BAR_LIMIT {
            let (on, lru) = (refaults(self.on), self.lru as f64);
            check(
                "on",
                "at most 1.5 x exact LRU's pages come back",
                on <= OF_LRU * lru,
                format!("{on:.0} of {lru:.0}"),
            );
        }
        checks
    }
}
