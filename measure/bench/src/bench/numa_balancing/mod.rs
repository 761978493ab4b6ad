//! `slat bench numa-balancing`: what a guest pays for a host that balances its nodes (the NUMA protection series).
//!
//! ```text
//! replayed.rs           one sample: vCPUs that replay traces on two nodes or more, and perhaps a device
//! policies_compared.rs  the rows and the checks
//! ```
//! What runs is a VM of `measure/sim/src/benches/numa`, which `slat sim` simulates. Here its guests replay traces.
//!
//! The series counts the unmap calls and remote flushes of ten boots of a guest. Here each vCPU replays bundled traces, a boot among
//! them, in memory of its own, a number of times. Half-way the vCPUs change nodes. The entrants are the policies of [`slat_mm::Policy`],
//! with a flush for each page, for each 2 MiB, and for each 16 MiB, as slat ships; two of them under KVM's lock; and a host that does
//! not balance, for the guest's wall time. The workload is the same for all: dense and sparse memory, which no two vCPUs share.
//!
//! **The series' own lever** is what is unmapped. Before the series, KVM's walk over a range unlocked wherever a thread waited for the
//! lock, and flushed before it did. `range, yielding` flushes wherever a fault comes while it walks. A walk of slat flushes at its end:
//! `range: before` flushes once for each 2 MiB in which the guest has a page mapped.
//!
//! **What is not comparable**: in the series' boots some of the pages of a range became inaccessible, and about half of these were
//! mapped. Here each page that the host maps becomes inaccessible, and guests use most of them. So page by page there are more flushes.

mod policies_compared;
mod replayed;

use super::harness::Lineup;
use super::machine::Machine;
use super::report::{Report, params};
use super::{About, Asked, Bench, Cell, Grid};
use crate::levers::Params;
use replayed::{Entrant, Workload};
use slat_cli::bar::say;
use slat_cli::error::Error;
use slat_cli::size::{self, size};
use slat_mm::Policy;
use slat_series::PatchSeries;
use slat_threads::benches::numa::kvm_walk::RangeWalk;
use slat_vcpu::trace::bundled;

/// What a guest pays for a host that balances its memory between nodes: before the NUMA protection series, as it describes, and slat
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  slat bench numa-balancing --passes 4 --runs 3")]
pub struct NumaBalancing {
    /// vCPUs, a thread each; the bundled traces are dealt out among them, round robin, and the n-th starts on the n-th node
    #[arg(short, long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    vcpus: u32,
    /// Nodes of the host
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=64))]
    nodes: u8,
    /// Times that each trace is replayed; half-way every vCPU goes to the next node
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..))]
    passes: u32,
    /// Accesses of each trace at most [default: all]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    accesses: Option<u32>,
    /// Accesses of a vCPU between two of its scans
    #[arg(short, long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u32).range(1000..))]
    every: u32,
    /// Memory to look at in each scan: 16M, 1G
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    scan: u64,
    /// Pages that the host backs the guest with: of 4 KiB, or of 2 MiB where it can
    #[arg(long, default_value = "4k", value_parser = ["4k", "thp"])]
    pages: String,
}

/// As slat ships: one flush for each 16 MiB.
const SLAT: Entrant =
    Entrant { policy: Some((Policy::PageBatched, 16 << 20)), walk: RangeWalk::Slat, device: false };
const RANGE: Entrant = Entrant { policy: Some((Policy::Range, 0)), ..SLAT };
const PAGE: Entrant = Entrant { policy: Some((Policy::Page, 0)), ..SLAT };
/// Before the series, as KVM was.
const YIELDING: Entrant = Entrant { walk: RangeWalk::Kvm, ..RANGE };
const ALONE: Entrant = Entrant { policy: None, ..SLAT };

/// What is compared, each without a device and with one.
const HOSTS: [Entrant; 7] = [
    SLAT,
    YIELDING,
    Entrant { walk: RangeWalk::Kvm, ..PAGE },
    RANGE,
    PAGE,
    Entrant { policy: Some((Policy::PageBatched, 2 << 20)), ..SLAT },
    ALONE,
];

/// What both tables of levers show.
const LEVER_ROWS: &[(&str, Params, &str)] = &[
    ("remote flushes", &[("mean of", "remote flushes"), NO_DEVICE], "flushes"),
    ("calls that unmap", &[("mean of", "unmap calls"), NO_DEVICE], "calls"),
    ("guest's wall time", &[("mean of", "guest wall time"), NO_DEVICE], "ms"),
    ("guest's faults, all memory pinned", &[("mean of", "guest faults"), PINNED], "faults"),
    ("guest's wall time, all memory pinned", &[("mean of", "guest wall time"), PINNED], "ms"),
];

/// Names of their rows.
const KVM: &str = "range, yielding: KVM";
const KVM_WITH_THE_SERIES: &str = "page, locked: KVM with the series";
/// Parameters of their rows.
const NO_DEVICE: (&str, &str) = ("device", "none");
const PINNED: (&str, &str) = ("device", "pins all memory");

/// Its levers: [`crate::levers`].
const LEVERS: &[Grid] = &[
    Grid {
        what: "A host balances its nodes under a guest: under KVM's lock, and without",
        columns: &[
            ("KVM's lock, whole ranges, yielding", Cell::baseline(KVM)),
            ("KVM's lock, page by page, a flush each 4 KiB", Cell::baseline(KVM_WITH_THE_SERIES)),
            ("no lock, page by page, a flush each 16 MiB", Cell::slat(KVM)),
        ],
        rows: LEVER_ROWS,
        says: "The first two columns differ in the idea of the NUMA protection series alone: only pages which become protnone are unmapped. A\n\
               walk that yields flushes wherever a thread waits for its lock, at most once for each page that is mapped. Each page that the host\n\
               maps becomes protnone here. In the series' boots some did, and about half of these were mapped.",
    },
    Grid {
        what: "A host balances its nodes under a guest",
        columns: &[
            ("whole ranges", Cell::baseline("range: before")),
            ("page by page, a flush each 4 KiB", Cell::baseline("page: the series")),
            ("page by page, a flush each 2 MiB", Cell::baseline("page-batched by 2M")),
            ("page by page, a flush each 16 MiB", Cell::slat("page-batched by 2M")),
        ],
        rows: LEVER_ROWS,
        says: "The columns differ in the grain, and no walk yields. Unmapping only pages which become protnone is the idea of the NUMA\n\
               protection series; sharing a flush among many of them is slat's. Whole ranges flush once for 2 MiB. With that grain the\n\
               series' idea saves no flush; it saves the guest's faults where pages cannot move.",
    },
];

/// Its row of the registry.
pub const ABOUT: About = About {
    takes: ["2 min", "900 MiB"],
    runs: "10",
    question: "What does a guest pay for a host that balances its nodes?",
    kept: "",
    levers: LEVERS,
    ci: &["--passes 2 -a 100000 -e 50000"],
    quick: &["--accesses 200000 --passes 2 --every 50000 --runs 2"],
    full: &["--passes 6 --runs 5"],
    ..About::of("numa-balancing", PatchSeries::NumaProtection)
};

impl Bench for NumaBalancing {
    fn report(&self, asked: Asked) -> Result<Report, Error> {
        if self.scan == 0 {
            return Err(Error::Usage("--scan: a scan of nothing finds nothing".into()));
        }
        let workload = Workload::new(self)?;
        let entrants = [false, true].map(|device| HOSTS.map(|host| Entrant { device, ..host })).concat();
        say(format_args!("{} vCPUs: {} rounds of {} entrants", self.vcpus, asked.runs, entrants.len()));
        let samples = Lineup::run(asked.runs, entrants, |entrant| workload.sample(entrant))?;
        let report = Report {
            params: params! {
                "vcpus": self.vcpus,
                "nodes": self.nodes,
                "traces": bundled().iter().map(|trace| trace.name).collect::<Vec<_>>().join("+"),
                "passes": self.passes,
                "accesses": workload.accesses(),
                "accesses_between_scans": self.every,
                "scan": size::text(self.scan),
                "pages": if self.pages == "thp" { "2M where the host can" } else { "4K" },
                "runs": asked.runs,
            },
            rows: policies_compared::rows(&samples),
            checks: policies_compared::checks(&samples),
            ..Report::of(ABOUT.name, Machine::detect())
        };
        Ok(report)
    }
}
