//! Threads to CPUs.

/// Ties the calling thread to one of the CPUs it may use: thread n to the n-th, round robin.
///
/// Best effort: where the system has no such call, or refuses it, the thread stays free to move.
#[cfg(target_os = "linux")]
pub fn pin(thread: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
    let Some(&cpu) = cpus.get(thread % cpus.len().max(1)) else { return };
    let mut one = CpuSet::new();
    one.set(cpu);
    let _ = sched_setaffinity(None, &one);
}

/// Ties the calling thread to one CPU; a no-op on this system.
#[cfg(not(target_os = "linux"))]
pub fn pin(_thread: usize) {}
