//! The parts of the command `slat`: the replay, the live view, the plan, and helpers that other programs share.
//!
//! [`Run::run_in`] is generic over the page-table format. The program instantiates it, so `slat-bench`, which uses
//! only the helpers, does not pay for the instances when it is built.

pub mod bar;
pub mod command;
pub mod date;
pub mod error;
pub mod flags;
mod generate;
pub mod interrupt;
pub mod memory;
pub mod migration;
mod plan;
mod run;
pub mod sibling;
pub mod size;
pub mod temporary;
pub mod thread;
mod top;

/// The package version. Release builds add the commit, where it is known.
pub const VERSION: &str = env!("SLAT_VERSION");

pub use generate::{Completions, Man};
pub use plan::Plan;
pub use run::{FormatName, Pages, Run};
pub use top::Top;
