//! Every scenario, one file or folder each.
//!
//! The `mod.rs` of a folder is its guide, and has the row. `NAME_flags.rs` beside it has the flags and the rows of `slat bench NAME`, for
//! real threads only. Names that most scenarios use come from `prelude`, on real threads from `threads_prelude`.

pub mod access_tracking;
#[cfg(not(virtual_time))]
mod aging_pass;
pub mod broadcast;
pub mod demand_paging;
#[cfg(not(virtual_time))]
mod dirty_log;
#[cfg(not(virtual_time))]
mod fault_floor;
pub mod host_faults;
pub mod invalidate;
pub mod ksm;
pub mod memslot;
#[cfg(not(virtual_time))]
mod migrate;
pub mod nested;
pub mod numa;
pub mod populate;
pub mod pre_fault;
mod prelude;
#[cfg(not(virtual_time))]
mod reclaim;
#[cfg(test)]
mod tests;
#[cfg(not(virtual_time))]
mod threads_prelude;
pub mod zap;

use crate::scenario::Scenario;

// ANCHOR: all
/// All scenarios, in the order of the book's chapter of benchmarks. A scenario that is added here is known everywhere.
pub static ALL: &[&Scenario] = &[
    #[cfg(not(virtual_time))]
    &fault_floor::SCENARIO,
    &demand_paging::SCENARIO,
    &host_faults::SCENARIO,
    &invalidate::SCENARIO,
    &zap::SCENARIO,
    &memslot::SCENARIO,
    &access_tracking::SCENARIO,
    #[cfg(not(virtual_time))]
    &aging_pass::SCENARIO,
    #[cfg(not(virtual_time))]
    &dirty_log::SCENARIO,
    #[cfg(not(virtual_time))]
    &migrate::SCENARIO,
    #[cfg(not(virtual_time))]
    &reclaim::SCENARIO,
    &ksm::SCENARIO,
    &numa::SCENARIO,
    &pre_fault::SCENARIO,
    &broadcast::SCENARIO,
    &populate::SCENARIO,
    &nested::SCENARIO,
];
// ANCHOR_END: all

/// The scenario of that name.
pub fn by_name(name: &str) -> Option<&'static Scenario> {
    ALL.iter().copied().find(|scenario| scenario.name == name)
}
