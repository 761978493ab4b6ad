//! The statistics of a run, in virtual time and on threads.

use slat_machine::JobStats;

/// The times and counts of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunStats {
    /// From the beginning until the last job of the first job's kind had ended.
    pub wall_ns: u64,
    /// In the order given. Threads cannot tell how long they waited or slept.
    pub jobs: Vec<JobStats>,
    /// The cache lines that were fought over, hottest first, 16 at most. On threads they cannot be seen.
    pub lines: Vec<ContendedLine>,
    /// Kicks sent; none on threads, which need none.
    pub kicks: u64,
    /// Shared operations simulated; none on threads.
    pub events: u64,
    /// Times that the system took a CPU away from a job; none in virtual time.
    pub preemptions: u64,
}

/// Cache lines that were fought over at one place of the program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContendedLine {
    /// Its content, or its place in the program.
    pub name: String,
    /// Where that place is: "sync/baselines.rs:141".
    pub site: String,
    /// How many of them.
    pub lines: u64,
    /// How often they changed hands.
    pub transfers: u64,
    /// How long others waited for them, all together.
    pub waited_ns: u64,
}

impl RunStats {
    /// The share of their time that jobs of the first job's kind waited, 0 to 1.
    pub fn waiting(&self) -> f64 {
        let kind = self.jobs.first().map_or("", |job| job.name);
        let of_kind = || self.jobs.iter().filter(|job| job.name == kind);
        let all: u64 = of_kind().map(|job| job.ns).sum();
        of_kind().map(|job| job.waiting_ns).sum::<u64>() as f64 / all.max(1) as f64
    }
}
