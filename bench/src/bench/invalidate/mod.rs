//! `slat bench invalidate`: faults beside another thread that invalidates, page by page, back to back.
//!
//! The hardest neighbour of a fault: each invalidation begins, edits one entry, flushes and ends, some million times a
//! second. Under a lock each of them stops the vCPU; with one sequence for the VM each would make its faults start
//! again. Here they meet at the entry only, so elsewhere they should not meet at all, and inside the same 2 MiB hardly.
//!
//! Rows compare slat with itself under the baseline locks (lap.rs is the lap): what a fault costs, how much more than
//! alone, how many attempts were made again for nothing, and what an invalidation costs.

mod lap;

use super::harness::{Series, interleave};
use super::machine::Machine;
use super::report::{Check, Report, Row, params};
use lap::{Beside, Entrant, MOST, Sample};
use slat::{Level, MmuLock};
use slat_cli::error::Error;
use slat_cli::size::size;

/// What invalidations cost the faults beside them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  slat bench invalidate -b 256M --runs 3")]
pub struct Invalidate {
    /// Counted rounds; every figure is the median of as many laps
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Guest memory that the vCPU faults in, page by page: multiples of 2M
    #[arg(short, long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    bytes: u64,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub json: bool,
}

const LOCKS: [MmuLock; 3] = [MmuLock::None, MmuLock::ReadWrite, MmuLock::Exclusive];

fn name(lock: MmuLock) -> &'static str {
    match lock {
        MmuLock::None => "slat",
        MmuLock::ReadWrite => "slat --mmu-lock read-write",
        MmuLock::Exclusive => "slat --mmu-lock exclusive",
    }
}

impl Invalidate {
    /// Runs every case under every policy.
    pub fn report(&self) -> Result<Report, Error> {
        if self.bytes == 0 || !self.bytes.is_multiple_of(Level::M2.bytes()) || self.bytes > MOST {
            let bytes = self.bytes;
            return Err(Error::Usage(format!("--bytes: {bytes} is not a multiple of 2M from 2M to 512G")));
        }
        // Ctrl-C: the rounds go on to their end, since one case alone says nothing.
        let (mut rows, mut checks) = (Vec::new(), Vec::new());
        // All cases in one interleaved run: a slow-down compares two of them.
        let entrants: Vec<Entrant> =
            Beside::ALL.iter().flat_map(|&beside| LOCKS.map(|lock| Entrant { beside, lock })).collect();
        let pages = self.bytes / slat::PAGE_SIZE;
        let laps = interleave(self.runs as usize, &entrants, |entrant| entrant.lap(pages));
        let laps: Result<Vec<Vec<Sample>>, Error> =
            laps.into_iter().map(|laps| laps.into_iter().collect()).collect();
        let laps = Laps { entrants, laps: laps? };
        for beside in Beside::ALL {
            rows.extend(laps.rows(beside));
        }
        for (&entrant, laps) in laps.entrants.iter().zip(&laps.laps) {
            checks.extend(self::checks(entrant, laps));
        }
        let params = params! { "runs": self.runs, "bytes": self.bytes };
        Ok(Report { bench: "invalidate", machine: Machine::detect(), params, rows, checks })
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
        if beside != Beside::Nobody {
            // Against the lap alone of the same round and policy.
            rows.extend(self.compare(beside, "times alone", |lap, alone| Some(lap.fault / alone.fault)));
            rows.extend(self.compare(beside, "retries/1000 faults", |lap, _| {
                Some(lap.retries as f64 * 1000.0 / lap.mapped[1] as f64)
            }));
            rows.extend(self.compare(beside, "ns/invalidation", |lap, _| lap.invalidation));
        }
        rows
    }

    /// The other policies against slat as it ships.
    fn compare(
        &self,
        beside: Beside,
        unit: &'static str,
        figure: fn(&Sample, &Sample) -> Option<f64>,
    ) -> Vec<Row> {
        let series = |lock| {
            let laps = self.of(beside, lock).iter().zip(self.of(Beside::Nobody, lock));
            laps.map(|(lap, alone)| figure(lap, alone)).collect::<Option<_>>().map(Series::new)
        };
        let params = params! { "beside": beside.name() };
        let Some(slat) = series(MmuLock::None) else { return Vec::new() };
        let others = LOCKS[1..].iter().filter_map(|&lock| {
            Some(Row::compare(name(lock), params.clone(), unit, &series(lock)?, &slat).answering(Some("003")))
        });
        others.collect()
    }
}

/// What must have happened for a case to count.
fn checks(entrant: Entrant, laps: &[Sample]) -> Vec<Check> {
    let Entrant { beside, lock } = entrant;
    let check = |what: &str, good: u64, of: u64| Check {
        name: format!("{}, beside {}: {what}", name(lock), beside.name()),
        ok: good == of,
        detail: format!("{good} of {of}"),
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
        let (again, faults) = (sum(|lap| lap.retries), sum(|lap| lap.mapped[1]));
        checks.push(Check {
            name: "slat: invalidations elsewhere make no fault start again, or not one in a thousand".into(),
            ok: again * 1000 <= faults,
            detail: format!("{again} of {faults}, beside {}", beside.name()),
        });
    }
    checks
}
