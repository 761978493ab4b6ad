//! Counts how often pages were taken from a log, so that a reader sees whether another took some.

use crate::sync::prim::Mutex;

/// How often pages were taken, and how often that has ended. A lock, held for a few instructions: what is taken between
/// [`begin`](Self::begin) and [`end`](Self::end) stays between them. No protocol depends on it.
#[derive(Default)]
pub(crate) struct Takings {
    counts: Mutex<(u64, u64)>,
}

impl Takings {
    /// Call it before the first page is taken.
    pub(crate) fn begin(&self) {
        self.counts.lock().0 += 1;
    }

    /// Call it after the last page is taken.
    pub(crate) fn end(&self) {
        self.counts.lock().1 += 1;
    }

    /// Returns how often pages were taken, and whether none are being taken now.
    pub(crate) fn count(&self) -> (u64, bool) {
        let (begun, ended) = *self.counts.lock();
        (begun, begun == ended)
    }
}
