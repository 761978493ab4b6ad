//! A host merges equal pages of running vCPUs: the change-pte series.
//!
//! ```text
//! vCPUs      read their way round their pages, each in an order of its own; some of these pages are merged
//! scanner    for each page: look at it (a checksum, a search) │ make it read-only   │ compare │ give it a shared frame
//!                                                             │ told: write-protect │         │ told: change-pte
//! ```
//! | policy | what the VM makes of the reasons | pages in one change |
//! |---|---|---|
//! | ignored | each is an unmap, and guests fault: before | one |
//! | heeded | the page stays mapped: it loses write permission, then gets its new frame in place: the series | one |
//! | heeded, batched | the same: slat's own scanner | 64 |
//!
//! Twice: with guests that always run, so that each flush waits for every vCPU, and, for one figure, with guests that run a fifth
//! of the time, so that a flush seldom meets one there. Kernel time is the scanner's, and what guests lose: to faults, to kicks, and
//! waiting.
//!
//! | file | idea |
//! |---|---|
//! | `reading_guest` | what a guest does |
//! | `merge_run` | a machine, its scanner, what must be true afterwards |
//! | `published` | the series' figure beside these |
//!
//! **What is not simulated**: guests that write, and so break what was merged.

mod merge_run;
mod published;
mod reading_guest;

use super::{ALL_THERE, About, Against, Bench, Figure, NO_AGER, Point, Policy, Setting};
use merge_run::{Ground, Guests, Outcome};
use slat_series::PatchSeries;

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct KsmPerf;

/// Figures that are set against the series'.
const FAULTS: &str = "guest faults per page";
const KERNEL: &str = "ns of kernel time per page";
const KERNEL_RESTING: &str = "ns of kernel time per page, guests that mostly rest";

/// Its row of the registry.
const ABOUT: About = About {
    asks: "Pages are merged while guests use them, with reasons heeded and ignored (the change-pte series)",
    takes: ["30 s", "30 MiB"],
    unused: &[
        NO_AGER,
        (&["host_ns", "handlers", "handler_ns", "zeroing", "host_first", "mm_lines"], ALL_THERE),
    ],
    ..About::of("ksm-perf", PatchSeries::ChangePte, &[Policy::Ignored, Policy::Heeded, Policy::HeededBatched])
};

impl Bench for KsmPerf {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Point, String> {
        let run = |guests| Ground::new(setting, guests, false)?.run(setting);
        let (running, resting) = (run(Guests::Run)?, run(Guests::Rest)?);
        let per_page = |count: u64| count as f64 / running.merged as f64;
        let kernel = |outcome: &Outcome| per_page(outcome.scan.ns + outcome.lost_ns);
        let figures = vec![
            Figure::new("ns of the scanner in MMU code per page", per_page(running.scan.mmu_ns), "ns"),
            Figure::new(FAULTS, per_page(running.seen.faults()), "faults"),
            Figure::new("ns of the scanner per page", per_page(running.scan.ns), "ns"),
            Figure::new("ns lost by all guests per page", per_page(running.lost_ns), "ns"),
            Figure::new(KERNEL, kernel(&running), "ns"),
            Figure::new(KERNEL_RESTING, kernel(&resting), "ns"),
            Figure::new("flushes per page", per_page(running.flushes), "flushes"),
            Figure::new("kicks per page", per_page(running.told.kicks), "kicks"),
        ];
        Ok(Point {
            operations: running.merged,
            flushes: running.flushes,
            checks: [running.checks, resting.checks].concat(),
            ..Point::of(setting, figures, running.told)
        })
    }

    fn against_series(&self, points: &[Point]) -> Vec<Against> {
        published::against(points)
    }
}
