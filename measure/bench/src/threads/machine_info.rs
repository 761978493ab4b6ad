//! The machine a figure was taken on: its name for the report, and the pinning of threads to its CPUs.

pub use crate::world::{cpus, pin};
use serde::{Deserialize, Serialize};
use std::{fmt, fs};

/// The machine, as far as figures depend on it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The CPU's own name for itself, where the system tells it.
    pub cpu: Option<String>,
    /// CPUs that this process may use.
    pub cores: usize,
    /// Name and release of the operating system.
    pub os: String,
    /// Instruction set.
    pub arch: String,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cores, os, arch } = self;
        write!(f, "{}, {cores} cores, {arch}, {os}", cpu.as_deref().unwrap_or("unknown CPU"))
    }
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
        let cores = cpus();
        Self { cpu, cores, os, arch: std::env::consts::ARCH.to_owned() }
    }
}
