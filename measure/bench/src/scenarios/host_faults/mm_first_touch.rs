//! vCPUs that touch new memory of slat-mm for the first time.

pub use crate::parts::sim_host::BASE;
use crate::scenarios::demand_paging::first_touch::{Fixture, Touched};
use crate::scenarios::prelude::*;

/// Bytes of the arena for lists of free frames: those that all CPUs share, and each CPU's own.
pub const SHARED_LISTS: u64 = 16 << 20;
/// Bytes of the list of each CPU.
pub const CPU_LIST: u64 = 512 << 10;

/// Runs the scenario once.
pub fn run_once(setting: &Setting<'_>) -> Result<Point> {
    let parts = Parts::new(setting, setting.pages_per_vcpu());
    let bytes = parts.all().len() * PAGE_SIZE;
    let said = |error: MmError| error.to_string();
    let lists = SHARED_LISTS + u64::from(setting.vcpus) * CPU_LIST;
    let arena = Arena::builder().limit(bytes + bytes / 8 + lists).build().map_err(said)?;
    // All frames were in use before. The first time a frame is only marked as used; the second time it is zeroed, and on
    // threads the system finds memory for it: a page fault of the system's would be no part of what slat-mm costs.
    for _ in 0..2 {
        drop(std::iter::from_fn(|| arena.zeroed(Level::K4).ok()).collect::<Vec<_>>());
    }
    let space = AddressSpace::builder(&arena).build().map_err(said)?;
    let (vcpus, lock) = (setting.vcpus, setting.column.lock);
    let vm = machine::<Ept4>(&space, bytes, Backing::Anonymous, |vm| {
        vm.vcpus(vcpus).baseline(Baseline::NONE.mmu_lock(lock))
    })?;

    // As elsewhere, a run is a stretch from the middle: each vCPU has touched the page before its part.
    let bare = |(number, part): (u32, Span<Gfn>)| {
        let mut vcpu = Bare::new(&vm, number)?;
        vcpu.touched(&mut idle()?, Gfn(part.start.0 - 1));
        vcpu.before_ns = setting.work.guest_ns + setting.work.exit_ns;
        Ok::<_, String>(vcpu)
    };
    let mut vcpus = (0..).zip(parts.each()).map(bare).collect::<Result<Vec<_>, _>>()?;
    let all = parts.pages * u64::from(setting.vcpus);
    let (before, ahead) = (arena.list_stats().zeroed, if setting.work.zeroing { 0 } else { all });
    // Each takes a batch at a time, and may keep a part of the last one.
    arena.zero_ahead(if ahead > 0 { all + 64 * u64::from(setting.vcpus) } else { 0 });
    let right = ("every page is mapped to the host's frame", host_has(&space, Level::K4));
    let parts_of: Vec<_> = parts.each().collect();
    let fixture = Fixture { vm: &*vm, parts: &parts_of, page: Level::K4, right };
    let Touched { stats, tally } = fixture.run(setting.costs, &mut vcpus, || (), None)?;
    let zeroed = arena.list_stats().zeroed - before;
    let figures = vec![
        Figure::new("ns per fault", stats.wall_ns as f64 / parts.pages as f64, "ns"),
        Figure::new("time", stats.wall_ns as f64 / 1e6, "ms"),
        Figure::new(
            "waits for a page lock",
            space.stats().lock_waits as f64 / all as f64 * 1e3,
            "of 1,000 faults",
        ),
    ];
    let mut checks: Vec<_> = tally.iter().map(Check::from).collect();
    checks.push(Check::all("every page that need not be zeroed was zeroed ahead", zeroed, ahead));
    Ok(Point { operations: all, checks, ..Point::of(setting, figures, stats) })
}
