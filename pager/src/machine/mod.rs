//! Whole machines of Cloud Hypervisor: their memory, their configuration, and the state of their devices.
//!
//! The pager is the other side of a local migration. It makes a template of a machine that a VMM sends. It sends a
//! machine from a template to a VMM that waits for one, and the VMM asks for pages while the guest runs.

mod keep;
mod pages;
mod receive;
mod restore;

pub use keep::{keep_machines, serve_machines};
pub(crate) use receive::collect;
pub use receive::{Received, receive_machine};
pub use restore::{Restore, restore_machine};
