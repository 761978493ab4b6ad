//! Samples into rows and checks.

use super::super::harness::Series;
use super::super::report::{Check, Row, params};
use super::lap::{Sample, written_again};
use super::stages::{Size, Stage};
use slat_series::{PatchSeries, change_pte::SYSTEM_TIME};

/// A figure: its name, its unit, and how a sample says it.
type Figure = (&'static str, &'static str, fn(&Sample) -> f64);

const MMU_TIME: &str = "time in MMU code";

const FIGURES: [Figure; 11] = [
    (MMU_TIME, "ms", |sample| sample.mmu_ns() / 1e6),
    ("of it, notifications by the scanner", "ms", |sample| sample.notified_ns / 1e6),
    ("of it, faults of the guests", "ms", |sample| sample.fault_ns / 1e6),
    ("time in MMU code per page merged", "ns", |sample| sample.mmu_ns() / sample.merges as f64),
    ("faults for want of a translation inside changes of the entry", "faults", |sample| {
        sample.guest.in_window as f64
    }),
    ("faults for want of a translation", "faults", |sample| sample.guest.missing as f64),
    ("faults of the guests", "faults", |sample| sample.faults as f64),
    ("flushes", "flushes", |sample| sample.flushes as f64),
    ("changes of an entry", "changes", |sample| sample.changes as f64),
    ("pages merged", "pages", |sample| sample.merges as f64),
    ("rate (ratio: slat / baseline)", "k pages merged/s", |sample| {
        sample.merges as f64 / sample.scan_ns * 1e6
    }),
];

/// MMU time must be less by this, from so many runs on.
const LESS: f64 = 0.08;
const ENOUGH_RUNS: usize = 10;

/// Every figure, context off against on.
pub fn rows(on: &[Sample], off: &[Sample]) -> Vec<Row> {
    let row = |name: &str, (figure, unit): (&str, &'static str), on: Vec<f64>, off: Vec<f64>| {
        let params = params! { "figure": figure };
        Row::compare(name, params, unit, &Series::new(off), &Series::new(on))
            .answering(PatchSeries::ChangePte)
    };
    let all = |of: fn(&Sample) -> f64| [on, off].map(|samples| samples.iter().map(of).collect::<Vec<f64>>());
    let mut rows = Vec::new();
    for (figure, unit, of) in FIGURES {
        let [on, off] = all(of);
        let figure = (figure, unit);
        let spread = [&on, &off].map(|samples| Spread::of(samples));
        let compared = row("median, best and worst", figure, on, off);
        let ratio = if figure.0.starts_with("rate") {
            compared.ratio.map(|ratio| 1.0 / ratio)
        } else {
            compared.ratio
        };
        rows.push(Row { ratio, ..compared });
        if figure.0 == MMU_TIME {
            let [on, off] = spread;
            let mean = row("mean", figure, vec![on.mean], vec![off.mean]);
            rows.push(mean.claiming(Some(SYSTEM_TIME[0] / SYSTEM_TIME[1])));
            let stdev = row("standard deviation", figure, vec![on.stdev], vec![off.stdev]);
            rows.push(Row { ratio: None, ..stdev });
        }
    }
    rows
}

/// What must have happened in all samples for the rows to count, and what the rows must say.
pub fn checks(size: Size, on: &[Sample], off: &[Sample]) -> Vec<Check> {
    let mut checks = Vec::new();
    for (who, samples) in [("context on", on), ("context off", off)] {
        let sum = |of: fn(&Sample) -> u64| samples.iter().map(of).sum::<u64>();
        let mut check = |what: &str, found: u64, expected: u64| {
            checks.push(Check::all(format!("{who}: {what}"), [found, expected]));
        };
        let runs = samples.len() as u64;
        check(
            "stages whose counts are the test's in the end",
            sum(|sample| sample.stages[0]),
            runs * Stage::ALL.len() as u64,
        );
        check(
            "pages that hold what they have to",
            sum(|sample| sample.contents[0]),
            sum(|sample| sample.contents[1]),
        );
        check("frames that are used", sum(|sample| sample.frames[0]), sum(|sample| sample.frames[1]));
        check(
            "guests read what they wrote",
            sum(|sample| sample.guest.reads - sample.guest.wrong),
            sum(|sample| sample.guest.reads),
        );
        // Each merge is of a page that is not merged yet, or that a guest has written since. A guest that writes to a page just
        // while the scanner holds it copies it too, and nothing was merged.
        let left = Stage::LAST.expected(size);
        let (found, expected) =
            (sum(|sample| sample.merges - sample.breaks), runs * (left.shared + left.sharing));
        checks.push(Check {
            name: format!("{who}: pages merged, less those written again, are shared, to 1%"),
            ok: found <= expected && expected - found <= expected / 100,
            detail: format!("{found} of {expected}"),
        });
    }
    let in_window = |samples: &[Sample]| samples.iter().map(|sample| sample.guest.in_window).sum::<u64>();
    let mut check =
        |name: &str, ok: bool, detail: String| checks.push(Check { name: name.to_owned(), ok, detail });
    check(
        "context on: no guest misses a translation inside a change of its entry",
        in_window(on) == 0,
        format!("{}", in_window(on)),
    );
    let missing = |samples: &[Sample]| samples.iter().map(|sample| sample.guest.missing).sum::<u64>();
    check(
        "context on: no guest loses a translation, of a page that is merged or of its neighbours",
        missing(on) == 0,
        format!("{} faults", missing(on)),
    );
    check("context off: guests do", in_window(off) > 0, format!("{}", in_window(off)));
    // A page that is merged again just while a guest writes to it once more is merged once more.
    let expected = size.merges(written_again(size));
    let same = expected..=expected + expected / 100;
    let merges = || on.iter().chain(off).map(|sample| sample.merges);
    check(
        "as many pages are merged in both columns, to 1%",
        merges().all(|merges| same.contains(&merges)),
        format!("{:?}..{:?}, {expected} by the test", merges().min(), merges().max()),
    );
    if on.len() >= ENOUGH_RUNS {
        let [on, off] =
            [on, off].map(|samples| Spread::of(&samples.iter().map(Sample::mmu_ns).collect::<Vec<_>>()));
        let less = off.mean - on.mean;
        check(
            "time in MMU code is less by 8% and by more than the spread",
            less > on.stdev.max(off.stdev) && less >= LESS * off.mean,
            format!(
                "{:.1}%, of off's mean; standard deviations {:.1}% and {:.1}%",
                100.0 * less / off.mean,
                100.0 * off.stdev / off.mean,
                100.0 * on.stdev / off.mean
            ),
        );
    }
    checks
}

/// How samples lie.
struct Spread {
    mean: f64,
    stdev: f64,
}

impl Spread {
    fn of(samples: &[f64]) -> Self {
        let count = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / count;
        let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        Self { mean, stdev: (squares / (count - 1.0).max(1.0)).sqrt() }
    }
}
