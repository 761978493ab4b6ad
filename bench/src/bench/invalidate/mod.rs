//! `slat bench invalidate`: faults beside threads that invalidate, by pages or by ranges, back to back or with pauses.
//!
//! The hardest neighbour of a fault: each invalidation begins, edits one entry, flushes and ends, some million times a
//! second. Under a lock each of them stops the vCPU; with one sequence for the VM each would make its faults start
//! again. Here they meet at the entry only, so elsewhere they should not meet at all, and inside the same 2 MiB hardly.
//!
//! Rows compare slat with itself under the baseline locks (lap.rs is the lap): what a fault costs, how much more than
//! alone, how many attempts were made again and why, how often the host was asked again, and what an invalidation costs.

mod beside;
mod lap;

use super::harness::{Series, rounds};
use super::machine::Machine;
use super::report::{Check, Report, Row, params};
use super::{About, Asked, Bench, Cell, Grid, Headline};
use clap::ValueEnum;
use lap::{Beside, Entrant, MOST, Sample, Setting};
use slat::{Level, MmuLock, PAGE_SIZE};
use slat_cli::error::Error;
use slat_cli::size::{self, size};
use slat_series::PatchSeries;

/// What a thread that invalidates pages back to back costs the faults beside it, under each MMU lock policy
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
    /// What one invalidation covers: a power of two, from 4K to 2M
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = size)]
    range: u64,
    /// The size of the host's pages behind the vCPUs' memory
    #[arg(short, long, value_enum, default_value = "4k")]
    pages: Pages,
    /// The host takes so long whenever it is asked for a page, and says nothing without being asked
    #[arg(long, value_name = "NS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    host_sleeps_ns: u64,
}

/// A size of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Pages {
    #[value(name = "4k")]
    K4,
    #[value(name = "2m")]
    M2,
    #[value(name = "1g")]
    G1,
}

impl Pages {
    fn level(self) -> Level {
        [Level::K4, Level::M2, Level::G1][self as usize]
    }

    /// What a vCPU faults in by default.
    fn bytes(self) -> u64 {
        [1 << 30, 64 << 30, 4 << 40][self as usize]
    }
}

const LOCKS: [MmuLock; 3] = [MmuLock::None, MmuLock::ReadWrite, MmuLock::Exclusive];

fn name(lock: MmuLock) -> &'static str {
    match lock {
        MmuLock::None => "slat",
        MmuLock::ReadWrite => "slat --mmu-lock read-write",
        MmuLock::Exclusive => "slat --mmu-lock exclusive",
    }
}

/// Its levers: [`crate::levers`].
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

/// Its row of the registry.
pub const ABOUT: About = About {
    takes: ["5 s; 20 s at most", "25 MiB"],
    question: "What does a thread that invalidates single pages back to back cost a fault beside it?",
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
    ..About::of("invalidate", PatchSeries::TdpMmu)
};

impl Bench for Invalidate {
    fn report(&self, asked: Asked) -> Result<Report, Error> {
        let setting = &self.setting()?;
        // Ctrl-C: the rounds go on, with laps that end at once, since one case alone says nothing.
        let (mut rows, mut checks) = (Vec::new(), Vec::new());
        // All cases in one interleaved run: a slow-down compares two of them.
        let entrants: Vec<Entrant> =
            Beside::ALL.iter().flat_map(|&beside| LOCKS.map(|lock| Entrant { beside, lock })).collect();
        let laps = rounds(asked.runs as usize, &entrants, |entrant| entrant.lap(setting))?;
        let laps = Laps { entrants, laps };
        for beside in Beside::ALL {
            rows.extend(laps.rows(beside));
        }
        for (&entrant, laps) in laps.entrants.iter().zip(&laps.laps) {
            checks.extend(self::checks(entrant, setting, laps));
        }
        let params = params! {
            "runs": asked.runs,
            "bytes_per_vcpu": setting.pages * PAGE_SIZE,
            "vcpus": self.vcpus,
            "invalidators": self.invalidators,
            "pause_ns": self.pause_ns,
            "range": self.range,
            "pages": size::text(setting.level.bytes()),
            "host_sleeps_ns": self.host_sleeps_ns,
        };
        Ok(Report { params, rows, checks, ..Report::of(ABOUT.name, Machine::detect()) })
    }
}

impl Invalidate {
    fn setting(&self) -> Result<Setting, Error> {
        let level = self.pages.level();
        let bytes = self.bytes.unwrap_or(self.pages.bytes());
        let unit = level.bytes().max(Level::M2.bytes());
        let most = MOST / u64::from(self.vcpus) / unit * unit;
        if bytes == 0 || !bytes.is_multiple_of(unit) || bytes > most {
            let [unit, most] = [unit, most].map(size::text);
            return Err(Error::Usage(format!(
                "--bytes: {bytes} is not a multiple of {unit} from {unit} to {most}"
            )));
        }
        if !self.range.is_power_of_two() || !(PAGE_SIZE..=Level::M2.bytes()).contains(&self.range) {
            return Err(Error::Usage(format!("--range: {} is no power of two from 4K to 2M", self.range)));
        }
        Ok(Setting {
            pages: bytes / PAGE_SIZE,
            vcpus: self.vcpus,
            invalidators: self.invalidators,
            pause_ns: self.pause_ns,
            range: self.range / PAGE_SIZE,
            level,
            host_sleeps_ns: self.host_sleeps_ns,
        })
    }
}

/// Every lap of every entrant.
struct Laps {
    entrants: Vec<Entrant>,
    laps: Vec<Vec<Sample>>,
}

impl Laps {
    fn of(&self, beside: Beside, lock: MmuLock) -> &[Sample] {
        let at = self.entrants.iter().position(|who| *who == Entrant { beside, lock });
        &self.laps[at.expect("every case runs under every policy")]
    }

    fn rows(&self, beside: Beside) -> Vec<Row> {
        let mut rows = self.compare(beside, "ns/fault", |lap, _| Some(lap.fault));
        if beside != Beside::None {
            // Against the lap alone of the same round and policy.
            rows.extend(self.compare(beside, "times alone", |lap, alone| Some(lap.fault / alone.fault)));
            let per_1000 = |count: u64, lap: &Sample| Some(count as f64 * 1000.0 / lap.faults as f64);
            rows.extend(self.compare(beside, "moved/1000 faults", |lap, _| per_1000(lap.retries.moved, lap)));
            rows.extend(
                self.compare(beside, "covered/1000 faults", |lap, _| per_1000(lap.retries.covered, lap)),
            );
            rows.extend(self.compare(beside, "lost/1000 faults", |lap, _| per_1000(lap.retries.lost, lap)));
            rows.extend(
                self.compare(beside, "asked again/1000 faults", |lap, _| per_1000(lap.asked_again, lap)),
            );
            rows.extend(self.compare(beside, "ns/invalidation", |lap, _| lap.invalidation));
        }
        rows
    }

    /// The other policies against slat as it ships.
    fn compare(
        &self,
        beside: Beside,
        unit: &'static str,
        figure: impl Fn(&Sample, &Sample) -> Option<f64>,
    ) -> Vec<Row> {
        let series = |lock| {
            let laps = self.of(beside, lock).iter().zip(self.of(Beside::None, lock));
            laps.map(|(lap, alone)| figure(lap, alone)).collect::<Option<_>>().map(Series::new)
        };
        let params = params! { "beside": beside.name() };
        let Some(slat) = series(MmuLock::None) else { return Vec::new() };
        let others = LOCKS[1..].iter().filter_map(|&lock| {
            Some(
                Row::compare(name(lock), params.clone(), unit, &series(lock)?, &slat)
                    .answering(PatchSeries::TdpMmu),
            )
        });
        others.collect()
    }
}

/// What must have happened for a case to count.
fn checks(entrant: Entrant, setting: &Setting, laps: &[Sample]) -> Vec<Check> {
    let Entrant { beside, lock } = entrant;
    let check = |what: &str, good, of| {
        Check::all(format!("{}, beside {}: {what}", name(lock), beside.name()), [good, of])
    };
    let sum = |count: fn(&Sample) -> u64| laps.iter().map(count).sum();
    let mut checks = vec![
        check("every fault mapped a page", sum(|lap| lap.mapped[0]), sum(|lap| lap.mapped[1])),
        check("the books say what the tables hold", sum(|lap| u64::from(lap.booked)), laps.len() as u64),
    ];
    let taken: Option<Vec<[u64; 2]>> = laps.iter().map(|lap| lap.taken).collect();
    if let Some(taken) = taken {
        let [good, of] = [0, 1].map(|which| taken.iter().map(|pair| pair[which]).sum());
        checks.push(check("each page was taken that was there", good, of));
    }
    if lock == MmuLock::None && matches!(beside, Beside::Mapped | Beside::Holes) {
        let again = |lap: &Sample| lap.retries.moved + lap.retries.covered + lap.retries.lost;
        // Each vCPU finds out once that the host has pages larger than 2 MiB.
        let once =
            if setting.level > Level::M2 { 1000 * u64::from(setting.vcpus) * laps.len() as u64 } else { 0 };
        let (again, faults) = (laps.iter().map(again).sum::<u64>(), sum(|lap| lap.faults));
        checks.push(Check {
            name: "slat: invalidations elsewhere make no fault start again, or not one in a thousand".into(),
            ok: again * 1000 <= faults + once,
            detail: format!("{again} of {faults}, beside {}", beside.name()),
        });
    }
    checks
}
