//! A limit for threads that work ahead: many may wait for the store, and few compute.

use parking_lot::{Condvar, Mutex};

/// So many threads may compute at the same time.
#[derive(Debug)]
pub(crate) struct Pace {
    free: Mutex<usize>,
    freed: Condvar,
}

/// While it lives, its thread computes.
pub(crate) struct Turn<'a>(&'a Pace);

impl Default for Pace {
    /// Half of the processors: the others are the guest's.
    fn default() -> Self {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        Self { free: Mutex::new(all.div_ceil(2)), freed: Condvar::new() }
    }
}

impl Pace {
    /// Waits for a turn.
    pub fn turn(&self) -> Turn<'_> {
        let mut free = self.free.lock();
        self.freed.wait_while(&mut free, |free| *free == 0);
        *free -= 1;
        Turn(self)
    }
}

impl Drop for Turn<'_> {
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
        let pace = Pace { free: Mutex::new(2), freed: Condvar::new() };
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let _turn = pace.turn();
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        now.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!((most.into_inner(), *pace.free.lock()), (2, 2));
    }
}
