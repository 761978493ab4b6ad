//! A host balances its nodes while vCPUs use their memory: the NUMA protection series.
//!
//! ```text
//! memory    4 MiB in ranges of 2 MiB, on slat-mm; guests use some of the pages, and have them mapped
//! vCPUs     go round the pages in use, each in an order of its own
//! a scan    by one vCPU's thread, out of the guest, as in Linux: the pages of a range that no device has pinned become inaccessible,
//!           until a fault (a hint) asks for them. The next scan begins when a guest has used 128 pages more, and no scan runs
//! ```
//! | column | the VM is told | flushes |
//! |---|---|---|
//! | range | to unmap all 2 MiB: Linux | one |
//! | range, yielding | the same, by a walk that unlocks after each page and has to flush first: Linux, where a thread always waits for the lock | one for each page that is mapped |
//! | page | of each page that becomes inaccessible: the series | one for each such page that is mapped |
//! | page-batched | of each run of such pages: slat | one |
//!
//! The pages are the same in every column. How many pages of a range become inaccessible, and how many of those are mapped, is taken
//! from the series' second line (10,037 calls in 35 ranges, of which 4,610 flushed). The work of a column on these pages is simulated.
//!
//! The cost of scans for a vCPU is reported as if a scan came for each 128 pages that the vCPU uses, however long a scan takes. Guests go on until
//! all scans are over, and then use each page once more, so that every page that was taken away is faulted back.
//!
//! `slat bench numa-balancing` runs the same [`Balanced`](balanced::Balanced) with guests that replay traces, with pages that move between
//! nodes, and under KVM's lock, where a walk flushes wherever a fault comes meanwhile.
//!
//! | file | idea |
//! |---|---|
//! | [`balanced`] | a VM whose host balances; KVM's walk over a range |
//! | [`used_pages`] | guests that use some of the pages, what must be true afterwards, and the series' figures beside these |

pub mod balanced;
#[cfg(not(virtual_time))]
mod numa_flags;
#[cfg(not(virtual_time))]
mod replayed;
pub mod used_pages;

use crate::scenarios::prelude::*;
use used_pages::{PAGE, PAGE_BATCHED, RANGE, RANGE_YIELDING, run_once};

/// Its row of the registry.
pub static SCENARIO: Scenario = Scenario {
    name: "numa-balancing",
    asks: "A host balances the memory of a guest between nodes: Linux before the NUMA protection series, Linux with it, and slat",
    series: PatchSeries::NumaProtection,
    simulated: Simulated {
        published: used_pages::against,
        takes: ["5 s", "30 MiB"],
        unused: &[
            NO_AGER,
            (&["zeroing", "host_first"], ALL_THERE),
            (&["host_ns", "handlers", "handler_ns", "mm_lines", "under_lock_ns"], "has slat-mm as its host"),
        ],
        ..Simulated::of(run_once, &[RANGE, RANGE_YIELDING, PAGE, PAGE_BATCHED])
    },
    #[cfg(not(virtual_time))]
    measured: numa_flags::MEASURED,
};
