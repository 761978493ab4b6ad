//! The report: aging that asks the guest against aging that does not, and both against the best there can be.

use super::bounds;
use super::limited_guest::{Entrant, Job, Sample};
use crate::scenarios::threads_prelude::*;

/// At this limit, in percent, so many times exact LRU's pages may come back.
const BAR_LIMIT: u64 = 50;
const OF_LRU: f64 = 1.5;
/// The part of the limit that may be charged.
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

/// Adds the rows of job `number` at a limit, in percent, and what must hold for them to count, with the bars where the work
/// is `whole`: how near exact LRU it comes says nothing about a part.
pub fn add_to(
    report: &mut Report,
    laps: &Lineup<Entrant, Sample>,
    (number, job): (usize, &Job),
    limit: u64,
    whole: bool,
) {
    let of = |limit, walk_secondary| laps.of(Entrant { job: number, limit, walk_secondary });
    let [on, off] = [true, false].map(|walk_secondary| of(Some(limit), walk_secondary));
    let (stream, room) = (&job.stream, job.room(limit));
    let lru = bounds::lru(&stream.gfns, stream.end, room);
    let belady = bounds::belady(&stream.gfns, stream.end, room);

    let mut row = |name: &str, (figure, unit, of): Figure, baseline: Series| {
        let params = params! { "guest": job.trace.name, "limit": format!("{limit}%"), "figure": figure };
        let row = Row::compare(name, params, unit, &baseline, &Series::of(on, of));
        report.rows.push(row.answering(PatchSeries::MglruAging));
    };
    let before = "walk-secondary off: before";
    row(before, REFAULTS, Series::of(off, REFAULTS.2));
    row("exact LRU", REFAULTS, Series::new(vec![lru as f64]));
    row("Belady's optimum", REFAULTS, Series::new(vec![belady as f64]));
    for figure in FIGURES.into_iter().chain([WALL]) {
        row(before, figure, Series::of(off, figure.2));
    }
    row("no limit", WALL, Series::of(of(None, true), WALL.2));

    let mut check = |who: &str, name: &str, ok: bool, detail: String| {
        let name = format!("{} at {limit}%, {who}: {name}", job.trace.name);
        report.checks.push(Check { name, ok, detail });
    };
    for (who, samples) in [("on", on), ("off", off)] {
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
        let counts = samples.iter().map(|sample| sample.refaults);
        let [least, most] = [counts.clone().min(), counts.max()].map(|count| count.unwrap_or(0));
        check(who, "every round evicts the same", least == most, format!("{least}..{most}"));
        check(
            who,
            "no fewer pages come back than under Belady's optimum",
            least >= belady,
            format!("{least}, and {belady}"),
        );
    }
    if whole && limit == BAR_LIMIT {
        let (on, lru) = (Series::of(on, REFAULTS.2).median(), lru as f64);
        check(
            "on",
            "at most 1.5 x exact LRU's pages come back",
            on <= OF_LRU * lru,
            format!("{on:.0} of {lru:.0}"),
        );
    }
}
