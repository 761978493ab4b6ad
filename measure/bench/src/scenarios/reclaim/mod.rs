//! `slat bench reclaim`: a guest with less memory than it uses. Which pages should be evicted?
//!
//! ```text
//! bounds.rs         the accesses of guests; pages brought in again under exact LRU and under Belady's optimum; how cold evicted pages were
//! limited_guest.rs  one sample: a machine with a limit, swap, and one vCPU
//! slow_device.rs    faults elsewhere while a swap device is slow
//! refaults.rs       the report
//! ```
//! After the MGLRU aging series: a host that ages by its own Accessed bits does not see what guests use, and learns it only when it is
//! about to evict a page (`walk-secondary off`, before); one whose aging asks the guests' tables does (`on`). Each guest
//! runs with room for a part of its footprint, and it is counted which pages come back: a page that does was evicted
//! too early.
//!
//! **How much there is to gain.** Before, too, asks the guest: about each page that is about to go, which gets a second
//! chance. That alone comes near exact LRU, and on sort, whose pages are used again at random, as near as anything that
//! does not know the future. Aging that asks stays near exact LRU's count or below, and finds in use few of the pages that
//! it was about to evict. A third fewer than before, which one might hope for, would be far below exact LRU on both traces.
//!
//! The bundled traces were recorded without accesses that one of the last 64 pages would have answered, so they say
//! which page is needed, and in what order, but hold few accesses to the hottest pages; the program with phases has all
//! of its accesses.

mod bounds;
mod limited_guest;
mod refaults;
mod slow_device;

use crate::scenarios::threads_prelude::*;
use limited_guest::{Entrant, Job};
use std::iter;

/// The flags of `slat bench reclaim`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  slat bench reclaim --limit 50 --runs 3")]
pub struct Reclaim {
    /// Parts of the footprint that the guest has room for, in percent
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "50,75",
          value_parser = clap::value_parser!(u64).range(5..=100))]
    limit: Vec<u64>,
    /// Accesses of each guest at most. The bars on refaults are for all of them [default: all]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    accesses: Option<u32>,
}

/// Its row of the registry.
pub static SCENARIO: Scenario = Scenario {
    name: "reclaim",
    asks: "Pages that are reclaimed when memory is short: Linux before the MGLRU aging series, aging that asks the guest, exact LRU, the optimum",
    series: PatchSeries::MglruAging,
    simulated: Simulated::NOT,
    measured: Measured {
        takes: ["40 s", "420 MiB"],
        question: "Which pages go when memory is short?",
        kept: "",
        ci: &["-a 200000"],
        quick: &["--limit 50 --accesses 400000 --runs 1"],
        full: &["--runs 3"],
        ..Measured::of::<Reclaim>()
    },
};

impl Flags for Reclaim {
    fn report(&self, scenario: &'static Scenario, asked: Asked) -> Result<Report> {
        // Before this thread is tied to one of the CPUs.
        let machine = Machine::detect();
        let most = self.accesses.map_or(usize::MAX, |most| most as usize);
        let jobs = bounds::traces(most)?.into_iter().map(Job::new).collect::<Result<Vec<Job>>>()?;
        let entrants = self.entrants(jobs.len());
        say(format_args!("{} guests: {} rounds of {} entrants", jobs.len(), asked.runs, entrants.len()));
        let guests = jobs.iter().map(|job| {
            let (trace, stream) = (&job.trace, &job.stream);
            format!("{}: {} accesses, {} pages", trace.name, trace.accesses(), stream.distinct)
        });
        let mut report = Report::of(scenario.name, machine);
        report.params = params! { "guests": guests.collect::<Vec<_>>().join("; "), "runs": asked.runs };
        let laps = Lineup::run(asked.runs, entrants, |entrant| jobs[entrant.job].sample(entrant))?;
        let whole = self.accesses.is_none();
        for job in jobs.iter().enumerate() {
            for &limit in &self.limit {
                refaults::add_to(&mut report, &laps, job, limit, whole);
            }
        }
        let beside = Lineup::run(asked.runs, [false, true], |&busy| slow_device::sample(busy))?;
        slow_device::add_to(&mut report, beside.of(false), beside.of(true), whole);
        Ok(report)
    }
}

impl Reclaim {
    fn entrants(&self, jobs: usize) -> Vec<Entrant> {
        let limited = self.limit.iter().flat_map(|&limit| [(Some(limit), true), (Some(limit), false)]);
        let settings: Vec<_> = iter::once((None, true)).chain(limited).collect();
        let of =
            |job| settings.iter().map(move |&(limit, walk_secondary)| Entrant { job, limit, walk_secondary });
        (0..jobs).flat_map(of).collect()
    }
}
