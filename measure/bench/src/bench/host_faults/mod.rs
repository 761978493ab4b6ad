//! `slat bench host-faults`: new memory, page by page: slat with slat-mm as its host, and Linux itself, in the same rounds.
//!
//! ```text
//! ours.rs     vCPUs fault in guest memory that slat-mm has not filled: engine, mapping, frame, zeroes, both tables
//! linux.rs    threads store to anonymous memory: the kernel's fault
//! beside.rs   one vCPU goes on while a thread maps, unmaps, protects or forks elsewhere
//! ```
//! Each thread has a part of its own. A sample is the time from the line until the last thread is done, for each page of all parts; then all
//! of it is unmapped by one call. With huge pages both sides are told so, and a fault fills 2 MiB. The frames of slat-mm are the same in
//! all rounds, and warm, as those of the kernel are after the first round.

mod beside;
mod linux;
mod ours;
#[cfg(test)]
mod tests;

use super::guest_memory::arena;
use super::harness::{Lineup, Series};
use super::machine::Machine;
use super::report::{Figure, Report, Row, params};
use super::{About, Asked, Bench, multiple_of};
use beside::Change;
use slat::{Level, PAGE_SIZE};
use slat_cli::bar::say;
use slat_cli::error::Error;
use slat_cli::size::size;
use slat_series::PatchSeries;
use slat_threads::benches::Tally;

/// What filling new memory costs with slat-mm as the host, on one thread and on two, beside Linux itself and beside changes elsewhere
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  slat bench host-faults -b 32M --threads 1,2,4")]
pub struct HostFaults {
    /// New memory for each thread: 2M, 1G
    #[arg(short, long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    bytes: u64,
    /// Numbers of threads to measure with
    #[arg(long, value_name = "N,…", default_value = "1,2", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=512))]
    threads: Vec<u16>,
    /// Memory that changes elsewhere: 2M, 1G
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = size)]
    changed: u64,
}

/// The row of this bench in the registry.
pub const ABOUT: About = About {
    takes: ["20 s", "500 MiB"],
    ci: &["-b 8M --changed 4M"],
    quick: &["-b 32M --changed 8M --runs 3"],
    full: &[""],
    ..About::of("host-faults", PatchSeries::TdpMmu)
};

/// Who fills the memory.
const SLAT: &str = "slat on slat-mm";
const LINUX: &str = "Linux";

/// A job, and who does it.
type Entrant = (Job, &'static str);

/// What to do, the same for both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Job {
    threads: u16,
    /// Of each thread's part: whole pages of 2 MiB.
    bytes: u64,
    /// A page of 4 KiB or of 2 MiB.
    page: Level,
}

impl Job {
    /// All of the memory, in bytes.
    fn all(&self) -> u64 {
        u64::from(self.threads) * self.bytes
    }

    /// Faults of all threads.
    fn faults(&self) -> u64 {
        self.all() / self.page.bytes()
    }

    /// The size of a page, in words.
    fn pages(&self) -> &'static str {
        if self.page == Level::K4 { "4K" } else { "2M" }
    }

    /// A sample of it.
    fn sample(&self, [fill_ns, unmap_ns]: [f64; 2], tally: Vec<Tally>) -> Sample {
        let pages = (self.all() / PAGE_SIZE) as f64;
        Sample { fill_ns: fill_ns / self.faults() as f64, unmap_ns: unmap_ns / pages, tally }
    }
}

/// The result of one sample.
#[derive(Clone, Debug)]
struct Sample {
    /// From the line until the last thread was done, in nanoseconds for each fault.
    fill_ns: f64,
    /// The call that unmapped all of it, for each page of 4 KiB.
    unmap_ns: f64,
    /// What must hold.
    tally: Vec<Tally>,
}

/// Checks of both.
const RIGHT: &str = "every page holds what it has to";
const GONE: &str = "munmap left none";

impl Bench for HostFaults {
    fn report(&self, asked: Asked) -> Result<Report, Error> {
        let most = u64::from(self.threads.iter().copied().max().unwrap_or(1));
        multiple_of(Level::M2, "bytes", self.bytes, ours::MOST / most)?;
        multiple_of(Level::M2, "changed", self.changed, ours::MOST)?;
        let arena = arena((self.bytes * most).max(self.bytes + self.changed), most)?;
        let linux = linux::is_here();
        let mut report = Report::of(ABOUT.name, Machine::detect());
        report.params = params! {
            "bytes_per_thread": self.bytes, "changed_elsewhere": self.changed, "runs": asked.runs,
        };
        for page in [Level::K4, Level::M2] {
            let huge = page == Level::M2;
            let entrants: Vec<Entrant> = (self.threads.iter())
                .map(|&threads| Job { threads, bytes: self.bytes, page })
                .flat_map(|job| [(job, SLAT), (job, LINUX)])
                .filter(|&(_, who)| who == SLAT || linux && (!huge || linux::has_huge()))
                .collect();
            say(format_args!("{page:?} pages: {} rounds of {} entrants", asked.runs, entrants.len()));
            let laps = Lineup::run(asked.runs, entrants, |(job, who)| {
                if *who == SLAT { ours::sample(job, &arena) } else { linux::sample(job) }
            })?;
            report.rows.extend(fill_rows(&laps));
            let who = |(job, who): &Entrant| format!("{who}, {} threads, {} pages", job.threads, job.pages());
            report.checks.extend(laps.checks("", who, |sample| &sample.tally));
        }
        for (guest, changes) in beside::GUESTS {
            say(format_args!("{guest}: {} rounds of {} changes", asked.runs, changes.len()));
            let laps = Lineup::run(asked.runs, changes.iter().copied(), |&change| {
                beside::sample(&arena, guest, change, self.bytes, self.changed)
            })?;
            report.rows.extend(beside::rows(guest, &laps));
            let who = |change: &Change| format!("{guest} memory beside {}", change.name());
            report.checks.extend(laps.checks("", who, |sample| &sample.tally));
        }
        Ok(report)
    }
}

/// What Linux is compared by.
const FIGURES: [Figure<Sample>; 2] = [
    ("Linux: a fault", "ns of all/fault", |sample| Some(sample.fill_ns)),
    ("Linux: munmap", "ns/4K page", |sample| Some(sample.unmap_ns)),
];

/// Linux against slat with as many threads; then slat with several threads against slat with one.
fn fill_rows(laps: &Lineup<Entrant, Sample>) -> Vec<Row> {
    let jobs = |of| laps.each().filter_map(move |(&(job, who), _)| (who == of).then_some(job));
    let mut rows = Vec::new();
    for job in jobs(SLAT) {
        for (name, unit, figure) in FIGURES {
            let params = params! { "pages": job.pages(), "threads": job.threads };
            let [slat, linux] = [SLAT, LINUX].map(|who| Series::known(laps.of((job, who)), figure));
            rows.extend(slat.map(|slat| Row::against(name, params, unit, linux, &slat)));
        }
    }
    for who in [SLAT, LINUX] {
        for job in jobs(who).filter(|job| job.threads > 1) {
            let (_, unit, fill) = FIGURES[0];
            let [alone, many] =
                [Job { threads: 1, ..job }, job].map(|job| Series::known(laps.of((job, who)), fill));
            let Some((alone, many)) = alone.zip(many) else { continue };
            let name = format!("{who}: 1 thread, {} together", job.threads);
            let params = params! { "pages": job.pages(), "of": "one entrant with itself" };
            rows.push(Row::compare(&name, params, unit, &alone, &many));
        }
    }
    rows
}
