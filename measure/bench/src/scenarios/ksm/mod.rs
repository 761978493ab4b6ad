//! A host merges equal pages of running vCPUs: the change-pte series.
//!
//! ```text
//! guests     fill their memory, read all over it, and write some of it again
//! scanner    for each page: read it (a checksum, a search) │ make it read-only   │ compare │ give it a shared frame
//!                                                          │ told: write-protect │         │ told: change-pte
//! ```
//! The host is slat-mm with its KSM. In a simulation one VM has all vCPUs:
//!
//! | policy | what the VM makes of the reasons | pages in one change |
//! |---|---|---|
//! | ignored | each is an unmap, and guests fault: before | one |
//! | heeded | the page stays mapped: it loses write permission, then gets its new frame in place: the series | one |
//! | heeded, batched | the same: KSM as slat-mm ships it | up to 64 |
//!
//! Twice: with guests that always run, so that each flush waits for every vCPU, and, for one figure, with guests that run a fifth
//! of the time, so that a flush seldom meets one in the guest. Kernel time is the scanner's, and what guests lose: to faults, to kicks,
//! and waiting.
//!
//! `slat bench ksm-perf` runs the same [`MergeRun`] with several VMs, in the four stages of LTP's `ksm02`.
//!
//! | file | idea |
//! |---|---|
//! | [`page_contents`] | what the VMs hold in each stage, and what KSM must have found |
//! | `reading_guest` | what a guest does meanwhile |
//! | [`notified_vm`] | a VM between its address space and the engine: time of notifications, pages that are changing |
//! | [`merge_run`] | VMs, their guests, the scanner, and what must be true afterwards |
//! | `published` | the series' figure beside these |

#[cfg(not(virtual_time))]
mod ksm_flags;
#[cfg(not(virtual_time))]
mod ksm_rows;
#[cfg(not(virtual_time))]
mod table_pages;

mod change_pte_figures;
pub mod merge_run;
pub mod notified_vm;
pub mod page_contents;
mod reading_guest;

use crate::parts::point::{Check, Figure, Point};
use crate::parts::setting::Column;
use crate::parts::setting::Setting;
use crate::scenario::NO_AGER;
use crate::scenario::{Scenario, Simulated};
use merge_run::{Entrant, MergeRun, Plan, Sample, arena};
use notified_vm::Counted;
use page_contents::{Memory, Stage};
use reading_guest::POISON;
use slat_series::PatchSeries;

/// Figures that are set against the series'.
const MISSING: &str = "guest faults for want of a translation per page";
const KERNEL: &str = "ns of kernel time per page";
const KERNEL_RESTING: &str = "ns of kernel time per page, guests that mostly rest";

/// Every reason is one to unmap: before the change-pte series.
pub const IGNORED: Column = Column::lockless("ignored");
/// Page by page, and each reason has the least that it asks for: the change-pte series.
pub const HEEDED: Column = Column::lockless("heeded");
/// The same for many pages at once: slat as it ships.
pub const HEEDED_BATCHED: Column = Column::lockless("heeded, batched");

/// Its row of the registry.
pub static SCENARIO: Scenario = Scenario {
    name: "ksm-perf",
    asks: "A host merges equal pages of running VMs, with and without the reason of each change (the change-pte series)",
    series: PatchSeries::ChangePte,
    simulated: Simulated {
        published: change_pte_figures::against,
        takes: ["20 s", "50 MiB"],
        unused: &[
            NO_AGER,
            (
                &["host_ns", "handlers", "handler_ns", "zeroing", "host_first", "mm_lines", "under_lock_ns"],
                "has slat-mm as its host, with every page from the start",
            ),
        ],
        ..Simulated::of(run_once, &[IGNORED, HEEDED, HEEDED_BATCHED])
    },
    #[cfg(not(virtual_time))]
    measured: ksm_flags::MEASURED,
};

/// What guests fill their memory with: equal pages.
const STAGES: &[Stage] = &[Stage(1)];

/// So that a run of few vCPUs does not consist of its beginning, and one of many, each of which every merge flushes twice, has an end.
/// Guests use no more pages than a TLB holds.
fn memory(setting: &Setting<'_>) -> Memory {
    let (pages, mergeable): (u64, u64) = match setting.vcpus {
        ..=8 => (2048, 2048),
        9..=64 => (512, 128),
        _ => (512, 64),
    };
    Memory { vms: 1, pages, mergeable: if setting.quick { (mergeable / 2).max(64) } else { mergeable } }
}

/// The policy, with guests that rest or do not.
fn plan<'s>(setting: &'s Setting<'s>, rests: bool) -> Plan<'s> {
    let heeds = setting.column != IGNORED;
    let together = if setting.column == HEEDED_BATCHED { 64 } else { 1 };
    let entrant = Entrant { heeds, together, huge: false, rests };
    Plan { setting, memory: memory(setting), stages: STAGES, cpus: setting.vcpus, entrant }
}

fn run(plan: Plan<'_>, sabotaged: bool) -> Result<Sample, String> {
    let arena = arena(plan.memory, plan.setting.vcpus + 1).poison(POISON).build();
    let arena = arena.map_err(|error| error.to_string())?;
    MergeRun::new(plan, &arena, sabotaged)?.run()
}

/// What must be true of a run.
fn checks(plan: Plan<'_>, sample: &Sample) -> Vec<Check> {
    let heeds = plan.entrant.heeds;
    let missing = sample.of(Counted::Missing);
    let mut checks = sample.seen.checks().to_vec();
    checks.extend(sample.tally.iter().map(Check::from));
    checks.extend([
        // The engine zaps an entry that a guest's store is changing at the same moment: at most one for each share broken.
        Check {
            name: "guests lose translations of pages that are unmapped, and of others only where they store",
            ok: if heeds { missing <= sample.breaks } else { missing >= plan.memory.all_mergeable() },
            detail: format!("{missing} faults for want of one"),
        },
        Check::least(
            "every page is merged, and once more where it was written",
            sample.merges,
            plan.memory.merges(plan.stages),
        ),
    ]);
    checks
}

/// Runs the scenario once.
fn run_once(setting: &Setting<'_>) -> Result<Point, String> {
    let plans = [false, true].map(|rests| plan(setting, rests));
    let (running, resting) = (run(plans[0], false)?, run(plans[1], false)?);
    let kernel = |sample: &Sample| (sample.scan_ns + sample.lost_ns) as f64 / sample.merges as f64;
    let per_page = |count: u64| count as f64 / running.merges as f64;
    let counted = |what| per_page(running.of(what));
    let figures = vec![
        Figure::new("ns of the scanner in MMU code per page", counted(Counted::NotifiedNs), "ns"),
        Figure::new("guest faults per page", counted(Counted::Faults), "faults"),
        Figure::new(MISSING, counted(Counted::Missing), "faults"),
        Figure::new("ns of the scanner per page", per_page(running.scan_ns), "ns"),
        Figure::new("ns lost by all guests per page", per_page(running.lost_ns), "ns"),
        Figure::new(KERNEL, kernel(&running), "ns"),
        Figure::new(KERNEL_RESTING, kernel(&resting), "ns"),
        Figure::new("flushes per page", per_page(running.flushes), "flushes"),
        Figure::new("kicks per page", per_page(running.told.kicks), "kicks"),
    ];
    Ok(Point {
        operations: running.merges,
        flushes: running.flushes,
        checks: [checks(plans[0], &running), checks(plans[1], &resting)].concat(),
        ..Point::of(setting, figures, running.told)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::setting::Work;
    use crate::parts::test_settings::{failing, setting};

    /// With nothing around the engine a vCPU meets entries to which a fault of the other one is allowing stores.
    #[test]
    fn two_vcpus_that_do_nothing_else_lose_no_translation() {
        let setting = Setting { work: Work::none(), ..setting(HEEDED_BATCHED) };
        let plan = plan(&setting, false);
        assert_eq!(failing(&checks(plan, &run(plan, false).unwrap())), [""; 0]);
    }

    /// Negative control: guests use all pages once more after the last merge.
    #[test]
    fn a_flush_that_is_left_out_is_noticed() {
        for &policy in SCENARIO.simulated.columns {
            let setting = &setting(policy);
            for plan in [false, true].map(|rests| plan(setting, rests)) {
                let name = "no guest used a frame after it had been taken away";
                let failing = failing(&checks(plan, &run(plan, true).unwrap()));
                assert!(failing.contains(&name), "{}, {:?}: {failing:?}", policy.name, plan.entrant);
            }
        }
    }

    /// Negative controls of the other checks.
    #[test]
    fn a_fault_and_a_merge_that_do_not_belong_there_are_noticed() {
        for (policy, missing) in [(IGNORED, 0), (HEEDED, 2)] {
            let setting = &setting(policy);
            let plan = plan(setting, false);
            let mut sample = Sample { merges: 1, breaks: 1, ..Sample::default() };
            sample.counts[Counted::Missing as usize] = missing;
            let names = [
                "guests lose translations of pages that are unmapped, and of others only where they store",
                "every page is merged, and once more where it was written",
            ];
            assert_eq!(failing(&checks(plan, &sample)), names);
        }
    }
}
