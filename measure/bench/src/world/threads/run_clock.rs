//! The clock of a run on threads.

use std::cell::Cell;
use std::time::Instant;

thread_local! {
    /// When the run that this thread has a job in began.
    pub static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}
