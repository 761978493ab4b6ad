//! Samples into rows and checks.

use super::super::harness::Series;
use super::super::report::{Check, Row, params};
use super::LEVER;
use super::merge_run::{Sample, Way, written_again};
use super::page_contents::{Size, Stage};
use slat::{PAGE_SIZE, Why};
use slat_series::{PatchSeries, change_pte::SYSTEM_TIME};

/// Rows of pages that are merged together, and of pages one by one.
pub const TOGETHER: &str = "median, best and worst";
pub const ONE_BY_ONE: &str = "one by one: median, best and worst";

/// Rows of a reason each.
pub const FREED: &str = "table pages freed and made again";

/// The ways, and the samples of each, in the same order.
pub struct Samples<'s> {
    pub size: Size,
    pub ways: &'s [Way],
    pub samples: &'s [Vec<Sample>],
}

/// A figure: its name, its unit, and how a sample says it.
type Figure = (&'static str, &'static str, fn(&Sample) -> f64);

const MMU_TIME: &str = "time in MMU code";

const FIGURES: [Figure; 12] = [
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
    ("notifications by the scanner", "notifications", |sample| sample.notifications as f64),
    ("pages merged", "pages", |sample| sample.merges as f64),
    ("rate (ratio: slat / baseline)", "k pages merged/s", |sample| {
        sample.merges as f64 / sample.scan_ns * 1e6
    }),
];

/// Of each reason, table pages that are freed and made again, where reasons are ignored and where they are heeded.
pub struct Tables(pub Vec<(Why, [[u64; 2]; 2])>);

impl Tables {
    pub fn rows(&self) -> impl Iterator<Item = Row> {
        self.0.iter().map(|(why, pages)| {
            let [ignored, heeded] =
                pages.map(|[freed, _]| Series::new(vec![(freed * PAGE_SIZE / 1024) as f64]));
            let params = params! { "reason": why.name() };
            Row::compare(FREED, params, "KiB", &ignored, &heeded).answering(PatchSeries::ChangePte)
        })
    }

    /// What holds by construction.
    pub fn checks(&self) -> [Check; 3] {
        let check = |name: &str, is: &dyn Fn(Why, [[u64; 2]; 2]) -> bool| {
            let good = self.0.iter().filter(|(why, pages)| is(*why, *pages)).count();
            Check::all(name, [good, self.0.len()].map(|count| count as u64))
        };
        [
            check("table pages that a reason frees are made again", &|_, pages| {
                pages.iter().all(|[freed, made]| freed == made)
            }),
            check("reasons ignored: each of them frees table pages", &|_, [[freed, _], _]| freed > 0),
            check(
                "reasons heeded: as many are freed where the mapping goes, else none",
                &|why, [off, on]| on[0] == if why.frees_tables() { off[0] } else { 0 },
            ),
        ]
    }
}

impl Way {
    fn ground(self) -> [&'static str; 2] {
        [if self.huge { "2 MiB" } else { "4 KiB" }, if self.rests { "resting" } else { "running" }]
    }
}

impl Samples<'_> {
    fn of(&self, is: impl Fn(Way) -> bool) -> impl Iterator<Item = (Way, &[Sample])> {
        let all = self.ways.iter().copied().zip(self.samples.iter().map(Vec::as_slice));
        all.filter(move |(way, _)| is(*way))
    }

    /// The same of all of these ways, added up.
    fn sum(&self, is: impl Fn(Way) -> bool, of: impl Fn(&Sample) -> u64) -> u64 {
        self.of(is).flat_map(|(_, samples)| samples).map(of).sum()
    }

    /// Every figure, reasons ignored against heeded.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for ground in self.samples.chunks(LEVER.len()).zip(self.ways.chunks(LEVER.len())) {
            let (samples, way) = (ground.0, ground.1[0]);
            let [pages, guest] = way.ground();
            for (figure, unit, of) in FIGURES {
                let row = |name: &str, on: Vec<f64>, off: Vec<f64>| {
                    let params = params! { "figure": figure, "pages": pages, "guest": guest };
                    Row::compare(name, params, unit, &Series::new(off), &Series::new(on))
                        .answering(PatchSeries::ChangePte)
                };
                for (name, pair) in [TOGETHER, ONE_BY_ONE].iter().zip(samples.chunks(2)) {
                    let [on, off] = [0, 1].map(|at| pair[at].iter().map(of).collect::<Vec<f64>>());
                    let spread = [&on, &off].map(|samples| Spread::of(samples));
                    let compared = row(name, on, off);
                    let inverse = figure.starts_with("rate");
                    let ratio = compared.ratio.map(|ratio| if inverse { 1.0 / ratio } else { ratio });
                    rows.push(Row { ratio, ..compared });
                    // What the series has a figure of.
                    if figure == MMU_TIME && way == self.ways[0] && *name == TOGETHER {
                        let [on, off] = spread;
                        let mean = row("mean", vec![on.mean], vec![off.mean]);
                        rows.push(mean.claiming(Some(SYSTEM_TIME[0] / SYSTEM_TIME[1])));
                        let stdev = row("standard deviation", vec![on.stdev], vec![off.stdev]);
                        rows.push(Row { ratio: None, ..stdev });
                    }
                }
            }
        }
        rows
    }

    /// What must have happened in all samples for the rows to count, and what the rows must say.
    pub fn checks(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        for (way, samples) in self.of(|_| true) {
            self.check_way(way, samples, &mut checks);
        }
        let mut check =
            |name: &str, ok: bool, detail: String| checks.push(Check { name: name.to_owned(), ok, detail });
        let heeded = |of: fn(&Sample) -> u64| self.sum(|way| way.contexts, of);
        for (what, found) in [
            ("misses a translation inside a change of its entry", heeded(|one| one.guest.in_window)),
            (
                "loses a translation, of a page that is merged or of its neighbours",
                heeded(|one| one.guest.missing),
            ),
        ] {
            check(&format!("reasons heeded: no guest {what}"), found == 0, format!("{found}"));
        }
        let missing = self.sum(|way| !way.contexts && !way.rests, |one| one.guest.in_window);
        check(
            "reasons ignored: guests that run miss translations inside changes",
            missing > 0,
            missing.to_string(),
        );
        // A guest that rests disturbs no batch but by what it writes again.
        for (way, _) in self.of(|way| way.rests && way.together > 1) {
            let told = |together| self.sum(|other| other == Way { together, ..way }, |one| one.notifications);
            let (together, alone) = (told(way.together), told(1));
            check(
                &format!("{}: fewer notifications than one by one", name(way)),
                together < alone,
                format!("{together}, {alone}"),
            );
        }
        // A page that is merged again just while a guest writes to it once more is merged once more.
        let expected = self.size.merges(written_again(self.size));
        let same = expected..=expected + expected / 100;
        let merges = || self.samples.iter().flatten().map(|sample| sample.merges);
        check(
            "as many pages are merged in all ways, to 1%",
            merges().all(|merges| same.contains(&merges)),
            format!("{:?}..{:?}, {expected} by the test", merges().min(), merges().max()),
        );
        checks
    }

    fn check_way(&self, way: Way, samples: &[Sample], checks: &mut Vec<Check>) {
        let who = name(way);
        let sum = |of: fn(&Sample) -> u64| samples.iter().map(of).sum::<u64>();
        let runs = samples.len() as u64;
        for (what, found, expected) in [
            (
                "stages whose counts are the test's in the end",
                sum(|sample| sample.stages[0]),
                runs * Stage::ALL.len() as u64,
            ),
            (
                "pages that hold what they have to",
                sum(|sample| sample.contents[0]),
                sum(|sample| sample.contents[1]),
            ),
            ("frames that are used", sum(|sample| sample.frames[0]), sum(|sample| sample.frames[1])),
            (
                "guests read what they wrote",
                sum(|sample| sample.guest.reads - sample.guest.wrong),
                sum(|sample| sample.guest.reads),
            ),
        ] {
            checks.push(Check::all(format!("{who}: {what}"), [found, expected]));
        }
        // Each merge is of a page that is not merged yet, or that a guest has written since. A guest that writes to a page just
        // while the scanner holds it copies it too, and nothing was merged.
        let left = Stage::LAST.expected(self.size);
        let (found, expected) =
            (sum(|sample| sample.merges - sample.breaks), runs * (left.shared + left.sharing));
        checks.push(Check {
            name: format!("{who}: pages merged, less those written again, are shared, to 1%"),
            ok: found <= expected && expected - found <= expected / 100,
            detail: format!("{found} of {expected}"),
        });
    }
}

fn name(way: Way) -> String {
    let [pages, guest] = way.ground();
    let reasons = if way.contexts { "heeded" } else { "ignored" };
    let merged = if way.together > 1 { "together" } else { "one by one" };
    format!("reasons {reasons}, {merged}, pages of {pages}, guests {guest}")
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
