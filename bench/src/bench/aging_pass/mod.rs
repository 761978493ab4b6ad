//! `slat bench aging-pass`: what a pass over Accessed bits costs, against the least it could cost.
//!
//! ```text
//! leaf_bits.rs   a VM whose leaf tables lie in memory in the order of their frames, or in no order; its bits, set at will
//! rows.rs     the report
//! ```
//! A pass over idle memory reads its tables and does nothing else, so the floor is how fast this machine
//! reads (`leaf_tables.rs`). Entrants: the scan that slat ships, the portable one, one entry after the other (how `for_each` goes), and a
//! pass that heeds links, for which idle memory costs no look. A pass over memory in use also clears bits, each by one
//! locked instruction: its floor is the idle pass and as many of those.

mod leaf_bits;
mod rows;

use super::harness::interleave;
use super::machine::{self, Machine};
use super::report::{Report, params};
use super::{About, Asked, Bench};
use leaf_bits::{LeafBits, Order};
use slat::Level;
use slat::age::Scan;
use slat_cli::bar::say;
use slat_cli::error::Error;
use slat_cli::interrupt;
use slat_cli::size::{self, size};
use slat_series::PatchSeries;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// What a pass over Accessed bits costs, idle and in use: against how fast this machine reads (the MGLRU aging series)
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  slat bench aging-pass --sparse 16G --runs 3")]
pub struct AgingPass {
    /// Guest memory with every 4K page mapped: a multiple of 2M up to 16G
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    dense: u64,
    /// Guest memory with one 4K page mapped in each 2M: a multiple of 2M up to 1T
    #[arg(long, value_name = "SIZE", default_value = "64G", value_parser = size)]
    sparse: u64,
}

/// Who runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Entrant {
    /// Reads every leaf table, in the order of memory.
    LinearRead,
    /// Locked read-modify-writes of every entry, in the order of memory.
    LockedRmw,
    /// Every table is looked at, nothing is found.
    Idle(Scan),
    /// The same, one entry after the other.
    EntryByEntry,
    /// Idle, and no link says otherwise.
    PassedOver,
    /// This many of 1000 pages are young.
    Active(u32),
}

/// Its row of the registry.
pub const ABOUT: About = About {
    takes: ["1 min", "160 MiB"],
    runs: "7",
    question: "What does a pass over Accessed bits cost?",
    kept: "--runs 9",
    ci: &["--dense 64M --sparse 1G"],
    quick: &["--dense 64M --sparse 2G --runs 3"],
    full: &["--runs 5"],
    ..About::of("aging-pass", PatchSeries::MglruAging)
};

impl Bench for AgingPass {
    fn report(&self, asked: Asked) -> Result<Report, Error> {
        for (name, bytes, most) in [("dense", self.dense, 16 << 30), ("sparse", self.sparse, 1 << 40)] {
            if bytes == 0 || !bytes.is_multiple_of(Level::M2.bytes()) || bytes > most {
                return Err(Error::Usage(format!(
                    "--{name}: {bytes} is no multiple of 2M up to {}",
                    size::text(most)
                )));
            }
        }
        // Before this thread is tied to one of the CPUs.
        let machine = Machine::detect();
        machine::pin(0);
        let stop = interrupt::flag();
        let (mut rows, mut checks) = (Vec::new(), Vec::new());
        for (bytes, sparse) in [(self.dense, false), (self.sparse, true)] {
            for order in [Order::Ascending, Order::Shuffled] {
                if stop.load(Relaxed) {
                    break;
                }
                say(format_args!("{}, {order:?}: {} rounds", size::text(bytes), asked.runs));
                let mut bits = LeafBits::new(bytes, sparse, order)?;
                let entrants = entrants(sparse);
                let samples = interleave(asked.runs as usize, &entrants, |entrant| entrant.sample(&mut bits));
                rows.extend(rows::rows(&bits, &entrants, &samples));
                checks.extend(rows::checks(&bits, &samples));
            }
        }
        let params = params! { "runs": asked.runs };
        Ok(Report { params, rows, checks, ..Report::of(ABOUT.name, machine) })
    }
}

fn entrants(sparse: bool) -> Vec<Entrant> {
    let mut all = vec![
        Entrant::Idle(Scan::detect()),
        Entrant::LinearRead,
        Entrant::Idle(Scan::Portable),
        Entrant::EntryByEntry,
        Entrant::PassedOver,
    ];
    if !sparse {
        all.extend([Entrant::LockedRmw, Entrant::Active(1000), Entrant::Active(100), Entrant::Active(10)]);
    }
    all.dedup();
    all
}

/// One measurement: picoseconds a leaf, and whether each pass told as many young pages as there were.
#[derive(Clone, Copy, Debug)]
struct Sample {
    ps: f64,
    right: bool,
}

impl Entrant {
    /// Repeated until the clock is no part of it.
    fn sample(self, bits: &mut LeafBits) -> Sample {
        const LEAST_NS: u128 = 4_000_000;
        let (mut spent, mut times, mut right) = (0, 0u32, true);
        while spent < LEAST_NS {
            match self {
                Self::Active(permille) => bits.use_pages(permille),
                Self::LockedRmw | Self::LinearRead => {}
                Self::PassedOver | Self::Idle(_) | Self::EntryByEntry => bits.rest_pages(),
            }
            // As many as leave the bits as they were.
            let laps = if matches!(self, Self::Active(_)) { 1 } else { 8 };
            let began = Instant::now();
            let mut young = 0;
            for _ in 0..laps {
                young += match self {
                    Self::LinearRead => {
                        bits.tables.read();
                        0
                    }
                    Self::LockedRmw => {
                        bits.tables.locked_rmw();
                        0
                    }
                    Self::Idle(scan) => bits.look(scan),
                    Self::EntryByEntry => bits.look_at_each(),
                    Self::PassedOver | Self::Active(_) => bits.age(),
                };
            }
            spent += began.elapsed().as_nanos();
            times += laps;
            right &= young == if matches!(self, Self::Active(_)) { bits.young } else { 0 };
        }
        Sample { ps: spent as f64 * 1e3 / f64::from(times) / bits.leaves() as f64, right }
    }
}
