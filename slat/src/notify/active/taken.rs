//! `Taken`: what an invalidation must look again for.

use core::cell::Cell;

/// The record of what the edits of an invalidation took away.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Whether the current pass put a hole in place of something.
    pub(super) in_pass: Cell<bool>,
    /// Whether a newer invalidation may be hidden by what was taken.
    pub(super) may_hide: Cell<bool>,
}
