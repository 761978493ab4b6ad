//! Parts of scenarios, in virtual time and on threads.
//!
//! ```text
//! Setting ──▶ build a VM ──▶ world::run(jobs) ──▶ count what the run left ──▶ Point
//! costs, vCPUs, column, work   (at no charge)       (at no charge)             figures, waiting, checks
//! ```

pub mod broadcast_bus;
pub mod concurrent_latency;
pub mod guest_program;
pub mod mm_vm;
pub mod page_order;
pub mod point;
pub(crate) mod processor;
pub mod published_figures;
pub mod setting;
pub mod sim_host;
#[cfg(test)]
pub mod test_settings;
pub mod touch_pages;
pub mod vcpu_parts;
pub mod vcpu_programs;
pub mod vm_setup;
pub(crate) mod word_lines;
