//! Many vCPUs touch new memory, all at once, and slat-mm is the host: the primary MMU as it ships, compiled for virtual time.
//!
//! `demand-paging` has a host of arithmetic, which shares nothing unless it is told to. Here each fault goes through slat-mm's own: counters,
//! the page lock, a version of the mappings, a frame of the CPU's list, zeroes, and both tables. Free of charge: the state of a
//! frame and its note, which no other CPU looks at meanwhile, and the plain loads of the mappings' tree.
//!
//! `slat bench host-faults` runs the same [`Fixture::run`](crate::scenarios::demand_paging::first_touch::Fixture::run) beside Linux, with pages of 2 MiB, too, and unmaps what was filled.
//!
//! Without zeroing each page is one that was zeroed ahead of need: what a fault costs while a `Zeroer` keeps up.

#[cfg(not(virtual_time))]
mod changes_elsewhere;
#[cfg(not(virtual_time))]
mod host_fault_flags;
pub mod mm_first_touch;
#[cfg(not(virtual_time))]
mod new_memory;

use crate::scenarios::prelude::*;
use mm_first_touch::run_once;

/// Its row of the registry.
pub static SCENARIO: Scenario = Scenario {
    name: "host-faults",
    asks: "vCPUs touch new memory with slat-mm as the host; on real threads also beside Linux, and beside changes elsewhere",
    series: PatchSeries::TdpMmu,
    simulated: Simulated {
        takes: ["20 s", "200 MiB"],
        example: "-v 1,112,416 --costs server",
        unused: &[
            NO_AGER,
            (
                &["host_ns", "handlers", "handler_ns", "host_first", "mm_lines", "under_lock_ns"],
                "has slat-mm as its host",
            ),
        ],
        ..Simulated::of(run_once, MMU_LOCKS)
    },
    #[cfg(not(virtual_time))]
    measured: host_fault_flags::MEASURED,
};
