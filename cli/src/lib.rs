//! What the command `slat` is made of: replays, the view of a running guest, the plan; and what programs beside it share.
//!
//! It is not generic code that costs time to build but what is made of it: [`Run::run_in`] is instantiated by the program, for
//! each of its formats. `slat-bench`, which measures, uses the rest and builds none of that.

pub mod bar;
pub mod command;
pub mod date;
pub mod error;
pub mod flags;
mod generate;
pub mod interrupt;
pub mod memory;
mod plan;
mod run;
pub mod sibling;
pub mod size;
pub mod temporary;
pub mod thread;
mod top;

/// Of the package; in release builds with the commit, where that is known.
pub const VERSION: &str = env!("SLAT_VERSION");

pub use generate::{Completions, Man};
pub use plan::Plan;
pub use run::{FormatName, Pages, Run};
pub use top::Top;
