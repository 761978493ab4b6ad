//! Whole machines of Cloud Hypervisor: their memory, their configuration, and the state of their devices.
//!
//! The pager is the other side of a local migration. A machine that the VMM sends becomes a template; a VMM that waits for a machine
//! gets one from a template, and asks for its pages while it runs.

mod keep;
mod pages;
mod receive;
mod restore;

pub use keep::{keep_machines, serve_machines};
pub(crate) use receive::collect;
pub use receive::{Received, receive_machine};
pub use restore::{Restore, restore_machine};
