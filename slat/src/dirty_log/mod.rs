//! The parts of dirty logging that a VM and its vCPUs own: the settings, and the rings. [`dirty`](crate::dirty) has the
//! rest, and says how a log works.

mod error;
pub(crate) mod ring;
mod settings;

pub use error::DirtyError;
pub use settings::{DirtyLog, RingSize, Splitting, Track};
