//! A host merges equal pages of running vCPUs: seed 004.
//!
//! ```text
//! vCPUs      read their way round 2 MiB of pages, each in an order of its own; some of these pages are merged
//! scanner    for each page: look at it (a checksum, a search) │ make it read-only   │ compare │ give it a shared frame
//!                                                             │ told: write-protect │         │ told: change-pte
//! ```
//! | policy | what the VM makes of the reasons | pages in one change |
//! |---|---|---|
//! | ignored | each is an unmap, and guests fault: before | one |
//! | heeded | the page stays mapped: it loses write permission, then gets its new frame in place: the seed | one |
//! | heeded, batched | the same: slat's own scanner | 64 |
//!
//! | file | idea |
//! |---|---|
//! | `round` | what a guest does |
//! | `ground` | a machine, its scanner, what must be true afterwards |
//! | `seed` | the seed's figure beside these |
//!
//! **What is not simulated**: guests that write, and so break what was merged.

mod ground;
mod round;
mod seed;

use super::{Against, Bench, Point, Policy, Setting};
use ground::Ground;

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct KsmPerf;

/// Figures that are set against the seed's.
const FAULTS: &str = "guest faults per page";
const LOST: &str = "ns lost by all guests per page";
const SCANNER: &str = "ns of the scanner per page";

impl Bench for KsmPerf {
    fn name(&self) -> &'static str {
        "ksm-perf"
    }

    fn about(&self) -> &'static str {
        "a host merges equal pages of running vCPUs"
    }

    fn seed(&self) -> &'static str {
        "004"
    }

    fn policies(&self) -> &'static [Policy] {
        &[Policy::Ignored, Policy::Heeded, Policy::HeededBatched]
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Point, String> {
        Ground::new(setting, false)?.run(setting)
    }

    fn against_seed(&self, points: &[Point]) -> Vec<Against> {
        seed::against(points)
    }
}
