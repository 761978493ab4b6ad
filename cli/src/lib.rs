//! The parts of the command `slat`: the replay, the live view, the plan, and a kit that other programs share.
//!
//! [`Run::run_in`] is generic over the page-table format. The program instantiates it, so `slat-bench`, which uses
//! only the kit, does not pay for the instances when it is built.

pub mod command;
mod figures;
mod generate;
mod kit;
mod live;
mod plan;
mod run;
mod sample;
pub mod sibling;
mod top;

/// The package version. Release builds add the commit, where it is known.
pub const VERSION: &str = env!("SLAT_VERSION");

pub use generate::{Completions, Man};
pub use kit::{allocator, bar, date, error, flags, interrupt, migration, size, temporary, thread};
pub use plan::Plan;
pub use run::{FormatName, Pages, Run};
pub use top::Top;
