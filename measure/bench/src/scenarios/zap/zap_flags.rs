//! `slat bench zap`: how long it takes to zap a large range of guest memory, and how long faults of other vCPUs take meanwhile.
//!
//! ```text
//! zap_sample.rs   the range, dense or sparse; fill, zap, count: beside vCPUs, and beside the probe
//! ```
//! The zap beside timed threads, and what must hold after it, is the one that `slat sim` simulates: `zap_run.rs`.
//!
//! The host has no data memory, so what is timed is the engine: the walk, the flush, and the grace period after which
//! tables come back and every leaf is booked. A total has all three in it. The baselines are the same range leaf by
//! leaf, and the same zap under one mutex.
//!
//! A probe makes and deletes a memslot elsewhere, again and again: that waits for threads that are inside a section or hold
//! the lock, and takes dead tables apart that it finds. Its longest wait beside a zap is the longest hold, from outside.
//! On a virtual machine a longest time has the host's scheduling in it; the control, as long with no zap, says how much.

use super::zap_run::Way;
use super::zap_sample::{Entrant, MOST, MOST_VCPUS, Sample, WAYS, ZappedRange, name, sample};
use crate::scenarios::threads_prelude::*;
use crate::threads::latencies::{Pick, latencies};

/// The flags of `slat bench zap`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  slat bench zap --sizes 1G --dense --runs 3")]
pub struct Zap {
    /// Guest memory to zap: multiples of 2M, up to 512G
    #[arg(long, value_name = "SIZE,…", default_value = "1G,16G,64G", value_delimiter = ',')]
    #[arg(value_parser = size)]
    sizes: Vec<u64>,
    /// vCPUs that fault elsewhere meanwhile, a thread each [default: one less than there are CPUs]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_VCPUS)))]
    vcpus: Option<u16>,
    /// Every 4K page is mapped; alone: only so
    #[arg(long)]
    dense: bool,
    /// One 4K page in each 2M is mapped; alone: only so
    #[arg(long)]
    sparse: bool,
}

/// Tables that show what each idea contributes: [`crate::levers`].
const LEVERS: &[Grid] = &[Grid {
    what: "1 GiB is unmapped",
    columns: &[
        ("leaf by leaf, one mutex", Cell::baseline("leaf by leaf: total").with(&[("baseline", MUTEX)])),
        ("leaf by leaf, no lock", Cell::slat("leaf by leaf: total").with(&[("baseline", MUTEX)])),
        ("by tables, one mutex", Cell::baseline("unhook: total").with(&[("baseline", MUTEX)])),
        ("by tables, no lock", Cell::slat("unhook: total").with(&[("baseline", MUTEX)])),
    ],
    rows: &[
        ("every page is mapped", &[("pages", "dense"), ("size", "1G")], "us"),
        ("one page in 2 MiB is mapped", &[("pages", "sparse"), ("size", "1G")], "us"),
    ],
    says: "Unhooking whole tables is an idea of the TDP MMU series; holding no lock is slat's. By tables, the lock makes no\n\
           difference to the operation. It makes one to the faults beside it: `slat bench zap` prints them.",
}];

/// `slat bench zap`.
pub const MEASURED: Measured = Measured {
    takes: ["1 min", "300 MiB"],
    question: "How long does a zap of 1 to 64 GiB take, and how long do faults elsewhere take meanwhile?",
    kept: "",
    headlines: &[Headline {
        what: "1 GiB of 4 KiB pages is unmapped beside a vCPU that faults",
        against: "leaf by leaf, not by tables",
        row: "unhook: total",
        params: &[("baseline", "leaf by leaf"), ("pages", "dense"), ("size", "1G")],
    }],
    levers: LEVERS,
    ci: &["--sizes 64M,1G"],
    quick: &["--sizes 1G --runs 3"],
    full: &["--sizes 1G,16G"],
    ..Measured::of::<Zap>()
};

impl Flags for Zap {
    fn report(&self, scenario: &'static Scenario, asked: Asked) -> Result<Report> {
        self.sizes.iter().try_for_each(|&bytes| multiple_of(Level::M2, "sizes", bytes, MOST))?;
        let machine = Machine::detect();
        let vcpus = self.vcpus.unwrap_or((machine.cores.saturating_sub(1)).clamp(1, 64) as u16);
        let mut report = Report::of(scenario.name, machine);
        report.params = params! { "runs": asked.runs, "vcpus_beside": vcpus };
        let locks = [MmuLock::None, MmuLock::Exclusive];
        let entrants = || WAYS.into_iter().flat_map(|way| locks.map(|lock| (way, lock)));
        for (&bytes, dense) in self.sizes.iter().flat_map(|bytes| [(bytes, true), (bytes, false)]) {
            let is_left_out = self.dense != self.sparse && dense != self.dense;
            if interrupt::asked() || is_left_out {
                continue;
            }
            let range = &ZappedRange { bytes, dense, vcpus };
            say(format_args!("{}, {}: {} rounds", size::text(bytes), range.pages(), asked.runs));
            let laps = Lineup::run(asked.runs, entrants(), |&entrant| sample(entrant, range))?;
            report.rows.extend(rows(range, &laps));
            let who = |&(way, lock): &Entrant| {
                format!("{}, {}", if lock == MmuLock::None { "slat" } else { "exclusive" }, name(way))
            };
            let at = format!(" at {}, {}", size::text(bytes), range.pages());
            report.checks.extend(laps.checks(&at, who, |sample| &sample.tally));
        }
        Ok(report)
    }
}

/// The baseline that holds one lock.
pub const MUTEX: &str = "--mmu-lock exclusive";

const TOTAL: Figure<Sample> = ("total", "us", |sample| Some(us(sample.times.total_ns)));

/// Figures that are compared with the mutex. Not every way has parts.
const FIGURES: [Figure<Sample>; 5] = [
    TOTAL,
    ("walk", "us", |sample| sample.times.parts_ns.map(|[walk, _, _]| us(walk))),
    ("flush", "us", |sample| sample.times.parts_ns.map(|[_, flush, _]| us(flush))),
    ("collect", "us", |sample| sample.times.parts_ns.map(|[_, _, collect]| us(collect))),
    ("longest wait of a memslot", "us", |sample| Some(us(sample.waits.beside.longest_ns))),
];

const COUNTS: [Figure<Sample>; 3] = [
    ("flushes paid", "count", |sample| Some(sample.flushes)),
    ("tables freed", "count", |sample| Some(sample.freed)),
    ("faults beside it", "count", |sample| Some(sample.faults.beside.each.len() as f64)),
];

/// Faults with no zap, and beside one; the same of memslots that are made and deleted.
const QUIET: Pick<Sample> = |sample| &sample.faults.control;
const BESIDE: Pick<Sample> = |sample| &sample.faults.beside;
const MADE_QUIET: Pick<Sample> = |sample| &sample.waits.control;
const MADE_BESIDE: Pick<Sample> = |sample| &sample.waits.beside;

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// All rows of a range: first the time of a zap with all accounting. Each way against the baselines that it has, and what others saw
/// meanwhile.
fn rows(range: &ZappedRange, laps: &Lineup<Entrant, Sample>) -> Vec<Row> {
    let slat = |way| laps.of((way, MmuLock::None));
    let both = |way| [laps.of((way, MmuLock::Exclusive)), slat(way)];
    let alone = params! { "size": size::text(range.bytes), "pages": range.pages() };
    let params = |baseline: &str| {
        let mut params = alone.clone();
        params.insert("baseline".to_owned(), baseline.into());
        params
    };
    let latencies = |what: &str, way, baseline, both| {
        latencies(&format!("{what} beside {}", name(way)), "max", &params(baseline), both)
    };
    let mut rows = Vec::new();
    let mut add = |way, of: Vec<Row>| rows.extend(of.into_iter().map(|row| row.of(name(way))));
    for way in WAYS.into_iter().filter(|way| *way != Way::LeafByLeaf) {
        let both = [slat(Way::LeafByLeaf), slat(way)];
        add(way, Row::compare_each(&[TOTAL], &params("leaf by leaf"), both));
    }
    for way in WAYS {
        add(way, Row::compare_each(&FIGURES, &params(MUTEX), both(way)));
    }
    for way in WAYS {
        rows.extend(latencies("fault", way, "no zap", [(slat(way), QUIET), (slat(way), BESIDE)]));
        let made = [(slat(way), MADE_QUIET), (slat(way), MADE_BESIDE)];
        rows.extend(latencies("memslot made and deleted", way, "no zap", made).pop());
    }
    for way in WAYS {
        rows.extend(latencies("fault", way, MUTEX, both(way).map(|samples| (samples, BESIDE))));
    }
    for way in WAYS {
        let counts = Row::alone_each(&COUNTS, &alone, slat(way));
        rows.extend(counts.into_iter().map(|row| row.of(name(way))));
    }
    rows
}
