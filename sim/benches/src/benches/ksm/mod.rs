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
//! of the time, of whom a flush seldom meets one. Kernel time is the scanner's, and what guests lose: to faults, to kicks, and
//! waiting.
//!
//! | file | idea |
//! |---|---|
//! | `round` | what a guest does |
//! | `ground` | a machine, its scanner, what must be true afterwards |
//! | `published` | the series' figure beside these |
//!
//! **What is not simulated**: guests that write, and so break what was merged.

mod ground;
mod published;
mod round;

use super::{Against, Bench, Figure, Point, Policy, Setting};
use ground::{Ground, Guests, Outcome};

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct KsmPerf;

/// Figures that are set against the series'.
const FAULTS: &str = "guest faults per page";
const KERNEL: &str = "ns of kernel time per page";
const KERNEL_RESTING: &str = "ns of kernel time per page, guests that mostly rest";

impl Bench for KsmPerf {
    fn name(&self) -> &'static str {
        "ksm-perf"
    }

    fn about(&self) -> &'static str {
        "a host merges equal pages of running vCPUs"
    }

    fn series(&self) -> &'static str {
        "change-pte"
    }

    fn policies(&self) -> &'static [Policy] {
        &[Policy::Ignored, Policy::Heeded, Policy::HeededBatched]
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Point, String> {
        let run = |guests| Ground::new(setting, guests, false)?.run(setting);
        let (running, resting) = (run(Guests::Run)?, run(Guests::Rest)?);
        let per_page = |count: u64| count as f64 / running.merged as f64;
        let kernel = |outcome: &Outcome| per_page(outcome.scan.ns + outcome.lost_ns);
        let figure = |name, value, unit| Figure { name, value, unit };
        let figures = vec![
            figure("ns of the scanner in MMU code per page", per_page(running.scan.mmu_ns), "ns"),
            figure(FAULTS, per_page(running.seen.faults()), "faults"),
            figure("ns of the scanner per page", per_page(running.scan.ns), "ns"),
            figure("ns lost by all guests per page", per_page(running.lost_ns), "ns"),
            figure(KERNEL, kernel(&running), "ns"),
            figure(KERNEL_RESTING, kernel(&resting), "ns"),
            figure("flushes per page", per_page(running.flushes), "flushes"),
            figure("kicks per page", per_page(running.told.kicks), "kicks"),
        ];
        Ok(Point {
            unfinished: false,
            vcpus: setting.vcpus,
            policy: setting.policy,
            figures,
            operations: running.merged,
            waiting: running.told.waiting(),
            flushes: running.flushes,
            kicks: running.told.kicks,
            told: running.told,
            checks: [running.checks, resting.checks].concat(),
        })
    }

    fn against_series(&self, points: &[Point]) -> Vec<Against> {
        published::against(points)
    }
}
