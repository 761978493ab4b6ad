//! A host merges equal pages of running vCPUs: the change-pte series.
//!
//! ```text
//! guests     fill their memory, read all over it, and write some of it again
//! scanner    for each page: read it (a checksum, a search) │ make it read-only   │ compare │ give it a shared frame
//!                                                          │ told: write-protect │         │ told: change-pte
//! ```
//! The host is slat-mm with its KSM. In a simulation one VM has all vCPUs:
//!
//! | column | what the VM makes of the reasons | pages in one change |
//! |---|---|---|
//! | ignored | each is an unmap, and guests fault: before | one |
//! | heeded | the page stays mapped: it loses write permission, then gets its new frame in place: the series | one |
//! | heeded, batched | the same: KSM as slat-mm ships it | up to 64 |
//!
//! Twice: with guests that always run, so that each flush waits for every vCPU, and, for one figure, with guests that run a fifth
//! of the time, so that a flush seldom meets one in the guest. Kernel time is the scanner's, and what guests lose: to faults, to kicks,
//! and waiting.
//!
//! `slat bench ksm-perf` runs the same [`MergeRun`](merge_run::MergeRun) with several VMs, in the four stages of LTP's `ksm02`.
//!
//! | file | idea |
//! |---|---|
//! | `reading_guest` | what a guest does meanwhile; what the VMs hold in each stage, and what KSM must have found |
//! | [`notified_vm`] | a VM between its address space and the engine: time of notifications, pages that are changing |
//! | [`merge_run`] | VMs, their guests, the scanner, and what must be true afterwards |
//! | [`merging`] | the columns and the figures, and the series' figure beside these |

#[cfg(not(virtual_time))]
mod ksm_flags;
#[cfg(not(virtual_time))]
mod ksm_rows;
pub mod merge_run;
pub mod merging;
pub mod notified_vm;
mod reading_guest;

use crate::scenarios::prelude::*;
use merging::{HEEDED, HEEDED_BATCHED, IGNORED, run_once};

/// Its row of the registry.
pub static SCENARIO: Scenario = Scenario {
    name: "ksm-perf",
    asks: "A host merges equal pages of running VMs, with and without the reason of each change (the change-pte series)",
    series: PatchSeries::ChangePte,
    simulated: Simulated {
        published: merging::against,
        takes: ["20 s", "50 MiB"],
        unused: &[
            NO_AGER,
            (
                &["host_ns", "handlers", "handler_ns", "zeroing", "host_first", "mm_lines", "under_lock_ns"],
                "has slat-mm as its host, with every page from the start",
            ),
        ],
        ..Simulated::of(run_once, &[IGNORED, HEEDED, HEEDED_BATCHED])
    },
    #[cfg(not(virtual_time))]
    measured: ksm_flags::MEASURED,
};
