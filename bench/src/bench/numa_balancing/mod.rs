//! `slat bench numa-balancing`: what a guest pays for a host that looks where its pages are used.
//!
//! ```text
//! replayed.rs           one sample: two nodes, vCPUs on them, a balancer, perhaps a device
//! kvm_walk.rs          KVM's lock around the VM, and its walk, which yields
//! policies_compared.rs the report, and the bars
//! ```
//! After the NUMA protection series, which counts the unmap calls and remote flushes of ten boots of a guest. Here the guest replays the
//! bundled traces, a boot among them, each vCPU its own in memory of its own, a number of times; half-way the vCPUs change nodes. The
//! entrants are the policies of [`slat_mm::Policy`], with a flush for each page, for each 2 MiB, and as slat ships; two of them under
//! KVM's lock; and no balancing, for the guest's wall time. The workload is the same for all, nothing in it is tuned: dense and sparse
//! memory, no sharing.
//!
//! **The series' own lever** is what is unmapped. Before it, KVM's walk over a range let go of a contended lock, and flushed each time;
//! `range, yielding` does so, for threads that really wait. This engine's walks keep their debt: `range: before` pays one flush for each
//! 2 MiB in which the guest had anything mapped.
//!
//! **What is not comparable**: in the series' boots some of the pages of a range became inaccessible, and about half of these were
//! mapped. Here each page that the host maps does, and guests use most of them, so that page by page more is flushed.

mod kvm_walk;
mod policies_compared;
mod replayed;

use super::harness::rounds;
use super::machine::Machine;
use super::report::{Report, params};
use super::traces::Trace;
use super::{About, Asked, Bench, Cell, Grid};
use crate::levers::Params;
use clap::ValueEnum;
use policies_compared::Samples;
use replayed::{Entrant, Job};
use slat_cli::bar::say;
use slat_cli::error::Error;
use slat_cli::size::{self, size};
use slat_mm::Policy;
use slat_series::PatchSeries;
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
    /// Pages that the host backs the guest with
    #[arg(long, default_value = "4k")]
    pages: Pages,
}

/// What the host maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Pages {
    /// 4 KiB
    #[value(name = "4k")]
    Small,
    /// 2 MiB where it can
    Thp,
}

/// As slat ships: one flush for each 16 MiB.
const SLAT: Entrant = Entrant { policy: Some((Policy::PageBatched, 16 << 20)), locked: false, device: false };
const RANGE: Entrant = Entrant { policy: Some((Policy::Range, 0)), ..SLAT };
const PAGE: Entrant = Entrant { policy: Some((Policy::Page, 0)), ..SLAT };
/// Before the series, as KVM was.
const YIELDING: Entrant = Entrant { locked: true, ..RANGE };
const ALONE: Entrant = Entrant { policy: None, ..SLAT };

/// Who runs, each without a device and with one.
const WAYS: [Entrant; 7] = [
    SLAT,
    YIELDING,
    Entrant { locked: true, ..PAGE },
    RANGE,
    PAGE,
    Entrant { policy: Some((Policy::PageBatched, 2 << 20)), ..SLAT },
    ALONE,
];

fn entrants() -> Vec<Entrant> {
    [false, true].map(|device| WAYS.map(|way| Entrant { device, ..way })).concat()
}

/// What both tables of levers show.
const LEVER_ROWS: &[(&str, Params, &str)] = &[
    ("remote flushes", &[("mean of", "remote flushes"), ("device", "none")], "flushes"),
    ("calls that unmap", &[("mean of", "unmap calls"), ("device", "none")], "calls"),
    ("guest's wall time", &[("mean of", "guest wall time"), ("device", "none")], "ms"),
    (
        "guest's faults, all memory pinned",
        &[("mean of", "guest faults"), ("device", "pins all memory")],
        "faults",
    ),
    (
        "guest's wall time, all memory pinned",
        &[("mean of", "guest wall time"), ("device", "pins all memory")],
        "ms",
    ),
];

/// Its levers: [`crate::levers`].
const LEVERS: &[Grid] = &[
    Grid {
        what: "A host balances its nodes under a guest: under KVM's lock, and without",
        columns: &[
            ("KVM's lock, whole ranges, yielding", Cell::baseline("range, yielding: KVM")),
            (
                "KVM's lock, page by page, a flush each 4 KiB",
                Cell::baseline("page, locked: KVM with the series"),
            ),
            ("no lock, page by page, a flush each 16 MiB", Cell::slat("range, yielding: KVM")),
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
        says: "The columns differ in the grain, and no walk yields. That only pages which become protnone are unmapped is the idea of the NUMA\n\
               protection series; that many share a flush is slat's. Whole ranges flush once for 2 MiB. With that grain the series' idea saves\n\
               no flush; it saves the guest's faults where pages cannot move.",
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
        let job = self.job()?;
        let entrants = entrants();
        say(format_args!("{} vCPUs: {} rounds of {} entrants", self.vcpus, asked.runs, entrants.len()));
        let samples = rounds(asked.runs as usize, &entrants, |entrant| job.sample(entrant))?;
        let samples = Samples { entrants: &entrants, samples: &samples };
        let report = Report {
            params: params! {
                "vcpus": self.vcpus,
                "nodes": self.nodes,
                "traces": bundled().iter().map(|trace| trace.name).collect::<Vec<_>>().join("+"),
                "passes": self.passes,
                "accesses": job.accesses(),
                "accesses_between_scans": self.every,
                "scan": size::text(self.scan),
                "pages": if job.thp { "2M where the host can" } else { "4K" },
                "runs": asked.runs,
            },
            rows: samples.rows(),
            checks: samples.checks(),
            ..Report::of(ABOUT.name, Machine::detect())
        };
        Ok(report)
    }
}

impl NumaBalancing {
    fn job(&self) -> Result<Job, Error> {
        if self.scan == 0 {
            return Err(Error::Usage("--scan: a scan of nothing finds nothing".into()));
        }
        let traces = Trace::all(self.every as usize, self.accesses.map_or(usize::MAX, |most| most as usize))?;
        let traces = Trace::dealt(traces, self.vcpus as usize);
        let arena = Job::arena(&traces, self.vcpus, self.nodes)?;
        Ok(Job {
            traces,
            vcpus: self.vcpus,
            nodes: self.nodes,
            passes: self.passes,
            scan_bytes: self.scan,
            contexts: true,
            thp: self.pages == Pages::Thp,
            arena,
        })
    }
}
