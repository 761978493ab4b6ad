//! A limit for threads that work ahead of faults: many may wait for the store, but few compute at the same time.

use parking_lot::{Condvar, Mutex};

/// Limits the number of threads that compute at the same time.
#[derive(Debug)]
pub(crate) struct ComputeLimit {
    free: Mutex<usize>,
    freed: Condvar,
}

/// Permits its thread to compute until it is dropped.
pub(crate) struct ComputePermit<'a>(&'a ComputeLimit);

impl Default for ComputeLimit {
    /// Half of the processors; the guest uses the others.
    fn default() -> Self {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        Self { free: Mutex::new(all.div_ceil(2)), freed: Condvar::new() }
    }
}

impl ComputeLimit {
    /// Waits until the thread may compute.
    pub fn acquire(&self) -> ComputePermit<'_> {
        let mut free = self.free.lock();
        self.freed.wait_while(&mut free, |free| *free == 0);
        *free -= 1;
        ComputePermit(self)
    }
}

impl Drop for ComputePermit<'_> {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn no_more_threads_compute_than_may() {
        let limit = ComputeLimit { free: Mutex::new(2), freed: Condvar::new() };
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let _permit = limit.acquire();
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        now.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!((most.into_inner(), *limit.free.lock()), (2, 2));
    }
}
