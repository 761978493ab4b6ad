//! Many vCPUs touch untouched memory, all at once: the TDP MMU series.
//!
//! Each has a part of its own, and goes over it page by page: computes, leaves the guest, faults; the host finds a page,
//! zeroes it, and the engine maps it. So all that vCPUs share is what the engine and the primary MMU make them share.
//! With 416 vCPUs, says the series, 98% of the time went to waiting for the MMU lock, and 89% of the time went away with it.
//!
//! `slat bench demand-paging` runs the same [`Fixture::run`](first_touch::Fixture::run) on slat-mm, with software vCPUs, handler threads, and vCPUs that touch each
//! other's pages, too.

pub mod first_touch;
#[cfg(not(virtual_time))]
mod paging_flags;
#[cfg(not(virtual_time))]
mod paging_sample;

use crate::scenarios::prelude::*;
use first_touch::run_once;

/// Its row of the registry.
pub static SCENARIO: Scenario = Scenario {
    name: "demand-paging",
    asks: "vCPUs touch new memory concurrently, under each MMU lock (the TDP MMU series)",
    series: PatchSeries::TdpMmu,
    simulated: Simulated {
        takes: ["10 s", "40 MiB"],
        example: "-v 1,112,416 --costs server",
        ..Simulated::of(run_once, MMU_LOCKS)
    },
    #[cfg(not(virtual_time))]
    measured: paging_flags::MEASURED,
};
