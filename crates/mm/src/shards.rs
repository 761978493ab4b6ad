//! Sharded values, such as counters and free frames: each thread mostly uses its own shard.

use crate::prim::thread_number;
use std::ops::Deref;
use std::sync::OnceLock;
use std::thread::available_parallelism;

/// Least number of shards. If there are more threads than shards, threads share.
const SHARDS: usize = 16;

/// A value on its own cache lines (two, since processors fetch lines in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(T);

impl<T> Deref for Padded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// A fixed number of `T`s, each on its own cache lines.
#[derive(Debug)]
pub(crate) struct Shards<T>(Box<[Padded<T>]>);

impl<T> FromIterator<T> for Shards<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        Self(all.into_iter().map(Padded).collect())
    }
}

impl<T: Default> Shards<T> {
    /// Creates one shard for each CPU, and at least [`SHARDS`].
    pub(crate) fn new() -> Self {
        Self::with(shards())
    }

    /// Creates `count` shards, to be picked by number.
    pub(crate) fn with(count: usize) -> Self {
        (0..count).map(|_| T::default()).collect()
    }
}

impl<T> Shards<T> {
    /// Returns this thread's shard.
    #[inline]
    pub(crate) fn mine(&self) -> &T {
        self.pick(thread_number())
    }

    /// Returns the shard for `number`.
    #[inline]
    pub(crate) fn pick(&self, number: usize) -> &T {
        &self.0[number % self.0.len()]
    }

    /// Returns the number of shards.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns all shards.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|padded| &padded.0)
    }
}

/// Returns the number of shards for threads: at least one for each CPU.
pub(crate) fn shards() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    // The largest simulated machine has this many CPUs.
    let cpus = || if cfg!(virtual_time) { 1024 } else { available_parallelism().map_or(1, usize::from) };
    *COUNT.get_or_init(|| cpus().next_power_of_two().max(SHARDS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// Also after many threads have come and gone.
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
        // Threads of other tests come and go meanwhile, and may take numbers between these.
        assert!(std::collections::BTreeSet::from(mine).len() >= 3, "{mine:?}");
    }
}
