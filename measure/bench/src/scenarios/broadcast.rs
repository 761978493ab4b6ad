//! A host moves pages that all vCPUs use, and every processor has to forget them: by kicks, or by a flush that hardware
//! broadcasts (Arm's TLBI, AMD's INVLPGB, RISC-V's remote fences).
//!
//! ```text
//! host    ── invalidate ─▶ kicks: each vCPU leaves its guest, answers, enters ─────────────▶ the page is another frame
//!                       └▶ a broadcast: one at a time, there and back to the farthest socket ▶
//! ```
//! | column | [`Host::broadcast_flush`] says |
//! |---|---|
//! | kicks | no, at once |
//! | broadcast, some out of reach | no, after a broadcast to every other processor; then all are kicked |
//! | broadcast | yes, after a broadcast to all |
//!
//! The figure is the host's time for a move. The cost of a broadcast is assumed, as all of [`Costs::SERVER`](crate::world::Costs)
//! is: a message to the farthest processor and its answer, and 100 ns there; broadcasts wait for each other. On threads locks
//! stand in for the hardware. Their time beyond that is left out of the figure: it says nothing of hardware.

use crate::parts::broadcast_bus::{Processors, Reach};
use crate::scenarios::prelude::*;

/// Nanoseconds that the host computes between two moves.
const PAUSE_NS: u64 = 10_000;
/// Accesses to a page in a row.
const ACCESSES: u64 = 32;
/// Pages that guests use, and those of them that are moved.
const PAGES: u64 = 256;
const MOVED: u64 = 32;
/// The first move is not timed: on threads it brings the code into the caches, which in virtual time has no price.
const WARM_UP: bool = cfg!(not(virtual_time));
/// The frame of a page that has been moved, counted from the one before.
const ANOTHER: u64 = 1 << 30;

/// Flushes kick vCPUs: slat on a host that broadcasts none.
pub const KICKS: Column = Column::lockless("kicks");
/// They are broadcast, and some processors are out of reach, so that vCPUs are kicked, too.
pub const SOME_REACHED: Column = Column::lockless("broadcast, some out of reach");
/// They are broadcast to all processors.
pub const ALL_REACHED: Column = Column::lockless("broadcast");

/// Its row of the registry.
pub static SCENARIO: Scenario = Scenario {
    name: "broadcast",
    asks: "A host moves pages that all vCPUs use: flushed by kicks, and by broadcasts of the hardware",
    series: PatchSeries::Kvm,
    simulated: Simulated {
        vcpus: "8,112,416",
        example: "-v 8,112,416",
        unused: &[
            NO_AGER,
            (&["host_ns", "handlers", "handler_ns", "zeroing", "host_first", "mm_lines"], ALL_THERE),
        ],
        reported: false,
        ..Simulated::of(run_once, &[KICKS, SOME_REACHED, ALL_REACHED])
    },
    #[cfg(not(virtual_time))]
    measured: Measured {
        takes: ["2 s", "60 MiB"],
        ci: &["-v 1,2"],
        quick: &["--runs 3"],
        full: &[""],
        ..Measured::of::<ColumnFlags>()
    },
};

/// The TLB of a vCPU's processor.
struct Own<'p>(&'p Processors, usize);

impl Translations for Own<'_> {
    fn flush_all(&mut self) {
        self.0.step(self.1, Tlb::flush_all);
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        self.0.step(self.1, |tlb| tlb.flush(gfns));
    }
}

impl OfProcessor for Own<'_> {
    fn with<T>(&mut self, work: impl FnOnce(&mut Tlb) -> T) -> T {
        self.0.step(self.1, work)
    }
}

/// Pages of a VM that are moved, once.
struct MovedPages {
    vm: SimVm,
    processors: Arc<Processors>,
    moved: u64,
    /// Of every page, whether its first frame is free: in atomics that cost nothing, as is the next.
    freed: Vec<AtomicBool>,
    over: AtomicBool,
}

/// A guest that goes round all pages.
struct Guest<'p> {
    pages: &'p MovedPages,
    order: PageOrder,
    /// Pages to use before it leaves; `None`: as many as it can until the host has done.
    left: Option<u64>,
}

impl Program for Guest<'_> {
    fn next(&mut self) -> Step {
        match &mut self.left {
            Some(0) => return Step::Leave,
            Some(left) => *left -= 1,
            None if self.pages.over.load(Relaxed) => return Step::Leave,
            None => {}
        }
        Step::Load(Gfn(self.order.go_on()))
    }

    fn judge(&self, gfn: Gfn, pfn: Pfn) -> Use {
        if pfn == another(gfn).pfn {
            Use::Right
        } else if pfn != first_page(gfn).pfn {
            Use::Foreign
        } else if self.pages.freed[gfn.0 as usize].load(Relaxed) {
            Use::Stale
        } else {
            Use::Right
        }
    }
}

impl MovedPages {
    fn new(setting: &Setting<'_>, reach: Reach) -> Result<Self> {
        let processors = Arc::new(Processors::new(setting, reach));
        let host = SimHost::filled(PAGES, &setting.work).on(Arc::clone(&processors));
        let vm = sim_vm(host, setting, PAGES)?;
        let freed = (0..PAGES).map(|_| AtomicBool::new(false)).collect();
        // On threads each poll of a guest is another: many of them make a mean.
        let moved = if setting.quick && cfg!(virtual_time) { MOVED / 4 } else { MOVED };
        Ok(Self { vm, processors, moved, freed, over: AtomicBool::new(false) })
    }

    /// Moves pages, and says how many nanoseconds the timed moves took.
    fn moves(&self) -> Result<u64> {
        let (mut idle, mut ns) = (idle()?, 0);
        for gfn in gfns(Span::sized(Gfn(0), self.moved)) {
            compute(PAUSE_NS);
            self.processors.stand_in_ns.store(0, Relaxed);
            let began = now();
            let change =
                self.vm.invalidate(hvas_of(Span::sized(gfn, 1)), Reason::Migrate).apply(&mut idle).settle();
            self.vm.host().set(hva_of(gfn), Some(another(gfn)));
            drop(change);
            let took = elapsed(began).saturating_sub(self.processors.stand_in_ns.load(Relaxed));
            ns += if WARM_UP && gfn.0 == 0 { 0 } else { took };
            self.freed[gfn.0 as usize].store(true, Relaxed);
        }
        Ok(ns)
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Point> {
        let tlb = |number| Own(&self.processors, number as usize);
        let guest = |number| {
            let order = PageOrder::new(setting, number, PAGES);
            Guest { pages: self, order, left: Some(PAGES) }
        };
        let mut vcpus = VcpuPrograms::warm(&self.vm, setting, ACCESSES, tlb, guest)?;
        let before = self.vm.stats().flushes.paid;
        let mut took = Ok(0);
        // Guests go round until the host has done, and then once more.
        let mut jobs = vcpus.jobs(|idle, cpu, guest| {
            guest.left = None;
            cpu.run(idle, guest)?;
            guest.left = Some(PAGES);
            cpu.run(idle, guest)
        });
        jobs.push(Job::new("host", || {
            took = self.moves();
            self.over.store(true, Relaxed);
        }));
        let stats = run(setting.costs, jobs);
        let (took, seen) = (took?, vcpus.seen()?);
        let per_move = |count: u64| count as f64 / self.moved as f64;
        let lost = per_move(vcpus.lost_ns(&stats, &seen));
        let flushes = self.vm.stats().flushes.paid - before;
        let figures = vec![
            Figure::new("ns per move", took as f64 / (self.moved - u64::from(WARM_UP)) as f64, "ns"),
            Figure::new("lost by each vCPU", lost / f64::from(setting.vcpus), "ns a move"),
            Figure::new("faults", per_move(seen.faults()), "a move"),
        ];
        let mut checks = seen.checks().to_vec();
        checks.push(Check::all("a flush for each page that is moved", flushes, self.moved));
        if self.processors.reach != Reach::None {
            let done = self.processors.done.load(Relaxed);
            checks.push(Check::all("each was broadcast", done, self.moved));
        }
        // On threads none is counted.
        if cfg!(virtual_time) {
            let ok = (stats.kicks == 0) == (setting.column == ALL_REACHED);
            let name = "vCPUs are kicked, but where a broadcast reaches all";
            checks.push(Check { name, ok, detail: format!("{} kicks", stats.kicks) });
        }
        Ok(Point { operations: self.moved, flushes, checks, ..Point::of(setting, figures, stats) })
    }
}

/// The frame behind a page that has been moved.
fn another(gfn: Gfn) -> HostPage {
    HostPage { pfn: first_page(gfn).pfn + ANOTHER, ..first_page(gfn) }
}

/// Runs the scenario once.
fn run_once(setting: &Setting<'_>) -> Result<Point> {
    let reach = match setting.column {
        ALL_REACHED => Reach::All,
        SOME_REACHED => Reach::Some { believed: false },
        _ => Reach::None,
    };
    MovedPages::new(setting, reach)?.run(setting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_control_a_broadcast_that_is_believed_to_reach_all_and_does_not_is_found() {
        let setting = &setting(ALL_REACHED);
        let point = MovedPages::new(setting, Reach::Some { believed: true }).unwrap().run(setting).unwrap();
        assert_eq!(failing(&point.checks), ["no guest used a frame after it had been taken away"]);
    }

    /// Simulated only: a thread's clock says nothing of hardware.
    #[cfg(virtual_time)]
    #[test]
    fn a_broadcast_costs_much_less_than_kicks_and_one_that_is_incomplete_saves_little() {
        let ns = |column| {
            let setting = Setting { vcpus: 64, ..setting(column) };
            run_once(&setting).unwrap().figures[0].value
        };
        let [kicks, some, all] = [KICKS, SOME_REACHED, ALL_REACHED].map(ns);
        assert!(10.0 * all < kicks && 10.0 * all < some, "{kicks} {some} {all}");
    }
}
