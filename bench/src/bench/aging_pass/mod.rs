//! `slat bench aging-pass`: what a pass over Accessed bits costs, against the least it could cost.
//!
//! ```text
//! leaf_bits.rs   a VM whose leaf tables lie in memory in the order of their frames, or in no order; its bits, set at will
//! ```
//! A pass over idle memory reads its tables and does nothing else, so the floor is how fast this machine
//! reads (`leaf_tables.rs`). Entrants: the scan that slat ships, the portable one, one entry after the other (how `for_each` goes), and a
//! pass that heeds links, for which idle memory costs no look. A pass over memory in use also clears bits, each by one
//! locked instruction: its floor is the idle pass and as many of those.

mod leaf_bits;

use super::harness::{Lineup, Series};
use super::machine::{self, Machine};
use super::report::{Check, Report, Row, params};
use super::{About, Asked, Bench, multiple_of};
use leaf_bits::{LeafBits, Order};
use slat::Level;
use slat::age::Scan;
use slat_cli::bar::say;
use slat_cli::error::Error;
use slat_cli::interrupt;
use slat_cli::size::{self, size};
use slat_series::PatchSeries;
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

/// A pass, or a floor of one.
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

/// The row of this bench in the registry.
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
        multiple_of(Level::M2, "dense", self.dense, 16 << 30)?;
        multiple_of(Level::M2, "sparse", self.sparse, 1 << 40)?;
        // Before this thread is tied to one of the CPUs.
        let mut report = Report::of(ABOUT.name, Machine::detect());
        report.params = params! { "runs": asked.runs };
        machine::pin(0);
        for (bytes, sparse) in [(self.dense, false), (self.sparse, true)] {
            for order in [Order::Ascending, Order::Shuffled] {
                if interrupt::asked() {
                    break;
                }
                say(format_args!("{}, {order:?}: {} rounds", size::text(bytes), asked.runs));
                let mut bits = LeafBits::new(bytes, sparse, order)?;
                let laps =
                    Lineup::run(asked.runs, entrants(sparse), |entrant| Ok(entrant.sample(&mut bits)))?;
                report.rows.extend(rows(&bits, &laps));
                let name = format!("{}, {}: a pass finds what is young", size::text(bytes), order.name());
                report.checks.push(Check::each(name, laps.all(), |sample| sample.right));
            }
        }
        Ok(report)
    }
}

/// The figures of one order of tables, in picoseconds a leaf.
fn rows(bits: &LeafBits, laps: &Lineup<Entrant, Sample>) -> Vec<Row> {
    let of = |who| Series::known(laps.of(who), |sample| Some(sample.ps));
    let row = |name: &str, baseline: &str, before: &Series, who| {
        let params = params! {
            "memory": size::text(bits.bytes),
            "mapped": if bits.sparse { "one page in each 2M" } else { "every page" },
            "tables": bits.order.name(),
            "baseline": baseline,
        };
        Some(Row::compare(name, params, "ps a leaf", before, &of(who)?))
    };
    let mut rows = Vec::new();
    if let Some(read) = of(Entrant::LinearRead) {
        let looks = [
            ("idle, every table looked at", Entrant::Idle(Scan::detect())),
            ("idle, every table, portable scan", Entrant::Idle(Scan::Portable)),
            ("idle, one entry after the other", Entrant::EntryByEntry),
            ("idle, passed over by links", Entrant::PassedOver),
        ];
        let baseline = "reading the same memory, linearly";
        let looks = looks.into_iter().filter_map(|(name, who)| row(name, baseline, &read, who));
        rows.extend(looks.map(|row| row.answering(PatchSeries::MglruAging)));
    }
    if let Some((idle, rmw)) = of(Entrant::Idle(Scan::detect())).zip(of(Entrant::LockedRmw)) {
        rows.extend(ACTIVE.iter().filter_map(|&permille| {
            let density = f64::from(permille) / 1000.0;
            let floor = Series::new(vec![idle.median() + density * rmw.median()]);
            let name = format!("{}% of pages young", density * 100.0);
            let baseline = "the idle pass, and a locked instruction for each young page";
            row(&name, baseline, &floor, Entrant::Active(permille))
        }));
    }
    rows
}

/// Pages of 1000 that are young.
const ACTIVE: [u32; 3] = [1000, 100, 10];

fn entrants(sparse: bool) -> Vec<Entrant> {
    let mut all = vec![
        Entrant::Idle(Scan::detect()),
        Entrant::LinearRead,
        Entrant::Idle(Scan::Portable),
        Entrant::EntryByEntry,
        Entrant::PassedOver,
    ];
    if !sparse {
        all.push(Entrant::LockedRmw);
        all.extend(ACTIVE.map(Entrant::Active));
    }
    all.dedup();
    all
}

/// One measurement: picoseconds a leaf, and whether each pass found as many young pages as there were.
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
