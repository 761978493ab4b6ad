//! `slat bench access-tracking-perf`: which pages vCPUs have used, and what aging costs these vCPUs (the MGLRU aging series).
//!
//! ```text
//! tracked_memory.rs  guest memory on slat-mm, a VM, vCPUs that go over it
//! aging_ways.rs            how the ager asks which pages are young: page by page, by tables, or in passes of the multi-gen LRU
//! aging_beside_faults.rs        -p: vCPUs bring new memory in while the ager ages it
//! aging_stages.rs    without -p: the ager has to tell used pages from idle ones
//! ```
//! After KVM's `access_tracking_perf_test`, to which the series added `-l` and `-p`. There an aging pass asks the secondary
//! MMU page by page: under the MMU lock, taken alone, before ("no opt"), and without it after ("opt"). Both are here, on
//! this engine, on the reader-writer lock that the series' kernel has; slat's own pass asks table by table and has no
//! lock at all. With `-p` what runs is what `slat sim` simulates: `aging_run.rs`.

use super::tracked_memory::MOST;
use crate::scenarios::threads_prelude::*;

/// The flags of `slat bench access-tracking-perf`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  slat bench access-tracking-perf --performance -l -v 1,4 -b 64M")]
pub struct AccessTracking {
    /// Ages by the multi-gen LRU; else the secondary MMU is asked, and there are no generations
    #[arg(short, long)]
    pub lru: bool,
    /// Measure the cost of aging for vCPUs that fault memory in; without it, test that aging tells used pages from idle pages
    #[arg(long)]
    pub performance: bool,
    /// Numbers of vCPUs to measure with, a thread each
    #[arg(short, long, value_name = "N,…", default_value = "1,2,4,8,16", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    pub vcpus: Vec<u32>,
    /// Guest memory for each vCPU: a multiple of 2M
    #[arg(short, long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    pub bytes: u64,
    /// With --performance: milliseconds that the ager rests between two passes: about what the series' took with one vCPU
    #[arg(long, value_name = "MS", default_value_t = 5)]
    pub pause: u64,
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
        what: "vCPUs fault their memory in",
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

/// `slat bench access-tracking-perf`.
pub const MEASURED: Measured = Measured {
    takes: ["10 s", "1.1 GiB"],
    question: "How much does aging cost vCPUs that fault memory in meanwhile?",
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
    ..Measured::of::<AccessTracking>()
};

impl Flags for AccessTracking {
    fn unused(&self) -> Unused {
        let pause =
            (!self.performance).then(|| ("pause".into(), "only --performance has an ager that rests".into()));
        pause.into_iter().collect()
    }

    fn report(&self, scenario: &'static Scenario, asked: Asked) -> Result<Report, Error> {
        let most = self.vcpus.iter().copied().max().unwrap_or(1);
        GuestMemory::asked(most, self.bytes, Level::M2, MOST)?;
        let mut report = Report::of(scenario.name, Machine::detect());
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
    pub fn memory(&self, vcpus: u32) -> GuestMemory {
        GuestMemory { vcpus, pages_per_vcpu: self.bytes / PAGE_SIZE }
    }
}
