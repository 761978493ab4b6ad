//! Rows and checks out of samples.

use super::super::harness::Series;
use super::super::report::{Check, Row, params};
use super::LEVER;
use slat_series::{PatchSeries, change_pte::SYSTEM_TIME};
use slat_threads::benches::ksm::merge_run::{Entrant, Sample};
use slat_threads::benches::ksm::notified_vm::Counted;
use slat_threads::benches::ksm::page_contents::{Memory, Stage};

/// Rows of pages that are merged together, and of pages one by one.
pub const TOGETHER: &str = "median, best and worst";
pub const ONE_BY_ONE: &str = "one by one: median, best and worst";

/// The entrants, and the samples of each, in the same order.
pub struct Samples<'s> {
    pub memory: Memory,
    pub entrants: &'s [Entrant],
    pub samples: &'s [Vec<Sample>],
}

/// A figure: its name, its unit, and how a sample says it.
type Figure = (&'static str, &'static str, fn(&Sample) -> f64);

const MMU_TIME: &str = "time in MMU code";
const RATE: &str = "rate (ratio: slat / baseline)";

const FIGURES: [Figure; 12] = [
    (MMU_TIME, "ms", |one| mmu_ns(one) / 1e6),
    ("of it, notifications by the scanner", "ms", |one| counted(one, Counted::NotifiedNs) / 1e6),
    ("of it, faults of the guests", "ms", |one| one.fault_ns() as f64 / 1e6),
    ("time in MMU code per page merged", "ns", |one| mmu_ns(one) / one.merges as f64),
    ("faults for want of a translation inside changes of the entry", "faults", |one| {
        counted(one, Counted::InWindow)
    }),
    ("faults for want of a translation", "faults", |one| counted(one, Counted::Missing)),
    ("faults of the guests", "faults", |one| counted(one, Counted::Faults)),
    ("flushes", "flushes", |one| one.flushes as f64),
    ("changes of an entry", "changes", |one| counted(one, Counted::Changes)),
    ("notifications by the scanner", "notifications", |one| counted(one, Counted::Notifications)),
    ("pages merged", "pages", |one| one.merges as f64),
    (RATE, "k pages merged/s", |one| one.merges as f64 / one.scan_ns as f64 * 1e6),
];

fn counted(sample: &Sample, what: Counted) -> f64 {
    sample.of(what) as f64
}

/// Nanoseconds in MMU code: what is compared.
fn mmu_ns(sample: &Sample) -> f64 {
    (sample.of(Counted::NotifiedNs) + sample.fault_ns()) as f64
}

/// The size of the host's pages, and what guests do.
fn conditions(entrant: Entrant) -> [&'static str; 2] {
    [if entrant.huge { "2 MiB" } else { "4 KiB" }, if entrant.rests { "resting" } else { "running" }]
}

impl Samples<'_> {
    /// Every figure, reasons ignored against heeded.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (entrants, samples) in self.entrants.chunks(LEVER.len()).zip(self.samples.chunks(LEVER.len())) {
            let [pages, guest] = conditions(entrants[0]);
            for (figure, unit, of) in FIGURES {
                let row = |name, [on, off]: [Vec<f64>; 2]| {
                    let params = params! { "figure": figure, "pages": pages, "guest": guest };
                    Row::compare(name, params, unit, &Series::new(off), &Series::new(on))
                        .answering(PatchSeries::ChangePte)
                };
                for (name, pair) in [TOGETHER, ONE_BY_ONE].into_iter().zip(samples.chunks(2)) {
                    let both = [0, 1].map(|at| pair[at].iter().map(of).collect::<Vec<f64>>());
                    let compared = row(name, both.clone());
                    let ratio = compared.ratio.map(|ratio| if figure == RATE { 1.0 / ratio } else { ratio });
                    rows.push(Row { ratio, ..compared });
                    // What the series has a figure of.
                    if (figure, entrants[0], name) == (MMU_TIME, self.entrants[0], TOGETHER) {
                        let mean = row("mean", both.each_ref().map(|samples| vec![mean(samples)]));
                        rows.push(mean.claiming(Some(SYSTEM_TIME[0] / SYSTEM_TIME[1])));
                        let deviation = both.map(|samples| vec![deviation(&samples)]);
                        rows.push(Row { ratio: None, ..row("standard deviation", deviation) });
                    }
                }
            }
        }
        rows
    }

    /// The same of all of these entrants, added up.
    fn sum(&self, is: impl Fn(Entrant) -> bool, what: Counted) -> u64 {
        self.total(is, |sample| sample.of(what))
    }

    fn total(&self, is: impl Fn(Entrant) -> bool, of: impl Fn(&Sample) -> u64) -> u64 {
        let those = self.entrants.iter().zip(self.samples).filter(|(entrant, _)| is(**entrant));
        those.flat_map(|(_, samples)| samples).map(of).sum()
    }

    /// What must have happened in all samples for the rows to count, and what the rows must say.
    pub fn checks(&self) -> Vec<Check> {
        let all = self.entrants.iter().zip(self.samples);
        let mut checks: Vec<_> =
            all.flat_map(|(&entrant, samples)| self.checks_of(entrant, samples)).collect();
        let mut check =
            |name: &str, ok: bool, detail: String| checks.push(Check { name: name.to_owned(), ok, detail });
        // The engine zaps an entry that a guest's store is changing at the same moment: at most one for each share broken.
        let most = self.total(|entrant| entrant.heeds, |sample| sample.breaks);
        for (miss, what) in [
            ("miss translations inside changes of their entries", Counted::InWindow),
            ("lose translations, of pages that are merged or of their neighbours,", Counted::Missing),
        ] {
            let found = self.sum(|entrant| entrant.heeds, what);
            let name = format!("reasons heeded: guests {miss} only where they store");
            check(&name, found <= most, format!("{found}, {most} shares broken"));
        }
        let found = self.sum(|entrant| !entrant.heeds && !entrant.rests, Counted::InWindow);
        let ignored = "reasons ignored: guests that run miss translations inside changes";
        check(ignored, found > 0, found.to_string());
        // A guest that rests disturbs no batch but by what it writes again.
        for &entrant in self.entrants.iter().filter(|entrant| entrant.rests && entrant.together > 1) {
            let told =
                |together| self.sum(|other| other == Entrant { together, ..entrant }, Counted::Notifications);
            let (together, alone) = (told(entrant.together), told(1));
            let fewer = format!("{}: fewer notifications than one by one", name(entrant));
            check(&fewer, together < alone, format!("{together}, {alone}"));
        }
        // A page that is merged again just while a guest writes to it once more is merged once more.
        let expected = self.memory.merges(&Stage::ALL);
        let merges = || self.samples.iter().flatten().map(|sample| sample.merges);
        check(
            "as many pages are merged in all ways, to 1%",
            merges().all(|merges| (expected..=expected + expected / 100).contains(&merges)),
            format!("{:?}..{:?}, {expected} by the test", merges().min(), merges().max()),
        );
        checks
    }

    fn checks_of(&self, entrant: Entrant, samples: &[Sample]) -> Vec<Check> {
        let who = name(entrant);
        let mut checks = Check::tallied(&who, "", samples.iter().flat_map(|sample| &sample.tally));
        // Each merge is of a page that is not merged yet, or that a guest has written since. A guest that writes to a page just
        // while the scanner holds it copies it too, and nothing was merged.
        let [shared, sharing, _] = Stage::LAST.expected(self.memory);
        let expected = samples.len() as u64 * (shared + sharing);
        let [merges, breaks] = samples
            .iter()
            .fold([0, 0], |[merges, breaks], sample| [merges + sample.merges, breaks + sample.breaks]);
        checks.push(Check {
            name: format!("{who}: pages merged, less those written again, are shared, to 1%"),
            ok: (expected - merges / 100..=expected).contains(&(merges - breaks)),
            detail: format!("{} of {expected}", merges - breaks),
        });
        checks
    }
}

fn name(entrant: Entrant) -> String {
    let [pages, guest] = conditions(entrant);
    let reasons = if entrant.heeds { "heeded" } else { "ignored" };
    let merged = if entrant.together > 1 { "together" } else { "one by one" };
    format!("reasons {reasons}, {merged}, pages of {pages}, guests {guest}")
}

fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len() as f64
}

fn deviation(samples: &[f64]) -> f64 {
    let squares: f64 = samples.iter().map(|sample| (sample - mean(samples)).powi(2)).sum();
    (squares / (samples.len() as f64 - 1.0).max(1.0)).sqrt()
}
