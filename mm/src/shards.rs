//! One of a few for each thread, so that threads rarely meet: counters, free frames.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// How many of each. More threads than this share.
const SHARDS: usize = 16;

/// A value alone on its cache lines (two of them: processors fetch lines in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(T);

impl<T> Deref for Padded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// A fixed number of `T`s, each alone on its cache lines.
#[derive(Debug)]
pub(crate) struct Shards<T>(Box<[Padded<T>]>);

impl<T: Default> Shards<T> {
    /// One for each of a few threads.
    pub(crate) fn new() -> Self {
        Self::with(SHARDS)
    }

    /// `count` of them, to be picked by number.
    pub(crate) fn with(count: usize) -> Self {
        Self((0..count).map(|_| Padded::default()).collect())
    }

    /// This thread's.
    #[inline]
    pub(crate) fn mine(&self) -> &T {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! { static MINE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Relaxed)); }
        self.pick(MINE.with(Cell::get))
    }

    /// The one for `number`.
    #[inline]
    pub(crate) fn pick(&self, number: usize) -> &T {
        &self.0[number % self.0.len()]
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|padded| &padded.0)
    }
}
