//! `slat bench fault-floor`: what one 4K fault costs, against the least it could cost.
//!
//! ```text
//! floor    walk three levels, CAS the leaf; no lock, no slots, no accounting      fault_paths.rs
//! slat     the whole fault path, under each MMU lock                              the same
//! peers    other crates' mappers, `&mut` and therefore behind one lock            peers/
//! ```
//! Every vCPU is a thread on a CPU of its own, with a share of guest memory of its own; every fault maps one
//! 4K page that is not mapped. A lap (`fault_race.rs`) goes through the share twice: `cold`, on an empty table, and,
//! after everything is unmapped again, `present`: all tables stand and only holes are filled, the steady
//! state of a guest whose pages come and go. All entrants take their table memory from one pool of
//! prefaulted huge pages ([`table_pool`]) and map the same frames.
//!
//! A figure is the time of a share divided by its faults, averaged over the threads.

mod fault_paths;
mod fault_race;
mod peers;

use crate::scenarios::fault_floor::fault_paths::{Floor, Ours};
use crate::scenarios::fault_floor::fault_race::{Course, Entrant, RaceTimes};
use crate::scenarios::threads_prelude::*;

/// The flags of `slat bench fault-floor`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  slat bench fault-floor -b 256M -v 1,2")]
pub struct FaultFloor {
    /// Guest memory that each vCPU faults in, page by page: 4K, 2M, 1G
    #[arg(short, long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    bytes: u64,
    /// Numbers of vCPUs to measure with, a thread each
    #[arg(short, long, value_name = "N,…", default_value = "1,2", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    vcpus: Vec<u16>,
    /// Orders in which a vCPU touches its pages
    #[arg(long, value_name = "ORDER,…", default_value = "sequential,random", value_delimiter = ',')]
    order: Vec<Order>,
}

/// The order in which a vCPU touches its pages.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Order {
    /// Ascending.
    Sequential,
    /// Shuffled, the same way in every run.
    Random,
}

impl Order {
    fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Random => "random",
        }
    }
}

/// The highest guest address plus one that every entrant's format can translate: the lower half of 48 bits.
const GUEST_LIMIT: u64 = 1 << 47;

/// Tables that show what each idea contributes: [`crate::levers`].
const LEVERS: &[Grid] = &[Grid {
    what: "A fault of 4 KiB, under each lock",
    columns: &[
        ("one mutex", Cell::baseline("slat --mmu-lock exclusive")),
        ("a reader-writer lock", Cell::baseline("slat --mmu-lock read-write")),
        ("no lock", Cell::slat("slat --mmu-lock exclusive")),
        ("floor: a walk and a CAS", Cell::baseline("floor: walk + CAS")),
    ],
    rows: &[
        ("1 vCPU, in order", &[("order", "sequential"), ("tables", "present"), ("vcpus", "1")], "ns/fault"),
        ("2 vCPUs, in order", &[("order", "sequential"), ("tables", "present"), ("vcpus", "2")], "ns/fault"),
        ("1 vCPU, at random", &[("order", "random"), ("tables", "present"), ("vcpus", "1")], "ns/fault"),
        ("2 vCPUs, at random", &[("order", "random"), ("tables", "present"), ("vcpus", "2")], "ns/fault"),
    ],
    says: "The first three columns are the same engine under three locks. One mutex is KVM before the TDP MMU series. The\n\
           reader-writer lock is the idea of the series: on two processors it does not pay, since each fault writes its line. No lock\n\
           is slat's idea. `slat sim demand-paging` has 416 vCPUs.",
}];

/// Its row of the registry.
pub static SCENARIO: Scenario = Scenario {
    name: "fault-floor",
    asks: "Cost of one 4 KiB fault: the bare walk and CAS, slat under each MMU lock, and the mappers of other crates",
    series: PatchSeries::TdpMmu,
    simulated: Simulated::NOT,
    measured: Measured {
        takes: ["15 s", "30 MiB"],
        question: "How much does one 4 KiB fault cost?",
        kept: "--runs 25",
        headlines: &[Headline {
            what: "a 4 KiB fault, two vCPU threads, in order",
            against: "the same engine under one mutex",
            row: "slat --mmu-lock exclusive",
            params: &[("order", "sequential"), ("tables", "present"), ("vcpus", "2")],
        }],
        levers: LEVERS,
        ci: &["-b 64M"],
        quick: &["-b 128M --runs 5"],
        full: &[""],
        ..Measured::of::<FaultFloor>()
    },
};

impl Flags for FaultFloor {
    fn report(&self, scenario: &'static Scenario, asked: Asked) -> Result<Report> {
        // Each share starts on a 2 MiB boundary, so that no two vCPUs ever fill the same leaf table.
        let most = u64::from(self.vcpus.iter().copied().max().unwrap_or(1));
        let largest = GUEST_LIMIT / most / Level::M2.bytes() * Level::M2.bytes();
        multiple_of(Level::K4, "bytes", self.bytes, largest)?;
        let pages = self.bytes / PAGE_SIZE;
        let stride = pages.next_multiple_of(Level::M2.pages());

        let entrants = entrants();
        let [mut present, mut cold] = [const { Vec::new() }; 2];
        let mut tallies = vec![Vec::new(); entrants.len()];
        for &order in &self.order {
            say(format_args!("{} order: {} rounds", order.name(), asked.runs));
            // All numbers of vCPUs in one interleaved run: they too are compared with each other.
            let courses: Vec<Course> =
                self.vcpus.iter().map(|&vcpus| course(vcpus, stride, pages, order)).collect();
            let settings =
                courses.iter().flat_map(|course| entrants.iter().map(move |entrant| (course, entrant)));
            let laps = Lineup::run(asked.runs, settings, |(course, entrant)| Ok((entrant.lap)(course)))?;
            for ((_, laps), tally) in laps.each().zip((0..entrants.len()).cycle()) {
                tallies[tally].extend(laps.iter().flat_map(|lap| &lap.tally).copied());
            }
            present.extend(rows(&laps, order, "present", |lap| lap.present));
            cold.extend(rows(&laps, order, "cold", |lap| lap.cold));
        }
        let mut report = Report::of(scenario.name, Machine::detect());
        report.params = params! { "runs": asked.runs, "bytes_per_vcpu": self.bytes };
        // The steady state first.
        report.rows = present.into_iter().chain(cold).collect();
        let checks = entrants.iter().zip(&tallies);
        report.checks = checks.flat_map(|(who, tally)| Check::tallied(&who.name, "", tally.iter())).collect();
        Ok(report)
    }
}

/// The name of slat as it ships: all other entrants are compared with it.
const SLAT: &str = "slat";

/// The entrants. The rows of the MMU locks answer the TDP MMU series, whose subject is what faults have to share: one
/// mutex before it, a reader-writer lock after.
fn entrants() -> Vec<Entrant> {
    let ours = |name, lock| Entrant::new(name, move |course: &Course| Ours::new(course, lock));
    let series = Some(PatchSeries::TdpMmu);
    let mut entrants = vec![
        ours(SLAT, MmuLock::None),
        Entrant::new("floor: walk + CAS", |_| Floor::new()),
        Entrant { series, ..ours("slat --mmu-lock exclusive", MmuLock::Exclusive) },
        Entrant { series, ..ours("slat --mmu-lock read-write", MmuLock::ReadWrite) },
    ];
    entrants.extend(peers::entrants());
    entrants
}

/// A share for each vCPU, its pages in the order asked for.
fn course(vcpus: u16, stride: u64, pages: u64, order: Order) -> Course {
    let shares = (0..u64::from(vcpus)).map(|vcpu| {
        let span = Span::sized(Gfn(vcpu * stride), pages);
        let mut gfns: Vec<Gfn> = (span.start.0..span.end.0).map(Gfn).collect();
        if matches!(order, Order::Random) {
            shuffle(&mut gfns);
        }
        (span, gfns)
    });
    Course { shares: shares.collect() }
}

/// Rows of one pass over tables: every other entrant against slat on as many vCPUs; then slat on several against slat on one.
fn rows(
    laps: &Lineup<(&Course, &Entrant), RaceTimes>,
    order: Order,
    tables: &str,
    pass: fn(&RaceTimes) -> f64,
) -> Vec<Row> {
    let slat = |vcpus| laps.find(|(course, who)| (course.vcpus(), &*who.name) == (vcpus, SLAT));
    let mut rows = Vec::new();
    for ((course, who), laps) in laps.each().filter(|((_, who), _)| who.name != SLAT) {
        let params = params! { "tables": tables, "vcpus": course.vcpus(), "order": order.name() };
        let [other, slat] = [laps, slat(course.vcpus())].map(|laps| Series::of(laps, pass));
        rows.push(Row::compare(&who.name, params, "ns/fault", &other, &slat).answering(who.series));
    }
    let Some(alone) = Series::known(slat(1), |lap| Some(pass(lap))) else { return rows };
    for ((course, _), laps) in laps.each().filter(|((_, who), _)| who.name == SLAT) {
        let vcpus = course.vcpus();
        if vcpus > 1 {
            let params = params! { "tables": tables, "order": order.name() };
            // The ratio is of their throughputs.
            let laps = Series::of(laps, |lap| pass(lap) / vcpus as f64);
            let name = format!("1 vCPU, {vcpus} together");
            rows.push(Row::compare(&name, params, "ns/fault of all", &alone, &laps));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entrant_passes_every_check() {
        for order in [Order::Sequential, Order::Random] {
            let course = course(2, 1024, 700, order);
            for entrant in entrants() {
                for check in Check::tallied(&entrant.name, "", (entrant.lap)(&course).tally.iter()) {
                    assert!(check.ok, "{}: {}", check.name, check.detail);
                }
            }
        }
    }

    #[test]
    fn shares_never_meet_in_a_leaf_table() {
        let course = course(3, 1024, 700, Order::Random);
        assert_eq!((course.vcpus(), course.gfns()), (3, Span::new(Gfn(0), Gfn(2 * 1024 + 700))));
    }
}
