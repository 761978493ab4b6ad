//! `slat bench`, `sim`, `calibrate` and `report` as their users meet them.

mod bad_input;
mod common;
mod compare;
mod demand_paging;
mod dirty_log_perf;
mod ksm_perf;
mod memslot_perf;
mod migrate;
mod numa_balancing;
mod reclaim;
mod report;
mod rough;
mod sim;
#[path = "../../../../slat/tests/engine/common/thorough.rs"]
mod thorough;
mod zap;
