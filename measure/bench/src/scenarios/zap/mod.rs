//! A large range is zapped while vCPUs fault in memory elsewhere: how long that takes, and what it costs their faults.
//!
//! ```text
//! frame 0                                   the range
//!  │ vCPU 0's part │ vCPU 1's part │ … │ every page mapped before │
//! ```
//! | column | how |
//! |---|---|
//! | leaf by leaf, exclusive | an edit for each leaf, under the mutex, with rests for waiting faults: before the TDP MMU series |
//! | leaf by leaf | the same beside faults |
//! | unhook | whole tables, by one edit of the link to each |
//! | new root | all tables of the VM, what vCPUs have faulted in included |
//!
//! A zap is over when its tables are taken apart and its leaves counted off. vCPUs begin before it and go on until then. A
//! fault is beside the zap if any part of it is ([`concurrent_latency`](crate::parts::concurrent_latency)).
//!
//! `slat bench zap` runs the same [`ZapRun`](zap_run::ZapRun) with ranges of up to 64 GiB, with vCPUs without a guest, and beside memslots that are made and
//! deleted.

#[cfg(not(virtual_time))]
mod zap_flags;
pub mod zap_run;
#[cfg(not(virtual_time))]
mod zap_sample;

use crate::scenarios::prelude::*;
use zap_run::{LEAF_BY_LEAF, LEAF_BY_LEAF_EXCLUSIVE, NEW_ROOT, UNHOOK, run_once};

/// Its row of the registry.
pub static SCENARIO: Scenario = Scenario {
    name: "zap",
    asks: "A large range is zapped leaf by leaf, by unhooking tables or by a new root, while vCPUs fault elsewhere (the TDP MMU series)",
    series: PatchSeries::TdpMmu,
    simulated: Simulated {
        takes: ["10 s", "100 MiB"],
        ..Simulated::of(run_once, &[LEAF_BY_LEAF_EXCLUSIVE, LEAF_BY_LEAF, NEW_ROOT, UNHOOK])
    },
    #[cfg(not(virtual_time))]
    measured: zap_flags::MEASURED,
};
