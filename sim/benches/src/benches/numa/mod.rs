//! A host looks where pages are used, while vCPUs use them: the NUMA protection series.
//!
//! ```text
//! memory    4 MiB in ranges of 2 MiB; guests use some of the pages, and have them mapped
//! vCPUs     go round the pages in use, each in an order of its own
//! a scan    by one vCPU's thread, out of the guest, as in Linux: some pages of a range become inaccessible, until a fault (a
//!           hint) asks for them. The next scan when a guest has used 128 pages more, and no scan runs
//! ```
//! | policy | the VM is told | flushes |
//! |---|---|---|
//! | range | to unmap all 2 MiB: Linux | one |
//! | range, yielding | the same, by a walk that lets go of its lock after each page and has to flush it first: Linux, where others want the lock | one for each page that is mapped |
//! | page | of each page that becomes inaccessible: the series | one for each of them that is mapped |
//! | page-batched | of each run of such pages: slat | one |
//!
//! The pages are the same under every policy. How many of a range become inaccessible, and how many of those are mapped, is
//! taken from the series' second line (10,037 calls in 35 ranges, of which 4,610 flushed); what the policies make of it is
//! simulated.
//!
//! What scans cost a vCPU is told as if one came for each 128 pages that it uses, however long it takes: guests go on until
//! all scans are over, and then once more round, so that whatever was taken away is faulted back.
//!
//! | file | idea |
//! |---|---|
//! | `guest_pages` | which pages are in use, which become inaccessible |
//! | `page_user` | what a guest does |
//! | `scan_turns` | who scans when, and what the VM is told |
//! | `balanced` | a machine, and what must be true afterwards |
//! | `published` | the series' figures beside these |

mod balanced;
mod guest_pages;
mod page_user;
mod published;
mod scan_turns;

use super::{ALL_THERE, About, Against, Bench, NO_AGER, Point, Policy, Setting};
use balanced::Balanced;
use slat_series::PatchSeries;

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct NumaBalancing;

/// Figures that are set against the series'.
const FLUSHES: &str = "flushes per 2 MiB";
const CALLS: &str = "unmap calls per 2 MiB";

/// Its row of the registry.
const ABOUT: About = About {
    asks: "A host balances its nodes while vCPUs use their memory, by range and page by page (the NUMA protection series)",
    takes: ["5 s", "30 MiB"],
    unused: &[NO_AGER, (&["zeroing", "host_first"], ALL_THERE)],
    ..About::of(
        "numa-balancing",
        PatchSeries::NumaProtection,
        &[Policy::Range, Policy::RangeYielding, Policy::Page, Policy::PageBatched],
    )
};

impl Bench for NumaBalancing {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Point, String> {
        Balanced::new(setting, false)?.run(setting)
    }

    fn against_series(&self, points: &[Point]) -> Vec<Against> {
        published::against(points)
    }
}
