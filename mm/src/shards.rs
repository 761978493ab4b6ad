//! One of a few for each thread, so that threads rarely meet: counters, free frames.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ops::Deref;

/// How many of each. More threads than this at a time share.
const SHARDS: usize = 16;

/// A thread's number. Those of threads that have ended are given to new ones, lowest first.
struct Number(usize);

/// Numbers that were in use, and how many there are.
static NUMBERS: Mutex<(BTreeSet<usize>, usize)> = Mutex::new((BTreeSet::new(), 0));

impl Number {
    fn take() -> Self {
        let mut numbers = NUMBERS.lock();
        let fresh = numbers.1;
        Self(numbers.0.pop_first().unwrap_or_else(|| {
            numbers.1 += 1;
            fresh
        }))
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        NUMBERS.lock().0.insert(self.0);
    }
}

thread_local! { static MINE: Number = Number::take(); }

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
        // A thread that is about to end shares.
        self.pick(MINE.try_with(|mine| mine.0).unwrap_or(0))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// However many have come and gone.
    #[test]
    fn a_few_threads_share_no_shard_and_no_line() {
        let shards = Shards::<AtomicU64>::new();
        for _ in 0..40 {
            std::thread::scope(|scope| drop(scope.spawn(|| shards.mine().fetch_add(1, Relaxed))));
        }
        let lines: Vec<_> = shards.iter().map(|shard| std::ptr::from_ref(shard).addr() / 128).collect();
        assert!(lines.windows(2).all(|pair| pair[0] != pair[1]));
        let together = std::sync::Barrier::new(4);
        let mine = || {
            let mine = std::ptr::from_ref(shards.mine()).addr();
            together.wait();
            mine
        };
        let mine = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(mine));
            threads.map(|thread| thread.join().unwrap())
        });
        // Other tests' threads come and go meanwhile: they may have numbers between these.
        assert!(BTreeSet::from(mine).len() >= 3, "{mine:?}");
    }
}
