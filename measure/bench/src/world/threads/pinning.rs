//! Threads to CPUs.

pub use system::{cpus, pin};

#[cfg(target_os = "linux")]
mod system {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use std::sync::OnceLock;

    /// Before the first thread is tied to one.
    fn all() -> &'static [usize] {
        static ALL: OnceLock<Vec<usize>> = OnceLock::new();
        ALL.get_or_init(|| {
            let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
            (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect()
        })
    }

    /// Ties the calling thread to one of the CPUs that this process may use: thread n to the n-th, round robin. A thread that is
    /// tied to one ties none of those that it starts.
    ///
    /// Best effort: where the system has no such call, or refuses it, the thread stays free to move.
    pub fn pin(thread: usize) {
        let Some(&cpu) = all().get(thread % cpus()) else { return };
        let mut one = CpuSet::new();
        one.set(cpu);
        let _ = sched_setaffinity(None, &one);
    }

    /// How many CPUs this process may use, whatever its threads are tied to.
    pub fn cpus() -> usize {
        all().len().max(1)
    }

    #[cfg(test)]
    #[test]
    fn a_thread_that_is_tied_ties_none_that_it_starts() {
        let tied = |number| {
            pin(number);
            let set = sched_getaffinity(None).unwrap();
            assert_eq!(set.count(), 1);
            all().iter().position(|&cpu| set.is_set(cpu)).unwrap()
        };
        let first =
            std::thread::spawn(move || (tied(0), std::thread::spawn(move || tied(1)).join().unwrap()));
        assert_eq!(first.join().unwrap(), (0, 1 % cpus()));
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub fn pin(_: usize) {}

    pub fn cpus() -> usize {
        std::thread::available_parallelism().map_or(1, Into::into)
    }
}
