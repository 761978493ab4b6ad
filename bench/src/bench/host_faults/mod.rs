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
use super::report::{Check, Report, Row, params};
use super::{About, Asked, Bench, multiple_of};
use beside::{Change, Guest};
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    Slat,
    Linux,
}

/// What to do, the same for both.
#[derive(Clone, Copy, Debug)]
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
}

/// The result of one sample.
#[derive(Clone, Debug)]
struct Sample {
    /// From the line until the last thread was done, in nanoseconds.
    fill_ns: f64,
    /// The call that unmapped all of it.
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
        let large = Level::M2.bytes();
        multiple_of(Level::M2, "bytes", self.bytes, ours::MOST / most / large * large)?;
        multiple_of(Level::M2, "changed", self.changed, ours::MOST)?;
        let arena = arena((self.bytes * most).max(self.bytes + self.changed), most)?;
        let linux = linux::is_here();
        let mut report = Report::of(ABOUT.name, Machine::detect());
        report.params = params! {
            "bytes_per_thread": self.bytes, "changed_elsewhere": self.changed, "runs": asked.runs,
        };
        for page in [Level::K4, Level::M2] {
            let huge = page == Level::M2;
            let entrants: Vec<(Job, Who)> = (self.threads.iter())
                .map(|&threads| Job { threads, bytes: self.bytes, page })
                .flat_map(|job| [(job, Who::Slat), (job, Who::Linux)])
                .filter(|&(_, who)| who == Who::Slat || linux && (!huge || linux::has_huge()))
                .collect();
            say(format_args!("{page:?} pages: {} rounds of {} entrants", asked.runs, entrants.len()));
            let laps = Lineup::run(asked.runs, entrants, |(job, who)| match who {
                Who::Slat => ours::sample(job, &arena),
                Who::Linux => linux::sample(job),
            })?;
            report.rows.extend(fill_rows(&laps));
            report.checks.extend(laps.each().flat_map(|((job, who), samples)| tell(job, *who, samples)));
        }
        for guest in [Guest::Anonymous, Guest::Shared] {
            let changes = Change::beside(guest);
            say(format_args!("{}: {} rounds of {} changes", guest.name(), asked.runs, changes.len()));
            let laps = Lineup::run(asked.runs, changes.iter().copied(), |&change| {
                beside::sample(&arena, guest, change, self.bytes, self.changed)
            })?;
            report.rows.extend(beside::rows(guest, &laps));
            report.checks.extend(beside::checks(guest, &laps));
        }
        Ok(report)
    }
}

/// Linux against slat with as many threads; then slat with several threads against slat with one.
fn fill_rows(laps: &Lineup<(Job, Who), Sample>) -> Vec<Row> {
    let series = |threads, who, figure: &dyn Fn(&Job, &Sample) -> f64| {
        let is = |(job, other): &(Job, Who)| (job.threads, *other) == (threads, who);
        let (job, _) = laps.each().map(|(entrant, _)| entrant).find(|entrant| is(entrant))?;
        Series::known(laps.find(is), |sample| Some(figure(job, sample)))
    };
    let fill = |job: &Job, sample: &Sample| sample.fill_ns / job.faults() as f64;
    let unmap = |job: &Job, sample: &Sample| sample.unmap_ns / (job.all() / PAGE_SIZE) as f64;
    let mut rows = Vec::new();
    for (job, _) in laps.each().map(|(entrant, _)| entrant).filter(|(_, who)| *who == Who::Slat) {
        let against = |name, unit, figure: &dyn Fn(&Job, &Sample) -> f64| {
            let params = params! { "pages": name_of(job.page), "threads": job.threads };
            let [slat, linux] = [Who::Slat, Who::Linux].map(|who| series(job.threads, who, figure));
            Some(Row::against(name, params, unit, linux, &slat?))
        };
        rows.extend(against("Linux: a fault", "ns of all/fault", &fill));
        rows.extend(against("Linux: munmap", "ns/4K page", &unmap));
    }
    for who in [Who::Slat, Who::Linux] {
        let all = laps.each().map(|(entrant, _)| entrant);
        for (job, _) in all.filter(|(job, other)| *other == who && job.threads > 1) {
            let [alone, many] = [1, job.threads].map(|threads| series(threads, who, &fill));
            let Some((alone, many)) = alone.zip(many) else { continue };
            let name = format!("{}: 1 thread, {} together", who.name(), job.threads);
            let params = params! { "pages": name_of(job.page), "of": "one entrant with itself" };
            rows.push(Row::compare(&name, params, "ns of all/fault", &alone, &many));
        }
    }
    rows
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Self::Slat => "slat on slat-mm",
            Self::Linux => "Linux",
        }
    }
}

fn name_of(page: Level) -> &'static str {
    if page == Level::K4 { "4K" } else { "2M" }
}

/// What must have happened in all samples of an entrant for its figures to count.
fn tell(job: &Job, who: Who, samples: &[Sample]) -> Vec<Check> {
    let who = format!("{}, {} threads, {} pages", who.name(), job.threads, name_of(job.page));
    Check::tallied(&who, "", samples.iter().flat_map(|sample| &sample.tally))
}
