//! `slat bench numa-balancing`: what a guest pays for a host that balances its nodes (the NUMA protection series).
//!
//! ```text
//! replayed.rs           one sample: vCPUs that replay traces on two nodes or more, and perhaps a device
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

use super::balanced::RangeWalk;
use super::replayed::{ALONE, Entrant, KVM, NumaBalancing, PAGE, RANGE, SLAT, Sample, Workload, YIELDING};
use crate::scenarios::threads_prelude::*;
use slat_mm::Policy;
use slat_series::numa_protection::AVERAGE;
use slat_vcpu::trace::bundled;

/// The entrants, each without a device and with one.
const HOSTS: [Entrant; 7] = [
    SLAT,
    YIELDING,
    Entrant { name: KVM_WITH_THE_SERIES, walk: RangeWalk::Kvm, ..PAGE },
    RANGE,
    PAGE,
    Entrant { name: "page-batched by 2M", policy: Some((Policy::PageBatched, 2 << 20)), ..SLAT },
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
    fn report(&self, scenario: &'static Scenario, asked: Asked) -> Result<Report> {
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
            rows: rows(&samples),
            checks: checks(&samples),
            ..Report::of(scenario.name, Machine::detect())
        };
        Ok(report)
    }
}

// The report: each policy against slat's, and the bars.

/// Names of their rows.
pub const KVM_WITH_THE_SERIES: &str = "page, locked: KVM with the series";
/// Parameters of their rows.
pub const NO_DEVICE: (&str, &str) = ("device", "none");
pub const PINNED: (&str, &str) = ("device", "pins all memory");

/// All that ran.
pub type Samples = Lineup<Entrant, Sample>;

/// A figure: its name, its unit, how a sample says it, and what the NUMA protection series reports: before and after.
type Figure = (&'static str, &'static str, fn(&Sample) -> f64, Option<[f64; 2]>);

const FIGURES: [Figure; 6] = [
    ("remote flushes", "flushes", |sample| sample.counts.flushes as f64, Some(AVERAGE.flushes)),
    ("unmap calls", "calls", |sample| sample.counts.unmaps as f64, Some(AVERAGE.calls)),
    ("guest faults", "faults", |sample| sample.counts.faults as f64, None),
    ("hint faults", "faults", |sample| sample.counts.balancing.hint_faults as f64, None),
    ("pages moved to their node", "pages", |sample| sample.counts.balancing.migrated as f64, None),
    ("guest wall time", "ms", |sample| sample.wall_ms, None),
];

/// A check of an entrant: its name, of which entrants, what is counted in all samples, and whether that must be none. Else it must be some.
type Rule = (&'static str, fn(&Entrant) -> bool, fn(&Sample) -> u64, bool);

const RULES: [Rule; 6] = [
    ("the guest made every access and read what it had written", |_| true, |sample| sample.wrong, true),
    ("no table pages of the guest were freed", |_| true, |sample| sample.counts.tables_freed, true),
    ("no pinned pages were unmapped", Entrant::spares_pins, |sample| sample.counts.unmaps, true),
    ("no flushes of pinned pages", Entrant::spares_pins, |sample| sample.counts.flushes, true),
    (
        "no flushes: whatever is counted was caused by balancing",
        |entrant| entrant.policy.is_none(),
        |sample| sample.counts.flushes,
        true,
    ),
    (
        "balancing moved pages to their node",
        |entrant| !entrant.device && entrant.policy.is_some(),
        |sample| sample.counts.balancing.migrated,
        false,
    ),
];

/// Of the flushes of [`Policy::Range`], slat's may be this part, in the mean.
const FLUSHES: f64 = 0.53;

impl Entrant {
    fn device(&self) -> &'static str {
        if self.device { PINNED.1 } else { NO_DEVICE.1 }
    }

    /// All memory is pinned, and the policy takes away no page that is.
    fn spares_pins(&self) -> bool {
        self.device && matches!(self.policy, Some((Policy::Page | Policy::PageBatched, _)))
    }
}

fn mean(samples: &[Sample], figure: fn(&Sample) -> f64) -> f64 {
    samples.iter().map(figure).sum::<f64>() / samples.len() as f64
}

/// Every figure of every other entrant against slat's. The NUMA protection series reports means, best and worst; so do these rows.
pub fn rows(samples: &Samples) -> Vec<Row> {
    let mut rows = Vec::new();
    for device in [false, true] {
        let slat_here = Entrant { device, ..SLAT };
        let slat = samples.of(slat_here);
        for (what, unit, figure, published) in FIGURES {
            // Without balancing a guest loses nothing: there is nothing to compare.
            let costs = ["guest faults", "guest wall time"].contains(&what);
            let is_other = |entrant: Entrant| {
                entrant.device == device && entrant != slat_here && (costs || entrant.policy.is_some())
            };
            for (entrant, others) in samples.each().filter(|(entrant, _)| is_other(**entrant)) {
                let params = params! { "mean of": what, "device": entrant.device() };
                let [baseline, ours] = [others, slat].map(|samples| Series::of(samples, figure));
                let row = Row::compare(entrant.name, params, unit, &baseline, &ours);
                let (before, after) = (mean(others, figure), mean(slat, figure));
                let ratio = Some(before / after).filter(|ratio| ratio.is_finite());
                let row = Row { baseline: Some(before), slat: after, ratio, ..row };
                let published = published.filter(|_| *entrant == YIELDING);
                let claim = published.map(|[before, after]| before / after);
                rows.push(row.answering(PatchSeries::NumaProtection).claiming(claim));
            }
        }
    }
    rows
}

/// The conditions that must hold.
pub fn checks(samples: &Samples) -> Vec<Check> {
    let mut checks = Vec::new();
    for (entrant, samples) in samples.each() {
        for (what, _, count, none) in RULES.iter().filter(|(_, applies, ..)| applies(entrant)) {
            let name = format!("{}, device {}: {what}", entrant.name, entrant.device());
            let sum: u64 = samples.iter().map(count).sum();
            checks.push(Check { name, ok: (sum == 0) == *none, detail: sum.to_string() });
        }
    }
    checks.extend(bars(samples));
    checks
}

fn bars(samples: &Samples) -> [Check; 3] {
    let faults: fn(&Sample) -> f64 = |sample| sample.counts.faults as f64;
    let flushes: fn(&Sample) -> f64 = |sample| sample.counts.flushes as f64;
    let [range, slat, alone] = [RANGE, SLAT, ALONE].map(|entrant| samples.of(entrant));
    let best = |samples: &[Sample]| samples.iter().map(flushes).fold(f64::INFINITY, f64::min);
    let (before, after) = (mean(range, flushes), mean(slat, flushes));
    // Page by page, a guest faults for pages that the host protected or moved, and for no neighbour of theirs.
    let found = mean(slat, faults) - mean(alone, faults);
    let taken =
        mean(slat, |sample| (sample.counts.balancing.hint_faults + sample.counts.balancing.migrated) as f64);
    [
        Check {
            name: "no page is lost to the guest but those that the host protected or moved".into(),
            ok: found <= taken,
            detail: format!(
                "{found:.0} faults more than without balancing, {taken:.0} hint faults and pages moved"
            ),
        },
        Check {
            name: format!("remote flushes, mean: at most {FLUSHES} of range's"),
            ok: after <= FLUSHES * before,
            detail: format!("{after:.0} of {before:.0}"),
        },
        Check {
            name: "remote flushes, best: no more than range's".into(),
            ok: best(slat) <= best(range),
            detail: format!("{:.0} and {:.0}", best(slat), best(range)),
        },
    ]
}
