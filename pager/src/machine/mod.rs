//! Whole machines of Cloud Hypervisor: their memory, their configuration, and the state of their devices.
//!
//! The pager is the other side of a local migration. It makes a template of a machine that a VMM sends. It sends a
//! machine from a template to a VMM that waits for one, and the VMM asks for pages while the guest runs.

mod keeper;
mod pages;
mod receive;
mod restore;

pub use keeper::{keep_machines, serve_machines};
pub(crate) use receive::collect;
pub use receive::{Received, receive_machine};
pub use restore::restore_machine;

use std::time::Duration;

/// Options for restoring a machine.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Restore {
    /// True if the VMM does not resume the guest: an operator does.
    pub paused: bool,
    /// Number of threads that fill pages ahead of faults: those of the working set, then all. 0: none are filled ahead.
    pub replay: usize,
    /// Time for which the faults of the guest are recorded, if its template has no working set. Nothing is filled ahead
    /// meanwhile. `None`: no record.
    pub record: Option<Duration>,
}

impl Default for Restore {
    fn default() -> Self {
        Self { paused: false, replay: 4, record: None }
    }
}
