//! `slat bench access-tracking-perf`: which pages vCPUs have used, and what aging costs these vCPUs (the MGLRU aging series).
//!
//! ```text
//! tracked_memory.rs  guest memory on slat-mm, a VM, vCPUs that go over it
//! ager.rs            how the ager asks which pages are young: page by page, by tables, or in passes of the multi-gen LRU
//! faulting.rs        -p: vCPUs bring new memory in while the ager ages it
//! stages.rs          without -p: the ager has to tell used pages from idle ones
//! ```
//! After KVM's `access_tracking_perf_test`, to which the series added `-l` and `-p`. There an aging pass asks the secondary
//! MMU page by page: under the MMU lock, taken alone, before ("no opt"), and without it after ("opt"). Both are here, on
//! this engine, on the reader-writer lock that the series' kernel has; slat's own pass asks table by table and has no
//! lock at all. With `-p` what runs is what `slat sim` simulates: `measure/sim/src/benches/access_tracking.rs`.

mod ager;
mod faulting;
mod stages;
mod tracked_memory;

use super::guest_memory::GuestMemory;
use super::machine::Machine;
use super::report::{Report, params};
use super::{About, Asked, Bench, Cell, Grid, Headline};
use crate::typed::Unused;
use slat::baselines::MmuLock;
use slat::{Level, PAGE_SIZE};
use slat_cli::error::Error;
use slat_cli::size::size;
use slat_series::PatchSeries;
use tracked_memory::MOST;

/// Who has used which pages; what aging costs vCPUs that fault meanwhile, with the MMU lock and without (the MGLRU aging series)
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  slat bench access-tracking-perf --performance -l -v 1,4 -b 64M")]
pub struct AccessTracking {
    /// Ages by the multi-gen LRU; else the secondary MMU is asked, and there are no generations
    #[arg(short, long)]
    lru: bool,
    /// What aging costs vCPUs that fault memory in meanwhile; else: whether pages in use and idle ones are told apart
    #[arg(long)]
    performance: bool,
    /// Numbers of vCPUs to measure with, a thread each
    #[arg(short, long, value_name = "N,…", default_value = "1,2,4,8,16", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    vcpus: Vec<u32>,
    /// Guest memory for each vCPU: a multiple of 2M
    #[arg(short, long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    bytes: u64,
    /// With --performance: milliseconds that the ager rests between two passes: about what the series' took with one vCPU
    #[arg(long, value_name = "MS", default_value_t = 5)]
    pause: u64,
}

/// Tables that show what each idea contributes: [`crate::levers`].
const LEVERS: &[Grid] = &[
    Grid {
        what: "One aging pass while vCPUs fault memory in",
        columns: &[
            ("page by page, lock held", Cell::baseline("page by page: lock (no opt) → lockless (opt)")),
            ("page by page, no lock held", Cell::slat("page by page: lock (no opt) → lockless (opt)")),
            ("by tables, lock held", Cell::baseline("slat's batches under the lock → slat")),
            ("by tables, no lock at all", Cell::slat("slat's batches under the lock → slat")),
        ],
        rows: &[
            ("1 vCPU", &[("figure", "average pass"), ("vcpus", "1")], "ms"),
            ("4 vCPUs", &[("figure", "average pass"), ("vcpus", "4")], "ms"),
            ("16 vCPUs", &[("figure", "average pass"), ("vcpus", "16")], "ms"),
        ],
        says: "Aging without the lock is the idea of the MGLRU aging series. A pass by tables is slat's idea, and makes a pass short. In\n\
               the last column faults take no lock either.",
    },
    Grid {
        what: "What vCPUs take to fault their memory in",
        columns: &[
            ("no aging", Cell::baseline("reader-writer lock: no aging → no opt")),
            ("aging, lock held", Cell::slat("reader-writer lock: no aging → no opt")),
            ("aging, no lock held", Cell::slat("reader-writer lock: no aging → opt")),
            ("no aging, no lock at all", Cell::baseline("slat: no aging → aging")),
            ("aging by tables, no lock at all", Cell::slat("slat: no aging → aging")),
        ],
        rows: &[
            ("1 vCPU", &[("figure", "vCPU wall time"), ("vcpus", "1")], "ms"),
            ("4 vCPUs", &[("figure", "vCPU wall time"), ("vcpus", "4")], "ms"),
            ("16 vCPUs", &[("figure", "vCPU wall time"), ("vcpus", "16")], "ms"),
        ],
        says: "Where a pass holds the lock, faults wait for it; without the lock they do not.",
    },
];

/// The row of this bench in the registry.
pub const ABOUT: About = About {
    takes: ["10 s", "1.1 GiB"],
    question: "What does aging cost vCPUs that fault memory in meanwhile?",
    kept: "--performance -l -b 128M --runs 9",
    headlines: &[Headline {
        what: "one aging pass by tables while 16 vCPUs fault",
        against: "page by page, which holds no lock either",
        row: "page by page, lockless (opt) → slat",
        params: &[("figure", "average pass"), ("vcpus", "16")],
    }],
    levers: LEVERS,
    ci: &["-v 2 -b 8M", "-l -v 2 -b 8M", "--performance -v 2 -b 8M", "--performance -l -v 2 -b 8M"],
    quick: &["--performance -l -v 1,2,4,8 -b 32M --runs 3"],
    full: &["--performance -l"],
    ..About::of("access-tracking-perf", PatchSeries::MglruAging)
};

impl Bench for AccessTracking {
    fn unused(&self) -> Unused {
        let pause =
            (!self.performance).then(|| ("pause".into(), "only --performance has an ager that rests".into()));
        pause.into_iter().collect()
    }

    fn report(&self, asked: Asked) -> Result<Report, Error> {
        let most = self.vcpus.iter().copied().max().unwrap_or(1);
        GuestMemory::asked(most, self.bytes, Level::M2, MOST)?;
        let mut report = Report::of(ABOUT.name, Machine::detect());
        report.params = params! {
            "bytes_per_vcpu": self.bytes,
            "pause_ms": self.pause,
            "ages": if self.lru { "multi-gen LRU" } else { "secondary MMU alone" },
            "runs": asked.runs,
        };
        let measure = if self.performance { Self::faulting } else { Self::stages };
        measure(self, &mut report, asked.runs)?;
        Ok(report)
    }
}

impl AccessTracking {
    /// So many vCPUs'.
    fn memory(&self, vcpus: u32) -> GuestMemory {
        GuestMemory { vcpus, pages_per_vcpu: self.bytes / PAGE_SIZE }
    }
}

/// How the VM's tables are guarded, and whether aging takes that lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Guard {
    lock: MmuLock,
    lockless_aging: bool,
}

impl Guard {
    /// The kernel before the series.
    const NO_OPT: Self = Self { lock: MmuLock::ReadWrite, lockless_aging: false };
    /// The kernel with it.
    const OPT: Self = Self { lock: MmuLock::ReadWrite, lockless_aging: true };
    /// As slat ships.
    const SLAT: Self = Self { lock: MmuLock::None, lockless_aging: true };
}
