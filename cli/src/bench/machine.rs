//! The machine a figure was taken on: its name for the report, and the pinning of threads to its CPUs.

use serde::Serialize;
use std::fs;
use std::thread;

/// What a reader has to know about the machine before comparing figures.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The CPU's own name for itself, where the system tells it.
    pub cpu: Option<String>,
    /// CPUs that this process may use.
    pub cores: usize,
    /// Name and release of the operating system.
    pub os: String,
    /// Instruction set.
    pub arch: &'static str,
}

impl Machine {
    /// Asks the system; what it does not tell stays unknown.
    pub fn detect() -> Self {
        let cpu = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        let os = match fs::read_to_string("/proc/sys/kernel/osrelease") {
            Ok(release) => format!("{} {}", std::env::consts::OS, release.trim()),
            Err(_) => std::env::consts::OS.to_owned(),
        };
        let cores = thread::available_parallelism().map_or(1, Into::into);
        Self { cpu, cores, os, arch: std::env::consts::ARCH }
    }
}

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
