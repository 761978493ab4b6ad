//! A guest of the guest (L2): what its hypervisor's tables (T, in L1's memory) cost the engine, against KVM's way.
//!
//! ```text
//! first touch   each vCPU: its pages of L2, which T maps and no TLB, one by one
//! INVEPT        each vCPU: L1 flushes, with nothing changed; then what L2 has lost comes again
//! dropped       each vCPU: the same with a flush that drops all, as where nothing is compared
//! edited        each vCPU: L1 stores to one entry of each of its tables, flushes, and what L2 has lost comes again
//! taken back    CPU 0: the host takes pages of L1 back, one by one, which L2 has 0, 1 and 100 times
//! large         each vCPU: its pages of 2 MiB, which T and the host have as large, one by one; the table above them is one for all
//! ```
//! Both sides read the same T, and ask the same host. T has no A and D, so neither writes to it. A vCPU's part is in tables of its
//! own. No guest runs: what is timed is the work of a hypervisor between an exit and the next entry. An exit itself takes
//! [`exit_ns`](crate::parts::setting::Work::exit_ns): KVM has one more for each table of T that L1 writes to, since it is write-protected.

mod l1_layout;
mod shadow_mmu;

#[cfg(not(virtual_time))]
use crate::columns_compared::ColumnFlags;
use crate::parts::point::{Check, Figure, Point};
use crate::parts::setting::{Column, Setting};
use crate::parts::vm_setup::{gfns, idle};
#[cfg(not(virtual_time))]
use crate::scenario::Measured;
use crate::scenario::{ALL_THERE, NO_AGER, Scenario, Simulated};
use crate::world::{Job, RunStats, compute, now, run};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use l1_layout::{ALIASES, Engine, L1Layout, Side};
use shadow_mmu::ShadowMmu;
use slat::{Gfn, Idle, Span};
use slat_series::PatchSeries;

/// Tables of a hypervisor in the guest are write-protected, under one mutex: KVM.
pub const WRITE_PROTECTED: Column = Column::lockless("write-protected, one lock");
/// slat as it ships.
pub const SLAT: Column = Column::lockless("slat");

/// Its row of the registry.
pub static SCENARIO: Scenario = Scenario {
    name: "nested",
    asks: "A guest of the guest: first touches, flushes by its hypervisor, pages that the host takes back; against KVM's shadow MMU",
    series: PatchSeries::Kvm,
    simulated: Simulated {
        vcpus: "1,2,4,8,16,32,64,112",
        unused: &[
            NO_AGER,
            (&["host_ns", "handlers", "handler_ns", "zeroing", "host_first", "mm_lines"], ALL_THERE),
        ],
        ..Simulated::of(run_once, &[WRITE_PROTECTED, SLAT])
    },
    #[cfg(not(virtual_time))]
    measured: Measured {
        takes: ["3 s", "60 MiB"],
        question: "How much does a guest of the guest cost, beside a model of KVM's shadow MMU?",
        kept: "-v 1 --runs 9",
        variants: &[("nested-exits", "The same, with each exit at 1.2 µs?", "-v 1 --as-simulated --runs 9")],
        ci: &["-v 1,2"],
        quick: &["--runs 3"],
        full: &[""],
        ..Measured::of::<ColumnFlags>()
    },
};

/// Runs the scenario once.
fn run_once(setting: &Setting<'_>) -> Result<Point, String> {
    let layout = L1Layout::new(setting);
    match setting.column {
        WRITE_PROTECTED => run_on(setting, &layout, &ShadowMmu::new(&layout)),
        _ => run_on(setting, &layout, &Engine::new(&layout)?),
    }
}

/// Maximum number of pages that one fault maps, on either side.
const LARGEST_GROUP: u64 = 64;

/// The work of each vCPU in a lap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lap {
    FirstTouch,
    FirstTouchLarge,
    Flush,
    Drop,
    Edit,
}

/// The counts of the vCPUs.
#[derive(Default)]
struct Counts {
    mapped: AtomicU64,
    flush_ns: AtomicU64,
}

/// One lap of all vCPUs. Returns what it took, and what was counted.
fn lap<S: Side>(
    (setting, layout): (&Setting<'_>, &L1Layout),
    side: &S,
    vcpus: &mut [S::Vcpu<'_>],
    lap: Lap,
) -> (RunStats, Counts) {
    let all = Counts::default();
    let mut jobs = Vec::new();
    for ((id, vcpu), part) in (0..).zip(vcpus).zip(layout.parts.each()) {
        let counts = &all;
        jobs.push(Job::vcpu(id, move || {
            let mut idle = Idle::take().expect("each CPU has one vCPU");
            if lap == Lap::Edit {
                let exits = L1Layout::tables_of(part).filter(|&table| side.edit(table)).count();
                compute(setting.work.exit_ns * exits as u64);
            }
            if matches!(lap, Lap::Flush | Lap::Drop | Lap::Edit) {
                compute(setting.work.exit_ns);
                let began = now();
                match lap {
                    Lap::Drop => side.drop_all(&mut idle, vcpu, part),
                    _ => side.flush(&mut idle, vcpu),
                }
                counts.flush_ns.fetch_add(now() - began, Relaxed);
            }
            let mapped = match lap {
                Lap::FirstTouchLarge => side.touch(&mut idle, vcpu, &setting.work, &mut layout.large_of(id)),
                _ => side.touch(&mut idle, vcpu, &setting.work, &mut gfns(part)),
            };
            counts.mapped.fetch_add(mapped, Relaxed);
        }));
    }
    let stats = run(setting.costs, jobs);
    (stats, all)
}

/// Nanoseconds for a page that the host takes back.
fn takes_back(setting: &Setting<'_>, side: &impl Side, g1s: Span<Gfn>) -> f64 {
    let job = Job::new("host", || {
        let mut idle = Idle::take().expect("a CPU of its own");
        gfns(g1s).for_each(|g1| side.take_back(&mut idle, g1));
    });
    run(setting.costs, vec![job]).wall_ns as f64 / g1s.len() as f64
}

/// Pages of these frames of L2 that hardware finds: those that are where they should be, and others.
fn found<S: Side>(
    layout: &L1Layout,
    side: &S,
    vcpu: &mut S::Vcpu<'_>,
    g2s: impl Iterator<Item = Span<Gfn>>,
) -> Result<[u64; 2], String> {
    let (mut idle, mut found) = (idle()?, [0; 2]);
    for g2 in g2s.flat_map(gfns) {
        if let Some(pfn) = side.finds(&mut idle, vcpu, g2) {
            found[usize::from(pfn != layout.behind(g2))] += 1;
        }
    }
    Ok(found)
}

fn run_on<S: Side>(setting: &Setting<'_>, layout: &L1Layout, side: &S) -> Result<Point, String> {
    let pages = layout.parts.pages;
    let all = pages * u64::from(setting.vcpus);
    let on = (setting, layout);
    let absent = takes_back(setting, side, layout.apart(0));
    side.begin();
    let before = side.bytes();
    let mut vcpus = (0..setting.vcpus).map(|id| side.vcpu(id)).collect::<Result<Vec<_>, _>>()?;
    let (touched, first) = lap(on, side, &mut vcpus, Lap::FirstTouch);
    let bytes = side.bytes() - before;
    let [is_right, _] = found(layout, side, &mut vcpus[0], layout.parts.each())?;
    let (flushed, same) = lap(on, side, &mut vcpus, Lap::Flush);
    let (dropped, gone) = lap(on, side, &mut vcpus, Lap::Drop);
    let (edited, changed) = lap(on, side, &mut vcpus, Lap::Edit);
    let [_, is_wrong] = found(layout, side, &mut vcpus[0], layout.parts.each())?;

    let none = takes_back(setting, side, layout.apart(1));
    let some = layout.some_of_the_first_in_l2();
    let one = takes_back(setting, side, layout.some_of_the_first());
    let [left, _] = found(layout, side, &mut vcpus[0], [some].into_iter())?;
    let aliases = layout.aliases();
    side.touch(&mut idle()?, &mut vcpus[0], &setting.work, &mut gfns(aliases));
    let [shown, _] = found(layout, side, &mut vcpus[0], [aliases].into_iter())?;
    let hundred = takes_back(setting, side, Span::sized(layout.shared(), 1));
    let [shown_after, _] = found(layout, side, &mut vcpus[0], [aliases].into_iter())?;
    // Last: no flush goes over them.
    let (large, of_large) = lap(on, side, &mut vcpus, Lap::FirstTouchLarge);
    let larges = layout.large_of(0).count() as u64;
    // The first page of each, and the last.
    let ends = (0..setting.vcpus).flat_map(|vcpu| layout.large_of(vcpu));
    let ends = ends.flat_map(|g2| [g2, g2 + 511]).map(|g2| Span::sized(g2, 1));
    let [are_large, _] = found(layout, side, &mut vcpus[0], ends)?;
    let each = |stats: &RunStats| stats.wall_ns as f64 / pages as f64;
    let count = |counts: &Counts| counts.mapped.load(Relaxed) as f64 / all as f64;
    let flush_ms = |counts: &Counts| {
        let ns = counts.flush_ns.load(Relaxed) as f64 / f64::from(setting.vcpus);
        ns / pages as f64 * 262_144.0 / 1e6
    };
    let figures = vec![
        Figure::new("first touch", each(&touched), "ns a page"),
        Figure::new("  of 2 MiB, in T and in the host", large.wall_ns as f64 / larges as f64, "ns a page"),
        Figure::new("INVEPT, nothing changed", flush_ms(&same), "ms a GiB"),
        Figure::new("  nothing changed: faults after it", count(&same), "of pages"),
        Figure::new("  nothing changed: with them", each(&flushed), "ns a page"),
        Figure::new("INVEPT that drops all", flush_ms(&gone), "ms a GiB"),
        Figure::new("  drops all: faults after it", count(&gone), "of pages"),
        Figure::new("  drops all: with them", each(&dropped), "ns a page"),
        Figure::new("INVEPT, an entry of each table changed", flush_ms(&changed), "ms a GiB"),
        Figure::new("  entries changed: faults after it", count(&changed), "of pages"),
        Figure::new("  entries changed: with them and L1's exits", each(&edited), "ns a page"),
        Figure::new("the host takes a page back, no nested guest", absent, "ns"),
        Figure::new("  that L2 does not have", none, "ns"),
        Figure::new("  that L2 has once", one, "ns"),
        Figure::new("  that L2 has 100 times", hundred, "ns"),
        Figure::new("memory", bytes as f64 / all as f64, "B for each 4 KiB of L2"),
    ];
    Ok(Point {
        operations: all,
        checks: vec![
            Check::all("every page is that of T and the host", is_right, all),
            Check::all("none is another one after L1's changes and flushes", all - is_wrong, all),
            Check::all(
                "a fault maps 2 MiB",
                of_large.mapped.load(Relaxed),
                larges * u64::from(setting.vcpus),
            ),
            Check::all("both ends of them are there", are_large, 2 * larges * u64::from(setting.vcpus)),
            Check::least(
                "a flush that drops all is followed by faults",
                gone.mapped.load(Relaxed),
                all / LARGEST_GROUP,
            ),
            Check::least("pages came by faults", first.mapped.load(Relaxed), all / LARGEST_GROUP),
            Check::all("what the host took back is gone", some.len() - left, some.len()),
            Check::all("a page is there 100 times", shown, ALIASES),
            Check::all("the host took it back from all", ALIASES - shown_after, ALIASES),
        ],
        ..Point::of(setting, figures, touched)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::test_settings::{failing, setting};

    #[test]
    fn both_sides_map_what_t_and_the_host_say() {
        for policy in [WRITE_PROTECTED, SLAT] {
            let setting = &setting(policy);
            let point = run_once(setting).unwrap();
            assert_eq!(failing(&point.checks), [""; 0], "{policy:?}");
            for figure in &point.figures {
                println!("{:>10.2} {:<24} {}", figure.value, figure.unit, figure.name);
            }
        }
    }

    /// The mappings after the first touch, and after the host has taken pages.
    fn left(side: &impl Side, setting: &Setting<'_>, layout: &L1Layout) -> [u64; 2] {
        side.begin();
        let mut vcpus = [side.vcpu(0).unwrap(), side.vcpu(1).unwrap()];
        lap((setting, layout), side, &mut vcpus, Lap::FirstTouch);
        let mut right = || found(layout, side, &mut vcpus[0], layout.parts.each()).unwrap()[0];
        let before = right();
        takes_back(setting, side, layout.some_of_the_first());
        [before, right()]
    }

    #[test]
    fn negative_control_a_page_that_is_gone_is_missed() {
        let setting = &setting(SLAT);
        let layout = &L1Layout::new(setting);
        let all = 2 * layout.parts.pages;
        let expected = [all, all - layout.some_of_the_first().len()];
        assert_eq!(left(&Engine::new(layout).unwrap(), setting, layout), expected);
        assert_eq!(left(&ShadowMmu::new(layout), setting, layout), expected);
    }
}
