//! Threads to CPUs.

/// Ties the calling thread to one of the CPUs it may use: thread n to the n-th, round robin.
///
/// Best effort: where the system has no such call, or refuses it, the thread stays free to move.
#[cfg(target_os = "linux")]
pub fn pin(thread: usize) {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: a `cpu_set_t` is a bit array, for which all-zero is the empty set; both calls get its true
    // size, and the CPU_* helpers stay inside it because the index is below CPU_SETSIZE.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size, &raw mut allowed) != 0 {
            return;
        }
        let cpus: Vec<usize> =
            (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &allowed)).collect();
        let Some(&cpu) = cpus.get(thread % cpus.len().max(1)) else { return };
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut one);
        libc::sched_setaffinity(0, size, &raw const one);
    }
}

/// Ties the calling thread to one CPU; a no-op on this system.
#[cfg(not(target_os = "linux"))]
pub fn pin(_thread: usize) {}
