//! `slat bench host-faults`: new memory, page by page: slat with slat-mm as its host, and Linux itself, in the same rounds.
//!
//! ```text
//! new_memory.rs         vCPUs fault in guest memory that slat-mm has not filled: engine, mapping, frame, zeroes, both tables;
//!                       and threads store to anonymous memory: the kernel's fault
//! changes_elsewhere.rs  one vCPU goes on while a thread maps, unmaps, protects or forks elsewhere
//! ```
//! Each thread has a part of its own. A sample is the time from the line until the last thread is done, for each page of all parts; then all
//! of it is unmapped by one call. With huge pages both sides are told so, and a fault fills 2 MiB. The frames of slat-mm are the same in
//! all rounds, and warm, as those of the kernel are after the first round.

#[cfg(test)]
#[path = "host_fault_tests.rs"]
mod tests;

use super::changes_elsewhere::Change;
use super::new_memory::{Entrant, Job, LINUX, SLAT, Sample};
use super::{changes_elsewhere, new_memory};
use crate::scenarios::threads_prelude::*;

/// The flags of `slat bench host-faults`.
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

/// `slat bench host-faults`.
pub const MEASURED: Measured = Measured {
    takes: ["20 s", "500 MiB"],
    ci: &["-b 8M --changed 4M"],
    quick: &["-b 32M --changed 8M --runs 3"],
    full: &[""],
    ..Measured::of::<HostFaults>()
};

impl Flags for HostFaults {
    fn report(&self, scenario: &'static Scenario, asked: Asked) -> Result<Report> {
        let most = u64::from(self.threads.iter().copied().max().unwrap_or(1));
        multiple_of(Level::M2, "bytes", self.bytes, new_memory::MOST / most)?;
        multiple_of(Level::M2, "changed", self.changed, new_memory::MOST)?;
        let arena = arena((self.bytes * most).max(self.bytes + self.changed), most)?;
        let linux = new_memory::linux_is_here();
        let mut report = Report::of(scenario.name, Machine::detect());
        report.params = params! {
            "bytes_per_thread": self.bytes, "changed_elsewhere": self.changed, "runs": asked.runs,
        };
        for page in [Level::K4, Level::M2] {
            let huge = page == Level::M2;
            let entrants: Vec<Entrant> = (self.threads.iter())
                .map(|&threads| Job { threads, bytes: self.bytes, page })
                .flat_map(|job| [(job, SLAT), (job, LINUX)])
                .filter(|&(_, who)| who == SLAT || linux && (!huge || new_memory::has_huge()))
                .collect();
            say(format_args!("{page:?} pages: {} rounds of {} entrants", asked.runs, entrants.len()));
            let laps = Lineup::run(asked.runs, entrants, |(job, who)| {
                if *who == SLAT {
                    new_memory::slat_sample(job, &arena)
                } else {
                    new_memory::linux_sample(job)
                }
            })?;
            report.rows.extend(fill_rows(&laps));
            let who = |(job, who): &Entrant| format!("{who}, {} threads, {} pages", job.threads, job.pages());
            report.checks.extend(laps.checks("", who, |sample| &sample.tally));
        }
        for (guest, changes) in changes_elsewhere::GUESTS {
            say(format_args!("{guest}: {} rounds of {} changes", asked.runs, changes.len()));
            let laps = Lineup::run(asked.runs, changes.iter().copied(), |&change| {
                changes_elsewhere::sample(&arena, guest, change, self.bytes, self.changed)
            })?;
            report.rows.extend(changes_elsewhere::rows(guest, &laps));
            let who = |change: &Change| format!("{guest} memory beside {}", change.name());
            report.checks.extend(laps.checks("", who, |sample| &sample.tally));
        }
        Ok(report)
    }
}

/// The figures that Linux is compared by.
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
