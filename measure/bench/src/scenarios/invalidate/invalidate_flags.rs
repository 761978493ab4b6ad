//! `slat bench invalidate`: faults beside threads that invalidate, by pages or by ranges, back to back or with pauses.
//!
//! The hardest neighbour of a fault: each invalidation begins, edits one entry, flushes and ends, some million times a
//! second. Under a lock each of them stops the vCPU; with one sequence for the VM each would make its faults start
//! again. Here they meet at the entry only, so elsewhere they should not meet at all, and inside the same 2 MiB hardly.
//!
//! Rows compare slat with itself under the baseline locks: what a fault costs, how much more than
//! alone, how many attempts were made again and why, how often the host was asked again, and what an invalidation costs.
//!
//! The lap is the one that `slat sim` simulates (`invalidating_run.rs`), with the engine alone: vCPUs without a guest, a host
//! that does no work. A vCPU's loop is not timed fault by fault: its figure is the time of all divided by their number, and the slowest
//! vCPU's counts. A lap ends after [`MOST_TIME`], or when the command is interrupted: then with fewer faults. No vCPU is in the
//! guest, so a flush waits for no vCPU: what is measured is how the two meet in the tables and at the lock.

use super::invalidated_places::{Layout, TABLE};
use super::invalidating_run::{Fixture, InvalidatingRun};
use crate::scenarios::threads_prelude::*;
use crate::threads::arithmetic::{Pages, frame_of};
use crate::threads::flag_values::HostPage;

/// The flags of `slat bench invalidate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  slat bench invalidate -b 256M --runs 3")]
pub struct Invalidate {
    /// Guest memory that each vCPU faults in, page by page: multiples of 2M and of the host's pages
    /// [default: 1G; with --pages 2m 64G, with 1g 4T]
    #[arg(short, long, value_name = "SIZE", value_parser = size)]
    bytes: Option<u64>,
    /// Threads that fault
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    vcpus: u32,
    /// Threads that invalidate
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    invalidators: u32,
    /// Each computes for so long between two invalidations
    #[arg(long, value_name = "NS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pause_ns: u64,
    /// The size of one invalidation: a power of two, from 4K to 2M
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = size)]
    range: u64,
    /// The size of the host's pages behind the vCPUs' memory
    #[arg(short, long, value_enum, default_value = "4k")]
    pages: HostPage,
    /// The host takes so long whenever it is asked for a page, and says nothing without being asked
    #[arg(long, value_name = "NS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    host_sleeps_ns: u64,
}

/// The default memory that a vCPU faults in, in bytes.
fn default_bytes(pages: HostPage) -> u64 {
    match pages {
        HostPage::K4 => 1 << 30,
        HostPage::M2 => 64 << 30,
        HostPage::G1 => 4 << 40,
    }
}

/// The most memory to fault in, all vCPUs together.
const MOST: u64 = 1 << 46;

/// A lap is ended after so long.
const MOST_TIME: u64 = 250_000_000;

/// Slat as it ships, then its baselines.
const COLUMNS: [Column; 3] = [NONE, READ_WRITE, EXCLUSIVE];

fn name(column: Column) -> &'static str {
    match column.lock {
        MmuLock::None => "slat",
        MmuLock::ReadWrite => "slat --mmu-lock read-write",
        MmuLock::Exclusive => "slat --mmu-lock exclusive",
    }
}

/// Where what is invalidated meanwhile lies, if anything is; and what rows call it.
type Beside = (Option<Over>, &'static str);

const ALONE: Beside = (None, "none");
const BESIDE: [Beside; 4] = [
    ALONE,
    (Some(Over::Mapped), "elsewhere, mapped"),
    (Some(Over::Elsewhere), "elsewhere, holes"),
    (Some(Over::Same), "same 2M"),
];

/// One case in one column.
type Entrant = (Beside, Column);

/// Tables that show what each idea contributes: [`crate::levers`].
const LEVERS: &[Grid] = &[Grid {
    what: "A fault of 4 KiB beside a thread that invalidates single pages back to back, under each lock",
    columns: &[
        ("one mutex", Cell::baseline("slat --mmu-lock exclusive")),
        ("a reader-writer lock", Cell::baseline("slat --mmu-lock read-write")),
        ("no lock", Cell::slat("slat --mmu-lock exclusive")),
    ],
    rows: &[
        ("no such thread", &[("beside", "none")], "ns/fault"),
        ("elsewhere, pages that are mapped", &[("beside", "elsewhere, mapped")], "ns/fault"),
        ("elsewhere, pages that are not", &[("beside", "elsewhere, holes")], "ns/fault"),
        ("in the same 2 MiB", &[("beside", "same 2M")], "ns/fault"),
        ("in the same 2 MiB, against no such thread", &[("beside", "same 2M")], "times alone"),
    ],
    says: "One engine under three locks: the columns differ in the lock alone. Against its own time without such a thread slat loses\n\
           more in the same 2 MiB than the mutex does, since its fault alone takes half as long.",
}];

/// `slat bench invalidate`.
pub const MEASURED: Measured = Measured {
    takes: ["5 s; 20 s at most", "25 MiB"],
    question: "How much does a thread that invalidates single pages back to back cost a fault beside it?",
    kept: "--runs 9",
    headlines: &[
        Headline {
            what: "a fault beside a thread that invalidates other pages",
            against: "the same engine under one mutex",
            row: "slat --mmu-lock exclusive",
            params: &[("beside", "elsewhere, mapped")],
        },
        Headline {
            what: "the same in the same 2 MiB",
            against: "the same engine under one mutex",
            row: "slat --mmu-lock exclusive",
            params: &[("beside", "same 2M")],
        },
    ],
    levers: LEVERS,
    ci: &["-b 64M"],
    quick: &["-b 64M --runs 3"],
    full: &["--runs 5"],
    ..Measured::of::<Invalidate>()
};

impl Flags for Invalidate {
    fn report(&self, scenario: &'static Scenario, asked: Asked) -> Result<Report> {
        let pages = self.pages()?;
        let mut report = Report::of(scenario.name, Machine::detect());
        report.params = params! {
            "runs": asked.runs,
            "bytes_per_vcpu": pages * self.pages.level().bytes(),
            "vcpus": self.vcpus,
            "invalidators": self.invalidators,
            "pause_ns": self.pause_ns,
            "range": self.range,
            "pages": size::text(self.pages.level().bytes()),
            "host_sleeps_ns": self.host_sleeps_ns,
        };
        // Ctrl-C: the rounds go on, with laps that end at once, since one case alone says nothing.
        // All cases in one interleaved run: a slow-down compares two of them.
        let entrants = BESIDE.iter().flat_map(|&beside| COLUMNS.map(|column| (beside, column)));
        let laps = Lineup::run(asked.runs, entrants, |&entrant| self.lap(entrant, pages))?;
        report.rows = BESIDE.into_iter().flat_map(|beside| rows(&laps, beside)).collect();
        report.checks = laps.each().flat_map(|(&entrant, laps)| self.checks(entrant, laps)).collect();
        Ok(report)
    }
}

impl Invalidate {
    /// Pages of the host that each vCPU faults in.
    fn pages(&self) -> Result<u64> {
        let level = self.pages.level();
        let bytes = self.bytes.unwrap_or(default_bytes(self.pages));
        let unit = level.max(Level::M2);
        multiple_of(unit, "bytes", bytes, MOST / u64::from(self.vcpus))?;
        if !self.range.is_power_of_two() || !(PAGE_SIZE..=Level::M2.bytes()).contains(&self.range) {
            return Err(Error::Usage(format!("--range: {} is no power of two from 4K to 2M", self.range)));
        }
        Ok(bytes / level.bytes())
    }

    fn lap(&self, ((over, _), column): Entrant, pages: u64) -> Result<InvalidatingRun> {
        let (vcpus, level) = (self.vcpus, self.pages.level());
        let invalidators = if over.is_some() { self.invalidators } else { 0 };
        let work = Work {
            over: over.unwrap_or(Over::Elsewhere),
            range: self.range / PAGE_SIZE,
            pause_ns: self.pause_ns,
            host_page: level,
            ..Work::none()
        };
        let setting = Setting::real(column, vcpus, work);
        let layout = &Layout::new(&setting, pages);
        let tables = pages * u64::from(vcpus) / if level == Level::K4 { TABLE } else { 1 }
            + 64 * u64::from(vcpus + invalidators);
        table_pool::reserve(tables * PAGE_SIZE * 65 / 64);
        let small_from = hva_of(layout.place(0).start);
        let host = Pages { level, small_from, sleeps_ns: self.host_sleeps_ns, is_silent: false };
        let slots = [slot(0, Span::sized(Gfn(0), layout.end(invalidators)))];
        let vm = &vm_with::<Npt4, _>(host, vcpus + invalidators, column.lock, slots)?;
        let lap = || {
            let fixture = Fixture::new(vm, frame_of, layout, (invalidators, &setting.work))?;
            let vcpus: Result<Vec<_>, _> = (0..vcpus).map(|number| Bare::new(vm, number)).collect();
            let goes_on = || now() < MOST_TIME && !interrupt::asked();
            InvalidatingRun::run(&setting, &fixture, &mut vcpus?, &goes_on)
        };
        lap().map_err(Error::Machine)
    }

    /// The conditions under which a case counts.
    fn checks(&self, ((over, beside), column): Entrant, laps: &[InvalidatingRun]) -> Vec<Check> {
        let who = format!("{}, beside {beside}", name(column));
        let mut checks = Check::tallied(&who, "", laps.iter().flat_map(|lap| &lap.tally));
        if column == NONE && matches!(over, Some(Over::Mapped | Over::Elsewhere)) {
            let again = |lap: &InvalidatingRun| {
                let by = lap.counted.retries_by;
                by.moved + by.covered + by.lost
            };
            // Each vCPU finds out once that the host has pages larger than 2 MiB.
            let once =
                if self.pages == HostPage::G1 { 1000 * u64::from(self.vcpus) * laps.len() as u64 } else { 0 };
            let again: u64 = laps.iter().map(again).sum();
            let faults: u64 = laps.iter().map(|lap| lap.counted.mapped_faults).sum();
            checks.push(Check {
                name: "slat: invalidations elsewhere make no fault start again, or not one in a thousand"
                    .into(),
                ok: again * 1000 <= faults + once,
                detail: format!("{again} of {faults}, beside {beside}"),
            });
        }
        checks
    }
}

/// A figure of a lap, and of the lap alone of the same round and column: its unit, and its value.
type Figure = (&'static str, fn(&InvalidatingRun, &InvalidatingRun) -> Option<f64>);

const FAULT: Figure = ("ns/fault", |lap, _| Some(lap.fault_ns));

const FIGURES: [Figure; 6] = [
    ("times alone", |lap, alone| Some(lap.fault_ns / alone.fault_ns)),
    ("moved/1000 faults", |lap, _| Some(per_1000(lap, lap.counted.retries_by.moved))),
    ("covered/1000 faults", |lap, _| Some(per_1000(lap, lap.counted.retries_by.covered))),
    ("lost/1000 faults", |lap, _| Some(per_1000(lap, lap.counted.retries_by.lost))),
    ("asked again/1000 faults", |lap, _| Some(per_1000(lap, lap.counted.asked_again))),
    ("ns/invalidation", |lap, _| lap.invalidation_ns),
];

fn per_1000(lap: &InvalidatingRun, count: u64) -> f64 {
    count as f64 * 1000.0 / lap.counted.mapped_faults as f64
}

/// The other columns against slat as it ships.
fn rows(laps: &Lineup<Entrant, InvalidatingRun>, beside: Beside) -> Vec<Row> {
    let params = params! { "beside": beside.1 };
    let more = if beside == ALONE { &[][..] } else { &FIGURES };
    let mut rows = Vec::new();
    for (unit, figure) in std::iter::once(&FAULT).chain(more) {
        let series = |column| {
            let laps = laps.of((beside, column)).iter().zip(laps.of((ALONE, column)));
            laps.map(|(lap, alone)| figure(lap, alone)).collect::<Option<_>>().map(Series::new)
        };
        let [slat, others @ ..] = COLUMNS;
        rows.extend(others.into_iter().filter_map(|column| {
            let row = Row::compare(name(column), params.clone(), unit, &series(column)?, &series(slat)?);
            Some(row.answering(PatchSeries::TdpMmu))
        }));
    }
    rows
}
