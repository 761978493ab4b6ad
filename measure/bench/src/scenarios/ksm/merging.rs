//! A VM whose pages are merged while its vCPUs run: the columns and the figures.

use super::merge_run::{Entrant, MergeRun, Plan, Sample, arena};
use super::notified_vm::Counted;
use super::reading_guest::{Memory, Stage};
use crate::scenarios::prelude::*;
use slat_series::change_pte::SYSTEM_TIME;

/// Figures that are set against the series'.
pub const MISSING: &str = "guest faults for want of a translation per page";
/// The same.
pub const KERNEL: &str = "ns of kernel time per page";
/// The same.
pub const KERNEL_RESTING: &str = "ns of kernel time per page, guests that mostly rest";

/// Every reason is one to unmap: before the change-pte series.
pub const IGNORED: Column = Column::lockless("ignored");
/// Page by page, and each reason has the least that it asks for: the change-pte series.
pub const HEEDED: Column = Column::lockless("heeded");
/// The same for many pages at once: slat as it ships.
pub const HEEDED_BATCHED: Column = Column::lockless("heeded, batched");

/// The stage whose content guests fill their memory with: equal pages.
pub const STAGES: &[Stage] = &[Stage(1)];

/// So that a run of few vCPUs does not consist of its beginning, and one of many, each of which every merge flushes twice, has an end.
/// Guests use no more pages than a TLB holds.
pub fn memory(setting: &Setting<'_>) -> Memory {
    let (pages, mergeable): (u64, u64) = match setting.vcpus {
        ..=8 => (2048, 2048),
        9..=64 => (512, 128),
        _ => (512, 64),
    };
    Memory { vms: 1, pages, mergeable: if setting.quick { (mergeable / 2).max(64) } else { mergeable } }
}

/// The column, with guests that rest or do not.
pub fn plan<'s>(setting: &'s Setting<'s>, rests: bool) -> Plan<'s> {
    let heeds = setting.column != IGNORED;
    let together = if setting.column == HEEDED_BATCHED { 64 } else { 1 };
    let entrant = Entrant { heeds, together, huge: false, rests };
    Plan { setting, memory: memory(setting), stages: STAGES, cpus: setting.vcpus, entrant }
}

/// One run of a plan. Sabotaged, its flushes are left out.
pub fn run(plan: Plan<'_>, sabotaged: bool) -> Result<Sample> {
    let arena = arena(plan.memory, plan.setting.vcpus + 1).poison(POISON).build();
    let arena = arena.map_err(|error| error.to_string())?;
    MergeRun::new(plan, &arena, sabotaged)?.run()
}

/// The conditions of a run.
pub fn checks(plan: Plan<'_>, sample: &Sample) -> Vec<Check> {
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
pub fn run_once(setting: &Setting<'_>) -> Result<Point> {
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
        Figure::new("kicks per page", per_page(running.stats.kicks), "kicks"),
    ];
    Ok(Point {
        operations: running.merges,
        flushes: running.flushes,
        checks: [checks(plans[0], &running), checks(plans[1], &resting)].concat(),
        ..Point::of(setting, figures, running.stats)
    })
}

// The series' kernel time beside ours: 215.93 s before, 200.90 s after.

/// After over before.
const PUBLISHED: f64 = SYSTEM_TIME[1] / SYSTEM_TIME[0];

/// With as few vCPUs as there are points of, and as many.
pub fn against(points: &[Point]) -> Vec<Against> {
    let mut counts: Vec<u32> = points.iter().map(|point| point.vcpus).collect();
    counts.sort_unstable();
    counts.dedup();
    let ends = counts.first().into_iter().chain(counts.last().filter(|_| counts.len() > 1));
    ends.flat_map(|&vcpus| at(points, vcpus)).collect()
}

fn at(points: &[Point], vcpus: u32) -> Vec<Against> {
    let of = |column, name| figure(points, vcpus, column, name);
    let beside = if vcpus == 1 { "1 vCPU".to_owned() } else { format!("{vcpus} vCPUs") };
    let time = |column, name, who: &str| {
        let grows = of(column, name)? / of(IGNORED, name)?;
        let guests = if name == KERNEL { "always run" } else { "mostly rest" };
        let what = format!("kernel time, {who} over before, guests that {guests}: {beside}");
        let why = if grows <= PUBLISHED {
            "agrees where it is no more"
        } else {
            "a page that is unmapped first owes a flush and a fault, one that stays mapped owes two flushes; where each flush \
             waits for a guest that runs, it costs more than the fault. How much its guests ran, the series does not say"
        };
        Some(Against::not(&what, (PUBLISHED, grows), ratio(who, "before"), why).unless(grows <= PUBLISHED))
    };
    let faults = of(HEEDED, MISSING).map(|faults| {
        let what = format!("guest faults for want of a translation for each page, after: {beside}");
        Against::within(0.0, &what, (0.0, faults), "faults")
    });
    let rows = [
        time(HEEDED, KERNEL_RESTING, "after"),
        time(HEEDED, KERNEL, "after"),
        time(HEEDED_BATCHED, KERNEL, "slat"),
        faults,
    ];
    rows.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::ksm::SCENARIO;

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
        for &column in SCENARIO.simulated.columns {
            let setting = &setting(column);
            for plan in [false, true].map(|rests| plan(setting, rests)) {
                let name = "no guest used a frame after it had been taken away";
                let failing = failing(&checks(plan, &run(plan, true).unwrap()));
                assert!(failing.contains(&name), "{}, {:?}: {failing:?}", column.name, plan.entrant);
            }
        }
    }

    /// Negative controls of the other checks.
    #[test]
    fn a_fault_and_a_merge_that_do_not_belong_there_are_noticed() {
        for (column, missing) in [(IGNORED, 0), (HEEDED, 2)] {
            let setting = &setting(column);
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
