//! `slat bench fault-floor`: what one 4K fault costs, against the least it could cost.
//!
//! ```text
//! floor    walk three levels, CAS the leaf; no lock, no slots, no accounting      floor.rs
//! slat     the whole fault path, under each MMU lock policy                       ours.rs
//! peers    other crates' mappers, `&mut` and therefore behind one lock            peers/
//! ```
//! Every vCPU is a thread on a CPU of its own, with a share of guest memory of its own; every fault maps one
//! 4K page that is not mapped. A lap (race.rs) goes through the share twice: `cold`, on an empty table, and,
//! after everything is unmapped again, `present`: all tables stand and only holes are filled, the steady
//! state of a guest whose pages come and go. All entrants take their table memory from one pool of
//! prefaulted huge pages ([`tables`]) and map the same frames.
//!
//! A figure is the time of a share divided by its faults, averaged over the threads.

mod floor;
mod ours;
mod peers;
mod race;

use super::harness::{Series, interleave, shuffle};
use super::machine::Machine;
use super::report::{Check, Report, Row, params};
use super::{About, Asked, Bench, Cell, Grid, Headline, multiple_of};
use super::{arithmetic, tables};
use clap::ValueEnum;
use floor::Floor;
use ours::Ours;
use race::{Course, Entrant, Lap};
use serde_json::{Map, Value};
use slat::MmuLock;
use slat::addr::{Gfn, Level, PAGE_SIZE, Pfn, Span};
use slat_cli::bar::say;
use slat_cli::error::Error;
use slat_cli::size::size;
use slat_series::PatchSeries;

/// What one 4K fault costs: the bare walk and CAS, slat's MMU lock policies, and other crates' mappers
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

/// The host frame behind a guest frame, the same for every entrant.
fn backing(gfn: Gfn) -> Pfn {
    Pfn(gfn.0 + (1 << 24))
}

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
    says: "The first three columns are one engine, slat's, under three locks. One mutex is KVM before the TDP MMU series. The reader-writer\n\
           lock is the idea of the series: on two processors it does not pay, since each fault writes its line. No lock is slat's idea.\n\
           What the series wins with 416 vCPUs is simulated: `slat sim demand-paging`.",
}];

/// The row of this bench in the registry.
pub const ABOUT: About = About {
    takes: ["15 s", "30 MiB"],
    question: "What does one 4 KiB fault cost?",
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
    ..About::of("fault-floor", PatchSeries::TdpMmu)
};

impl Bench for FaultFloor {
    fn report(&self, asked: Asked) -> Result<Report, Error> {
        // Each share starts on a 2 MiB boundary, so that no two vCPUs ever fill the same leaf table.
        let most = u64::from(self.vcpus.iter().copied().max().unwrap_or(1));
        let largest = GUEST_LIMIT / most / Level::M2.bytes() * Level::M2.bytes();
        multiple_of(Level::K4, "bytes", self.bytes, largest)?;
        let pages = self.bytes / PAGE_SIZE;
        let stride = pages.next_multiple_of(Level::M2.pages());

        let entrants = entrants();
        let (mut present, mut cold) = (Vec::new(), Vec::new());
        let mut tallies = vec![Vec::new(); entrants.len()];
        for &order in &self.order {
            say(format_args!("{} order: {} rounds", order.name(), asked.runs));
            // All numbers of vCPUs in one interleaved run: they too are compared with each other.
            let courses: Vec<Course> =
                self.vcpus.iter().map(|&vcpus| course(vcpus, stride, pages, order)).collect();
            let settings: Vec<(&Course, &Entrant)> = (courses.iter())
                .flat_map(|course| entrants.iter().map(move |entrant| (course, entrant)))
                .collect();
            let laps = interleave(asked.runs as usize, &settings, |(course, entrant)| entrant.lap(course));
            for (nth, laps) in laps.iter().enumerate() {
                tallies[nth % entrants.len()].extend(laps.iter().flat_map(|lap| &lap.tally).copied());
            }
            let by_vcpus = || self.vcpus.iter().copied().zip(laps.chunks(entrants.len()));
            let passes: [(&str, Pass, &mut Vec<Row>); 2] =
                [("present", |lap| lap.present, &mut present), ("cold", |lap| lap.cold, &mut cold)];
            for (tables, pass, rows) in passes {
                for (vcpus, laps) in by_vcpus() {
                    let params = params! { "tables": tables, "vcpus": vcpus, "order": order.name() };
                    rows.extend(compare(&entrants, laps, pass, &params));
                }
                let Some((_, alone)) = by_vcpus().find(|(vcpus, _)| *vcpus == 1) else { continue };
                for (vcpus, laps) in by_vcpus().filter(|(vcpus, _)| *vcpus > 1) {
                    let params = params! { "tables": tables, "order": order.name() };
                    rows.push(together(vcpus, [&alone[0], &laps[0]], pass, params));
                }
            }
        }
        let mut report = Report::of(ABOUT.name, Machine::detect());
        report.params = params! { "runs": asked.runs, "bytes_per_vcpu": self.bytes };
        // The steady state first.
        report.rows = present.into_iter().chain(cold).collect();
        let checks = entrants.iter().zip(&tallies);
        report.checks = checks.flat_map(|(who, tally)| Check::tallied(&who.name, "", tally.iter())).collect();
        Ok(report)
    }
}

/// The entrants. The first is slat as it ships; all others are compared with it. The rows of the MMU lock policies
/// answer the TDP MMU series, whose subject is what faults have to share: one mutex before it, a reader-writer lock after.
fn entrants() -> Vec<Entrant> {
    let ours = |lock| move |course: &Course| Ours::new(course, lock);
    let mut entrants = vec![
        Entrant::new("slat", ours(MmuLock::None)),
        Entrant::new("floor: walk + CAS", |_| Floor::new()),
        Entrant::new("slat --mmu-lock exclusive", ours(MmuLock::Exclusive)).answering(PatchSeries::TdpMmu),
        Entrant::new("slat --mmu-lock read-write", ours(MmuLock::ReadWrite)).answering(PatchSeries::TdpMmu),
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
    Course::new(shares.collect())
}

/// The figure of one pass of a lap.
type Pass = fn(&Lap) -> f64;

/// Rows of one setting and pass: every other entrant against the first.
fn compare(entrants: &[Entrant], laps: &[Vec<Lap>], pass: Pass, params: &Map<String, Value>) -> Vec<Row> {
    let slat = Series::of(&laps[0], pass);
    let row = |(entrant, laps): (&Entrant, &Vec<Lap>)| {
        let row = Row::compare(&entrant.name, params.clone(), "ns/fault", &Series::of(laps, pass), &slat);
        row.answering(entrant.series)
    };
    entrants.iter().zip(laps).skip(1).map(row).collect()
}

/// The row of slat against itself: one alone, and `vcpus` together. The ratio is of their throughputs.
fn together(vcpus: u16, [alone, laps]: [&[Lap]; 2], pass: Pass, params: Map<String, Value>) -> Row {
    let alone = Series::of(alone, pass);
    let laps = Series::of(laps, |lap| pass(lap) / f64::from(vcpus));
    Row::compare(&format!("1 vCPU, {vcpus} together"), params, "ns/fault of all", &alone, &laps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench(bytes: u64, vcpus: &[u16]) -> FaultFloor {
        FaultFloor { bytes, vcpus: vcpus.to_vec(), order: vec![Order::Random] }
    }

    #[test]
    fn every_entrant_passes_every_check() {
        for order in [Order::Sequential, Order::Random] {
            let course = course(2, 1024, 700, order);
            for entrant in entrants() {
                for check in Check::tallied(&entrant.name, "", entrant.lap(&course).tally.iter()) {
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

    #[test]
    fn impossible_sizes_are_refused_by_flag() {
        for (bytes, vcpus) in [(0, 1), (5000, 1), (1 << 47, 2), (u64::MAX - 4095, 1024)] {
            let Err(Error::Usage(line)) = bench(bytes, &[1, vcpus]).report(Asked::ONCE) else {
                panic!("{bytes} was taken")
            };
            assert!(line.starts_with("--bytes: "), "{line}");
        }
    }
}
