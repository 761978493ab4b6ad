//! `slat bench demand-paging`: many vCPUs touch memory for the first time, all at once.
//!
//! ```text
//! paging_sample.rs  one sample: the machine, its vCPUs, the stretch that is timed, and what was left behind; threads that serve
//!                   the faults (-u), through slat-mm's user faults
//! ```
//! The touches, and the conditions afterwards, are those of `slat sim`: `first_touch.rs`.
//!
//! After KVM's `demand_paging_test`, which was written for the TDP MMU series: with 416 vCPUs of 4 GiB each, and a handler for
//! each, they spent 98% of their time waiting for the MMU lock; with the series the test took 89% less time. The
//! entrants are the same engine under three locks: one mutex (before), a reader-writer lock (as the series
//! describes), none (slat as it ships).

#[cfg(test)]
#[path = "paging_tests.rs"]
mod tests;

use super::paging_sample::{Job, MOST, Sample, given};
use crate::scenarios::threads_prelude::*;
use slat_mm::Serve;
use slat_series::tdp_mmu;

/// The flags of `slat bench demand-paging`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  slat bench demand-paging -v 8 -b 64M -u missing")]
pub struct DemandPaging {
    /// vCPUs, a thread each [default: twice as many as there are CPUs]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    vcpus: Option<u32>,
    /// Guest memory for each vCPU: 4K, 2M, 1G
    #[arg(short, long, value_name = "SIZE", default_value = "128M", value_parser = size)]
    bytes: u64,
    /// Every vCPU touches all of the memory, not a part of its own
    #[arg(long)]
    overlap: bool,
    /// The server of faults that the host has no page for
    #[arg(short, long, value_name = "WHO", default_value = "none")]
    uffd: Uffd,
    /// One handler for all of the memory, not one for each vCPU
    #[arg(long)]
    single: bool,
    /// The host has every page before: a fault fills the second-level table and no more
    #[arg(long)]
    prefilled: bool,
}

/// The server of faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Uffd {
    /// The host, with pages of zeroes
    None,
    /// Handler threads, which copy a page
    Missing,
    /// Handler threads, which map a page that is in a file
    Minor,
}

impl Uffd {
    /// Which faults handlers serve, and who serves them in words.
    fn serves(self) -> (Option<Serve>, &'static str) {
        match self {
            Self::None => (None, "by the host"),
            Self::Missing => (Some(Serve::Missing), "by handlers, missing"),
            Self::Minor => (Some(Serve::Minor), "by handlers, minor"),
        }
    }
}

/// Each lock, and what it is called. The first is slat as it ships.
const ENTRANTS: [(MmuLock, &str); 3] = [
    (MmuLock::None, "slat"),
    (MmuLock::Exclusive, "one mutex: before"),
    (MmuLock::ReadWrite, "reader-writer lock: the series"),
];

/// Of their fault time, vCPUs of slat's may wait for the MMU lock less than this, in percent.
const LOCK_SHARE: f64 = 1.0;

/// `slat bench demand-paging`.
pub const MEASURED: Measured = Measured {
    takes: ["5 s", "550 MiB"],
    question: "Four vCPUs touch new memory, and the host fills pages.",
    kept: "",
    variants: &[
        (
            "demand-paging-prefilled",
            "Four vCPUs touch memory that the host has already.",
            "--prefilled --runs 25",
        ),
        ("demand-paging-minor", "The same, served by handlers, minor faults.", "-u minor"),
        ("demand-paging-missing", "The same, served by handlers, missing pages.", "-u missing"),
    ],
    ci: &["-v 4 -b 16M", "-v 4 -b 8M -u missing"],
    quick: &["-v 4 -b 32M --runs 5", "-v 4 -b 16M -u missing --runs 3"],
    full: &["-v 4", "-v 4 -u missing --runs 3", "-v 4 --prefilled"],
    ..Measured::of::<DemandPaging>()
};

impl Flags for DemandPaging {
    fn report(&self, scenario: &'static Scenario, asked: Asked) -> Result<Report> {
        let job = self.job()?;
        say(format_args!("{} vCPUs: {} rounds of {} entrants", job.memory.vcpus, asked.runs, ENTRANTS.len()));
        let laps = Lineup::run(asked.runs, ENTRANTS, |&(lock, _)| job.sample(lock))?;
        let (serve, served) = self.uffd.serves();
        let mut report = Report::of(scenario.name, Machine::detect());
        report.params = params! {
            "vcpus": job.memory.vcpus,
            "bytes_per_vcpu": self.bytes,
            "memory": if self.overlap { "shared" } else { "partitioned" },
            "served": if self.prefilled { "before" } else { served },
            "handlers": serve.map_or(0, |_| if self.single { 1 } else { job.memory.vcpus }),
            "runs": asked.runs,
        };
        report.rows = self.rows(&job, &laps);
        report.checks = laps.each().flat_map(|((_, who), samples)| checks(who, samples)).collect();
        Ok(report)
    }
}

impl DemandPaging {
    /// The job that the flags ask for, if it is possible.
    fn job(&self) -> Result<Job> {
        let vcpus = self.vcpus.unwrap_or_else(|| 2 * Machine::detect().cores as u32);
        let memory = GuestMemory::asked(vcpus, self.bytes, Level::K4, MOST)?;
        let (serve, _) = self.uffd.serves();
        if self.single && serve.is_none() {
            return Err(Error::Usage(
                "--single: there are no handlers without -u missing or -u minor".into(),
            ));
        }
        if self.prefilled && serve.is_some() {
            return Err(Error::Usage("--prefilled: the handlers of -u would have nothing to do".into()));
        }
        Ok(Job {
            memory,
            overlap: self.overlap,
            serve,
            single: self.single,
            prefilled: self.prefilled,
            gives: given,
            arena: arena(memory.bytes(), vcpus.into())?,
        })
    }

    /// Every figure of both baselines against slat's.
    fn rows(&self, job: &Job, laps: &Lineup<(MmuLock, &str), Sample>) -> Vec<Row> {
        let pages = job.memory.pages().len() as f64;
        let figures: [Figure<'_>; 9] = [
            ("time", "ms", &|sample| sample.wall_ns / 1e6),
            ("rate (ratio: slat / baseline)", "k faults/s", &|sample| pages / sample.wall_ns * 1e6),
            ("waiting for the MMU lock", "% of fault time", &Sample::lock_share),
            ("p50 of a fault", "ns", &|sample| sample.fault_ns.value_at_quantile(0.5) as f64),
            ("p90", "ns", &|sample| sample.fault_ns.value_at_quantile(0.9) as f64),
            ("p99", "ns", &|sample| sample.fault_ns.value_at_quantile(0.99) as f64),
            ("p99.9", "ns", &|sample| sample.fault_ns.value_at_quantile(0.999) as f64),
            ("p99.99", "ns", &|sample| sample.fault_ns.value_at_quantile(0.9999) as f64),
            ("longest", "ns", &|sample| sample.fault_ns.max() as f64),
        ];
        let mut rows = Vec::new();
        for (name, unit, figure) in figures {
            let slat = Series::of(laps.of(ENTRANTS[0]), figure);
            for ((lock, who), samples) in laps.each().skip(1) {
                let params = params! { "figure": name };
                let row = Row::compare(who, params, unit, &Series::of(samples, figure), &slat);
                let ratio = match unit {
                    "k faults/s" => row.ratio.map(|ratio| 1.0 / ratio),
                    "% of fault time" => None,
                    _ => row.ratio,
                };
                let comparable = name == "time"
                    && *lock == MmuLock::Exclusive
                    && self.uffd == Uffd::Missing
                    && !(self.overlap || self.single)
                    && job.memory.vcpus == tdp_mmu::VCPUS;
                let row = row
                    .answering(PatchSeries::TdpMmu)
                    .claiming(comparable.then_some(1.0 / (1.0 - tdp_mmu::SAVED)));
                rows.push(Row { ratio, ..row });
            }
        }
        rows
    }
}

/// A figure: its name, its unit, and how a sample says it.
type Figure<'f> = (&'static str, &'static str, &'f dyn Fn(&Sample) -> f64);

/// The conditions of all samples of an entrant under which its figures count.
fn checks(who: &str, samples: &[Sample]) -> Vec<Check> {
    let mut checks = Check::tallied(who, "", samples.iter().flat_map(|sample| &sample.tally));
    if who == ENTRANTS[0].1 {
        let share = samples.iter().map(Sample::lock_share).fold(0.0, f64::max);
        checks.push(Check {
            name: format!("{who}: less than {LOCK_SHARE}% of fault time is spent waiting for the MMU lock"),
            ok: share < LOCK_SHARE,
            detail: format!("{share:.3}%"),
        });
    }
    checks
}
