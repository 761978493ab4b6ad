//! The report: aging that asks the guest against aging that does not, and both against the best there can be.

use super::bounds;
use super::limited_guest::{Entrant, Job, Sample};
use crate::bench::harness::{Lineup, Series};
use crate::bench::report::{Check, Report, Row, params};
use slat_series::PatchSeries;

/// At this limit, in percent, so many times exact LRU's pages may come back.
const BAR_LIMIT: u64 = 50;
const OF_LRU: f64 = 1.5;
/// What may be charged, of the limit.
const HELD: f64 = 1.02;

/// A figure: its name, its unit, how a sample says it.
type Figure = (&'static str, &'static str, fn(&Sample) -> f64);

const REFAULTS: Figure = ("pages brought in again", "pages", |sample| sample.refaults as f64);
const WALL: Figure = ("guest wall time", "ms", |sample| sample.wall_ms);
const FIGURES: [Figure; 3] = [
    ("mean rank of a page that went (0: the coldest, exact LRU's)", "%", |sample| {
        100.0 * sample.rank.unwrap_or(0.0)
    }),
    ("pages that were to go and were found in use", "pages", |sample| sample.spared as f64),
    ("aging passes", "passes", |sample| sample.aging_passes as f64),
];

/// One job at one limit.
pub struct Case<'s> {
    job: &'s Job,
    limit: u64,
    on: &'s [Sample],
    off: &'s [Sample],
    no_limit: &'s [Sample],
    lru: u64,
    belady: u64,
}

impl<'s> Case<'s> {
    /// Job `number` at a limit, in percent.
    pub fn new((number, job): (usize, &'s Job), limit: u64, laps: &'s Lineup<Entrant, Sample>) -> Self {
        let of = |limit, walk_secondary| laps.of(Entrant { job: number, limit, walk_secondary });
        let (stream, room) = (&job.stream, job.room(limit));
        Self {
            job,
            limit,
            on: of(Some(limit), true),
            off: of(Some(limit), false),
            no_limit: of(None, true),
            lru: bounds::lru(&stream.gfns, stream.end, room),
            belady: bounds::belady(&stream.gfns, stream.end, room),
        }
    }

    /// Adds its rows, and what must hold for them to count, with the bars where the work is `whole`: how near exact LRU it
    /// comes says nothing about a part.
    pub fn add_to(&self, report: &mut Report, whole: bool) {
        let mut row = |name: &str, (figure, unit, of): Figure, baseline: Series| {
            let params = params! {
                "guest": self.job.trace.name,
                "limit": format!("{}%", self.limit),
                "figure": figure,
            };
            let row = Row::compare(name, params, unit, &baseline, &Series::of(self.on, of));
            report.rows.push(row.answering(PatchSeries::MglruAging));
        };
        let bound = |count: u64| Series::new(vec![count as f64]);
        let off = "walk-secondary off: before";
        row(off, REFAULTS, Series::of(self.off, REFAULTS.2));
        row("exact LRU", REFAULTS, bound(self.lru));
        row("Belady's optimum", REFAULTS, bound(self.belady));
        for figure in FIGURES.into_iter().chain([WALL]) {
            row(off, figure, Series::of(self.off, figure.2));
        }
        row("no limit", WALL, Series::of(self.no_limit, WALL.2));
        self.checks(report, whole);
    }

    fn checks(&self, report: &mut Report, whole: bool) {
        let mut check = |who: &str, name: &str, ok: bool, detail: String| {
            let name = format!("{} at {}%, {who}: {name}", self.job.trace.name, self.limit);
            report.checks.push(Check { name, ok, detail });
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
            let (on, lru) = (Series::of(self.on, REFAULTS.2).median(), self.lru as f64);
            check(
                "on",
                "at most 1.5 x exact LRU's pages come back",
                on <= OF_LRU * lru,
                format!("{on:.0} of {lru:.0}"),
            );
        }
    }
}
