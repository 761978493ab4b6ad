//! `slat bench aging-pass`: what a pass over Accessed bits costs, against the least it could cost.
//!
//! The leaf tables of the VM (`mapped_slot.rs`) lie in memory in the order of their frames, or shuffled, as after a long life.
//! A pass over idle memory reads its tables and does nothing else, so the floor is how fast this machine
//! reads (`leaf_tables.rs`). Entrants: the scan that slat ships, the portable one, one entry after the other (how `for_each` goes), and a
//! pass that heeds links, for which idle memory costs no look. A pass over memory in use also clears bits, each by one
//! locked instruction: its floor is the idle pass and as many of those.

use crate::scenarios::threads_prelude::*;
use crate::threads::machine_info;
use serde_json::{Map, Value};
use slat::age::Scan;
use slat::table::Word;

/// The flags of `slat bench aging-pass`.
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

/// Its row of the registry.
pub static SCENARIO: Scenario = Scenario {
    name: "aging-pass",
    asks: "Cost of a pass over Accessed bits, idle and in use, against the memory bandwidth of this machine (the MGLRU aging series)",
    series: PatchSeries::MglruAging,
    simulated: Simulated::NOT,
    measured: Measured {
        takes: ["1 min", "160 MiB"],
        runs: "7",
        question: "How much does a pass over Accessed bits cost?",
        kept: "--runs 9",
        ci: &["--dense 64M --sparse 1G"],
        quick: &["--dense 64M --sparse 2G --runs 3"],
        full: &["--runs 5"],
        ..Measured::of::<AgingPass>()
    },
};

impl Flags for AgingPass {
    fn report(&self, scenario: &'static Scenario, asked: Asked) -> Result<Report> {
        multiple_of(Level::M2, "dense", self.dense, 16 << 30)?;
        multiple_of(Level::M2, "sparse", self.sparse, 1 << 40)?;
        // Before this thread is tied to one of the CPUs.
        let mut report = Report::of(scenario.name, Machine::detect());
        report.params = params! { "runs": asked.runs };
        machine_info::pin(0);
        let idle = &mut idle()?;
        for (bytes, dense) in [(self.dense, self.dense), (self.sparse, 0)] {
            for (order, put) in ORDERS {
                if interrupt::asked() {
                    break;
                }
                let memory = size::text(bytes);
                say(format_args!("{memory}, {order}: {} rounds", asked.runs));
                let mapped = MappedSlot::new(DirtyLog::default(), idle, [bytes, dense], put)?;
                let laps =
                    Lineup::run(
                        asked.runs,
                        entrants(dense > 0),
                        |entrant| Ok(entrant.sample(&mapped, idle)),
                    )?;
                let name = format!("{memory}, {order}: a pass finds what is young");
                report.checks.push(Check::each(name, laps.all(), |sample| sample.right));
                let every = if dense > 0 { "every page" } else { "one page in each 2M" };
                let params = params! { "memory": memory, "mapped": every, "tables": order };
                report.rows.extend(rows(&params, &laps));
            }
        }
        Ok(report)
    }
}

/// Puts the regions that leaf tables serve in the order of these tables in memory.
type Order = fn(&mut [Gfn]);

/// How leaf tables lie in memory, against the frames that they serve.
const ORDERS: [(&str, Order); 2] = [("in order", |_| ()), ("shuffled", shuffle)];

/// The figures of one order of tables, in picoseconds a leaf.
fn rows(params: &Map<String, Value>, laps: &Lineup<Entrant, Sample>) -> Vec<Row> {
    let of = |who| Series::known(laps.of(who), |sample| Some(sample.ps));
    let row = |name: &str, baseline: &str, before: &Series, who| {
        let mut params = params.clone();
        params.insert("baseline".into(), baseline.into());
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

fn entrants(dense: bool) -> Vec<Entrant> {
    let mut all = vec![
        Entrant::Idle(Scan::detect()),
        Entrant::LinearRead,
        Entrant::Idle(Scan::Portable),
        Entrant::EntryByEntry,
        Entrant::PassedOver,
    ];
    if dense {
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
    fn sample(self, mapped: &MappedSlot, idle: &mut Idle) -> Sample {
        const LEAST_NS: u128 = 4_000_000;
        let (vm, pages) = (&mapped.vm, mapped.slot.gfns);
        let use_pages = |permille| {
            mapped.set_leaves(|gfn, word| {
                let bit = if is_drawn(gfn.0, permille) { Ept4::ACCESSED } else { 0 };
                Word(word.0 & !Ept4::ACCESSED | bit)
            })
        };
        let (mut spent, mut times, mut right) = (0, 0u32, true);
        while spent < LEAST_NS {
            // With how many laps leave the bits as they were.
            let (young, laps) = match self {
                Self::Active(permille) => (use_pages(permille), 1),
                Self::LockedRmw | Self::LinearRead => (0, 8),
                Self::PassedOver | Self::Idle(_) | Self::EntryByEntry => (use_pages(0), 8),
            };
            let began = Instant::now();
            let mut found = 0;
            for _ in 0..laps {
                match self {
                    Self::LinearRead => mapped.tables.read(),
                    Self::LockedRmw => mapped.tables.locked_rmw(),
                    Self::Idle(scan) => {
                        found += u64::from(vm.memory().lockless(idle).is_young_by(pages, scan));
                    }
                    Self::EntryByEntry => {
                        vm.memory()
                            .lockless(idle)
                            .for_each(pages, |page| found += u64::from(page.leaf.accessed));
                    }
                    Self::PassedOver | Self::Active(_) => {
                        vm.memory().lockless(idle).age(pages, |seen| found += u64::from(seen.count()));
                    }
                }
            }
            spent += began.elapsed().as_nanos();
            times += laps;
            right &= found == young;
        }
        Sample { ps: spent as f64 * 1e3 / f64::from(times) / pages.len() as f64, right }
    }
}
