//! Rows and checks out of samples.

use super::merge_run::{Entrant, Sample};
use super::notified_vm::Counted;
use super::reading_guest::{Memory, Stage};
use crate::scenarios::threads_prelude::*;
use slat_series::change_pte::SYSTEM_TIME;

/// Each under these: whether the host has huge pages, and whether guests rest.
pub const CONDITIONS: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

/// Rows of pages that are merged together, and of pages one by one.
pub const TOGETHER: &str = "median, best and worst";
pub const ONE_BY_ONE: &str = "one by one: median, best and worst";

/// All that ran.
pub type Samples = Lineup<Entrant, Sample>;

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
fn conditions(huge: bool, rests: bool) -> [&'static str; 2] {
    [if huge { "2 MiB" } else { "4 KiB" }, if rests { "resting" } else { "running" }]
}

/// Every figure, reasons ignored against heeded.
pub fn rows(samples: &Samples) -> Vec<Row> {
    let mut rows = Vec::new();
    for (huge, rests) in CONDITIONS {
        let [pages, guest] = conditions(huge, rests);
        for (figure, unit, of) in FIGURES {
            let row = |name, [on, off]: [Vec<f64>; 2]| {
                let params = params! { "figure": figure, "pages": pages, "guest": guest };
                Row::compare(name, params, unit, &Series::new(off), &Series::new(on))
                    .answering(PatchSeries::ChangePte)
            };
            for (name, together) in [(TOGETHER, 64), (ONE_BY_ONE, 1)] {
                let both = [true, false].map(|heeds| {
                    let samples = samples.of(Entrant { heeds, together, huge, rests });
                    samples.iter().map(of).collect::<Vec<f64>>()
                });
                let compared = row(name, both.clone());
                let ratio = compared.ratio.map(|ratio| if figure == RATE { 1.0 / ratio } else { ratio });
                rows.push(Row { ratio, ..compared });
                // The series has a figure of this.
                if (figure, huge, rests, name) == (MMU_TIME, false, false, TOGETHER) {
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

/// A count of all samples of these entrants, added up.
fn total(samples: &Samples, is: impl Fn(Entrant) -> bool, of: impl Fn(&Sample) -> u64) -> u64 {
    samples.each().filter(|(entrant, _)| is(**entrant)).flat_map(|(_, samples)| samples).map(of).sum()
}

/// The conditions of all samples under which the rows count.
pub fn checks(samples: &Samples, memory: Memory) -> Vec<Check> {
    let of_one = |(&entrant, samples)| checks_of(entrant, samples, memory);
    let mut checks: Vec<_> = samples.each().flat_map(of_one).collect();
    let mut check =
        |name: &str, ok: bool, detail: String| checks.push(Check { name: name.to_owned(), ok, detail });
    // The engine zaps an entry that a guest's store is changing at the same moment: at most one for each share broken.
    let most = total(samples, |entrant| entrant.heeds, |sample| sample.breaks);
    for (miss, what) in [
        ("miss translations inside changes of their entries", Counted::InWindow),
        ("lose translations, of pages that are merged or of their neighbours,", Counted::Missing),
    ] {
        let found = total(samples, |entrant| entrant.heeds, |sample| sample.of(what));
        let name = format!("reasons heeded: guests {miss} only where they store");
        check(&name, found <= most, format!("{found}, {most} shares broken"));
    }
    let runs_ignoring = |entrant: Entrant| !entrant.heeds && !entrant.rests;
    let found = total(samples, runs_ignoring, |sample| sample.of(Counted::InWindow));
    let ignored = "reasons ignored: guests that run miss translations inside changes";
    check(ignored, found > 0, found.to_string());
    // A guest that rests disturbs no batch but by what it writes again.
    for (&entrant, _) in samples.each().filter(|(entrant, _)| entrant.rests && entrant.together > 1) {
        let notifications = |together| {
            let is = |other| other == Entrant { together, ..entrant };
            total(samples, is, |sample| sample.of(Counted::Notifications))
        };
        let (together, alone) = (notifications(entrant.together), notifications(1));
        let fewer = format!("{}: fewer notifications than one by one", name(entrant));
        check(&fewer, together < alone, format!("{together}, {alone}"));
    }
    // A page that is merged again just while a guest writes to it once more is merged once more.
    let expected = memory.merges(&Stage::ALL);
    let merges = || samples.all().map(|sample| sample.merges);
    check(
        "as many pages are merged in all ways, to 1% or 16 pages",
        merges().all(|merges| (expected..=expected + (expected / 100).max(16)).contains(&merges)),
        format!("{:?}..{:?}, {expected} by the test", merges().min(), merges().max()),
    );
    checks
}

fn checks_of(entrant: Entrant, samples: &[Sample], memory: Memory) -> Vec<Check> {
    let who = name(entrant);
    let mut checks = Check::tallied(&who, "", samples.iter().flat_map(|sample| &sample.tally));
    // Each merge is of a page that is not merged yet, or that a guest has written since. A guest that writes to a page just
    // while the scanner holds it copies it too, and nothing was merged.
    let [shared, sharing, _] = Stage::LAST.expected(memory);
    let expected = samples.len() as u64 * (shared + sharing);
    let merges: u64 = samples.iter().map(|sample| sample.merges).sum();
    let breaks: u64 = samples.iter().map(|sample| sample.breaks).sum();
    checks.push(Check {
        name: format!("{who}: pages merged, less those written again, are shared, to 1%"),
        ok: (expected - merges / 100..=expected).contains(&(merges - breaks)),
        detail: format!("{} of {expected}", merges - breaks),
    });
    checks
}

fn name(entrant: Entrant) -> String {
    let [pages, guest] = conditions(entrant.huge, entrant.rests);
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
