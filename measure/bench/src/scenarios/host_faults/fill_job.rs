//! New memory that threads fill: how much, in pages of which size, and the result of one sample.

use crate::scenarios::threads_prelude::*;

/// The name of the entrant that fills the memory.
pub const SLAT: &str = "slat on slat-mm";
pub const LINUX: &str = "Linux";

/// A job, and who does it.
pub type Entrant = (Job, &'static str);

/// The job, the same for both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    pub threads: u16,
    /// Of each thread's part: whole pages of 2 MiB.
    pub bytes: u64,
    /// A page of 4 KiB or of 2 MiB.
    pub page: Level,
}

impl Job {
    /// All of the memory, in bytes.
    pub fn all(&self) -> u64 {
        u64::from(self.threads) * self.bytes
    }

    /// Faults of all threads.
    pub fn faults(&self) -> u64 {
        self.all() / self.page.bytes()
    }

    /// The size of a page, in words.
    pub fn pages(&self) -> &'static str {
        if self.page == Level::K4 { "4K" } else { "2M" }
    }

    /// A sample of it.
    pub fn sample(&self, [fill_ns, unmap_ns]: [f64; 2], tally: Vec<Tally>) -> Sample {
        let pages = (self.all() / PAGE_SIZE) as f64;
        Sample { fill_ns: fill_ns / self.faults() as f64, unmap_ns: unmap_ns / pages, tally }
    }
}

/// The result of one sample.
#[derive(Clone, Debug)]
pub struct Sample {
    /// From the line until the last thread was done, in nanoseconds for each fault.
    pub fill_ns: f64,
    /// The call that unmapped all of it, for each page of 4 KiB.
    pub unmap_ns: f64,
    /// The conditions that must hold.
    pub tally: Vec<Tally>,
}

/// Checks of both.
pub const RIGHT: &str = "every page holds what it has to";
pub const GONE: &str = "munmap left none";
