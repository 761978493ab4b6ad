//! vCPUs that fault memory in beside a thread that ages it.

use crate::scenarios::demand_paging::first_touch;
use crate::scenarios::demand_paging::first_touch::FIRST_FRAMES;
use crate::scenarios::prelude::*;
use crate::world::AtomicU64;

/// Pages that each vCPU faults in.
pub const PAGES: u64 = 512;

/// A reader-writer lock, and no aging.
pub const NO_AGING: Column = Column::locked("no aging", MmuLock::ReadWrite);
/// The same, and an ager that takes the lock for each page: before the MGLRU aging series.
pub const LOCKED: Column = Column::locked("locked", MmuLock::ReadWrite);
/// The same, and an ager that takes no lock for each page: the MGLRU aging series.
pub const LOCKLESS: Column = Column::locked("lockless", MmuLock::ReadWrite);
/// No lock, and no aging.
pub const SLAT_NO_AGING: Column = Column::lockless("slat, no aging");
/// No lock, and an ager that goes by tables: slat as it ships.
pub const SLAT: Column = Column::lockless("slat");

/// Runs the scenario once.
pub fn run_once(setting: &Setting<'_>) -> Result<Point> {
    let parts = Parts::new(setting, if setting.quick { PAGES / 4 } else { PAGES });
    let all = parts.all();
    let lock = setting.column.lock;
    let baseline = Baseline::NONE.mmu_lock(lock).lockless_aging(setting.column != LOCKED);
    let builder = builder(SimHost::new(all.len(), &setting.work), setting, lock).baseline(baseline);
    let vm = with_one_slot(builder, all.len())?;
    let mut guests = parts.guests(&vm, &setting.work)?;

    let pass = |idle: &mut Idle| {
        Ok(match setting.column {
            SLAT => by_tables(&vm, idle, hvas_of(all)),
            _ => page_by_page(
                idle,
                hvas_of(all),
                |hva| vm.host().page(hva).is_some(),
                |idle, page| vm.young(idle, page, Young::Clear),
            ),
        })
    };
    let rests = || rest(setting.work.rest_ns);
    let ages = !matches!(setting.column, NO_AGING | SLAT_NO_AGING);
    let ager = ages.then_some(Ager { pass, rests, once_more: false, cpu: None });
    let fixture = first_touch::Fixture {
        vm: &vm,
        parts: &parts.each().collect::<Vec<_>>(),
        page: Level::K4,
        right: FIRST_FRAMES,
    };
    let (lap, passes) = beside(setting.costs, &fixture, &mut guests, ager)?;
    let stats = lap.stats;

    let mut figures = vec![Figure::new("guest wall time", stats.wall_ns as f64 / 1e6, "ms")];
    if ages {
        figures.push(Figure::new("average pass", passes.ms(), "ms"));
        figures.push(Figure::new("a page, in a pass", passes.ns_a_page(), "ns"));
        figures.push(Figure::new("passes", passes.passes as f64, ""));
    }
    let faults = parts.pages * u64::from(setting.vcpus);
    let mut checks: Vec<_> = lap.tally.iter().map(Check::from).collect();
    checks.push(was_young(passes.young + still_young(&vm, all)?, faults));
    Ok(Point {
        operations: faults,
        flushes: vm.stats().flushes.paid,
        checks,
        ..Point::of(setting, figures, stats)
    })
}

/// Pages that are young still: a link that a vCPU had cached said nothing of them, or they were used after the last pass.
pub fn still_young<F: Format, H: Host>(vm: &Vm<F, H>, pages: Span<Gfn>) -> Result<u64> {
    let mut still = 0;
    vm.memory().lockless(&mut idle()?).for_each(pages, |found| still += u64::from(found.leaf.accessed));
    Ok(still)
}

/// Whether each of so many pages was young, in a pass or still.
pub fn was_young(young: u64, pages: u64) -> Check {
    Check::least("each page was young, in a pass or still", young, pages)
}

/// Pages that there were to be asked about, and those of them that were young.
pub type Aged = [u64; 2];

/// A pass over each page that `there` says the primary MMU has, by one call for it, as a kernel's passes do.
pub fn page_by_page(
    idle: &mut Idle,
    hvas: Span<Hva>,
    there: impl Fn(Hva) -> bool,
    young: impl Fn(&mut Idle, Span<Hva>) -> bool,
) -> Aged {
    let mut asked = [0; 2];
    for hva in (hvas.start.0..hvas.end.0).step_by(PAGE_SIZE as usize).map(Hva) {
        if there(hva) {
            asked[0] += 1;
            asked[1] += u64::from(young(idle, Span::sized(hva, PAGE_SIZE)));
        }
    }
    asked
}

/// A pass of the secondary MMU, table by table; then TLBs are asked to forget.
pub fn by_tables<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle, hvas: Span<Hva>) -> Aged {
    let mut young = 0;
    vm.age(idle, hvas, &mut |seen| young += u64::from(seen.count()));
    vm.forget(idle, hvas);
    [vm.stats().leaves[0], young]
}

/// A thread that takes one pass after the other while vCPUs run.
pub struct Ager<P, R> {
    /// A pass.
    pub pass: P,
    /// The pause between two passes.
    pub rests: R,
    /// The last pass begins when no vCPU runs any more; else it may be over by then.
    pub once_more: bool,
    /// On threads: its CPU, where that is not the one after the vCPUs'.
    pub cpu: Option<usize>,
}

/// The passes of an ager.
#[derive(Clone, Copy, Debug, Default)]
pub struct Passes {
    /// How often.
    pub passes: u64,
    /// How long all of them took.
    pub ns: u64,
    /// Pages that were there to be asked about.
    pub pages: u64,
    /// Times that one was young.
    pub young: u64,
}

impl Passes {
    /// Milliseconds of a pass, on average.
    pub fn ms(&self) -> f64 {
        self.ns as f64 / self.passes.max(1) as f64 / 1e6
    }

    /// Nanoseconds of a page, on average.
    pub fn ns_a_page(&self) -> f64 {
        self.ns as f64 / self.pages.max(1) as f64
    }
}

impl<P: FnMut(&mut Idle) -> Result<Aged>, R: Fn()> Ager<P, R> {
    /// Ages while a vCPU runs.
    fn run(mut self, running: &AtomicU64) -> Result<Passes> {
        let (mut idle, mut passes) = (idle()?, Passes::default());
        // ORDER(running): Relaxed: it publishes nothing; the ager stops a pass later.
        let over = || running.load(Relaxed) == 0;
        loop {
            let last = self.once_more && over();
            let began = now();
            let [pages, young] = (self.pass)(&mut idle)?;
            passes.passes += 1;
            passes.ns += now() - began;
            passes.pages += pages;
            passes.young += young;
            if last || !self.once_more && over() {
                return Ok(passes);
            }
            (self.rests)();
        }
    }
}

/// `vcpus` fault memory in beside an ager, if there is one.
pub fn beside<F: Format, H: Host>(
    costs: &Costs,
    fixture: &first_touch::Fixture<'_, F, H, impl Fn(Gfn, Pfn) -> bool>,
    vcpus: &mut [impl Touch],
    ager: Option<Ager<impl FnMut(&mut Idle) -> Result<Aged> + Send, impl Fn() + Send>>,
) -> Result<(first_touch::Touched, Passes)> {
    let running = &AtomicU64::new(vcpus.len() as u64);
    let done = move || {
        // ORDER(running): as in `Ager::run`.
        running.fetch_sub(1, Relaxed);
    };
    let mut passes = Ok(Passes::default());
    let made = &mut passes;
    let ager = ager.map(|ager| Job { cpu: ager.cpu, ..Job::new("ager", move || *made = ager.run(running)) });
    let lap = fixture.run(costs, vcpus, done, ager)?;
    Ok((lap, passes?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_control_pages_that_are_not_told_are_found() {
        let setting = &setting(SLAT);
        let work = &setting.work;
        let parts = Parts::new(setting, 8);
        let all = parts.all();
        let vm = sim_vm(SimHost::new(all.len(), work), setting, all.len()).unwrap();
        let guests = parts.guests(&vm, work).unwrap();
        // Two pages, which the guests have touched before their parts.
        let check = |aged| was_young(aged + still_young(&vm, all).unwrap(), 2);
        assert!(check(0).ok, "{:?}", check(0));
        assert!(vm.young(&mut idle().unwrap(), hvas_of(all), Young::Clear));
        assert!(!check(0).ok && !check(1).ok && check(2).ok);
        drop(guests);
    }
}
