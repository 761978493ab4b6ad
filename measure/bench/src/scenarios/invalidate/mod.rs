//! vCPUs fault in memory, in order, beside threads that invalidate single pages, or short ranges, over and over: the TDP MMU series.
//!
//! ```text
//! frame 0                                          next GiB
//!  │ vCPU 0's part │ vCPU 1's part │ … │ 2 MiB │ …  │ 2 MiB of invalidator 0 │ … │ of invalidator 1 │ …
//!    └ same: where the vCPU is           └ near       └ elsewhere
//! ```
//! An invalidator begins, applies, settles, ends, computes for [`pause_ns`](crate::parts::setting::Work::pause_ns), and goes on with the next
//! pages of its place. Where it has a place of its own, the leaf table is there and empty, so no flush is due: what faults
//! and invalidations share is what the engine makes them share. Over the same 2 MiB pages go, and flushes kick vCPUs.
//!
//! The figure is what a fault takes the slowest vCPU. Each run is compared with the same one without invalidators, and ends
//! after [`BOUND`](invalidating_run::BOUND) times as long as that one took: vCPUs and invalidators stop then, and the figure is a lower bound.

#[cfg(not(virtual_time))]
mod invalidate_flags;
mod invalidated_places;
pub mod invalidating_run;

use crate::scenarios::prelude::*;
use invalidating_run::run_once;

/// Its row of the registry.
pub static SCENARIO: Scenario = Scenario {
    name: "invalidate",
    asks: "vCPUs fault while other threads invalidate pages, under each MMU lock (the TDP MMU series)",
    series: PatchSeries::TdpMmu,
    simulated: Simulated {
        takes: ["2 min", "100 MiB"],
        vcpus: "8,112",
        example: "-v 112 --invalidators 16 --pause-ns 10000 --quick --no-sweep",
        unused: &[NO_AGER, (&["host_ns", "handlers", "handler_ns", "zeroing", "mm_lines"], ALL_THERE)],
        invalidates: true,
        reported: false,
        ..Simulated::of(run_once, MMU_LOCKS)
    },
    #[cfg(not(virtual_time))]
    measured: invalidate_flags::MEASURED,
};
