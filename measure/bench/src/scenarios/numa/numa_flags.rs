//! `slat bench numa-balancing`: what a guest pays for a host that balances its nodes (the NUMA protection series).
//!
//! ```text
//! replayed.rs           one sample: vCPUs that replay traces on two nodes or more, and perhaps a device
//! numa_rows.rs          the rows and the checks
//! ```
//! It runs the VM that `slat sim` simulates (`balanced.rs`). Here its guests replay traces.
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
//! **Not comparable**: in the series' boots some of the pages of a range became inaccessible, and about half of these were
//! mapped. Here each page that the host maps becomes inaccessible, and guests use most of them. So page by page there are more flushes.

use super::kvm_walk::RangeWalk;
use super::numa_rows;
use super::numa_rows::{KVM, KVM_WITH_THE_SERIES, NO_DEVICE, PINNED};
use super::replayed::{ALONE, Entrant, NumaBalancing, PAGE, RANGE, SLAT, Workload, YIELDING};
use crate::scenarios::threads_prelude::*;
use slat_mm::Policy;
use slat_vcpu::trace::bundled;

/// The entrants, each without a device and with one.
const HOSTS: [Entrant; 7] = [
    SLAT,
    YIELDING,
    Entrant { walk: RangeWalk::Kvm, ..PAGE },
    RANGE,
    PAGE,
    Entrant { policy: Some((Policy::PageBatched, 2 << 20)), ..SLAT },
    ALONE,
];

/// The rows of both tables of levers.
const LEVER_ROWS: &[(&str, Params, &str)] = &[
    ("remote flushes", &[("mean of", "remote flushes"), NO_DEVICE], "flushes"),
    ("calls that unmap", &[("mean of", "unmap calls"), NO_DEVICE], "calls"),
    ("guest's wall time", &[("mean of", "guest wall time"), NO_DEVICE], "ms"),
    ("guest's faults, all memory pinned", &[("mean of", "guest faults"), PINNED], "faults"),
    ("guest's wall time, all memory pinned", &[("mean of", "guest wall time"), PINNED], "ms"),
];

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

/// `slat bench numa-balancing`.
pub const MEASURED: Measured = Measured {
    takes: ["2 min", "900 MiB"],
    runs: "10",
    question: "How much does a guest pay for a host that balances its nodes?",
    kept: "",
    levers: LEVERS,
    ci: &["--passes 2 -a 100000 -e 50000"],
    quick: &["--accesses 200000 --passes 2 --every 50000 --runs 2"],
    full: &["--passes 6 --runs 5"],
    ..Measured::of::<NumaBalancing>()
};

impl Flags for NumaBalancing {
    fn report(&self, scenario: &'static Scenario, asked: Asked) -> Result<Report, Error> {
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
            rows: numa_rows::rows(&samples),
            checks: numa_rows::checks(&samples),
            ..Report::of(scenario.name, Machine::detect())
        };
        Ok(report)
    }
}
