//! vCPUs fault memory in while a thread asks, pass after pass, which pages are young: the MGLRU aging series.
//!
//! | column | the MMU's lock | the ager |
//! |---|---|---|
//! | no aging | reader-writer | |
//! | locked | reader-writer | page by page, each under the lock, alone: the series' "no opt" |
//! | lockless | reader-writer | page by page without it: "opt" |
//! | slat, no aging | none | |
//! | slat | none | by tables; then TLBs are asked to forget |
//!
//! Page by page: each page that the primary MMU has, by one call, as a kernel's passes do. An ager begins passes for as long
//! as a vCPU runs, rests between them, and a pass that outlasts the vCPUs counts as a whole. Every vCPU faults in as much as
//! any other, however many there are, as in the series; so a pass has more to do with each.
//!
//! `slat bench access-tracking-perf` runs the same [`Ager`](aging_run::Ager) on slat-mm, and by the multi-gen LRU, too.

#[cfg(not(virtual_time))]
mod aging_beside_faults;
#[cfg(not(virtual_time))]
mod aging_flags;
pub mod aging_run;
#[cfg(not(virtual_time))]
mod aging_stages;

use crate::scenarios::prelude::*;
use aging_run::{LOCKED, LOCKLESS, NO_AGING, SLAT, SLAT_NO_AGING, run_once};

/// Its row of the registry.
pub static SCENARIO: Scenario = Scenario {
    name: "access-tracking-perf",
    asks: "vCPUs fault memory in while an aging thread passes over it, with the MMU lock and without (the MGLRU aging series)",
    series: PatchSeries::MglruAging,
    simulated: Simulated {
        takes: ["15 s", "60 MiB"],
        example: "-v 1,112",
        unused: &[],
        ..Simulated::of(run_once, &[NO_AGING, LOCKED, LOCKLESS, SLAT_NO_AGING, SLAT])
    },
    #[cfg(not(virtual_time))]
    measured: aging_flags::MEASURED,
};
