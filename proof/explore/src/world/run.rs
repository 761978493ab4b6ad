//! Runs a plan.

use super::observer::Observer;
use super::primary_mmu::{Handle, Primary};
use super::tlb::Tlb;
use super::windows::Windows;
use super::{BOOKS, LENT, PANICKED, STUCK, World, Wrong, thread, vcpu};
use crate::plan::{Log, Plan, Role, Tables};
use slat::inject::{self, Point};
use slat::table::formats::{Ept4, Ept4NoAd, Pae};
use slat::{Access, DirtyLog, Format, Gfn, Idle, Level, RingSize, Span, Splitting, Track, Vm};
use slat_machine::explore::{Ended, stop};
use slat_machine::{Costs, Job};
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The first failure.
    pub wrong: Option<Wrong>,
    /// A hash of all accesses in order. Equal runs have equal hashes.
    pub hash: u64,
    /// Number of accesses.
    pub steps: u64,
    /// The story, if wanted.
    pub story: Vec<String>,
}

/// Runs a plan on a fresh thread.
pub fn run(plan: &Plan, tells: bool) -> Outcome {
    std::thread::scope(|scope| {
        let run = || run_here(plan, tells);
        let worker = std::thread::Builder::new().name("world".to_owned()).spawn_scoped(scope, run);
        worker.expect("a thread").join().expect("panics of a world are caught")
    })
}

fn run_here(plan: &Plan, tells: bool) -> Outcome {
    match plan.tables {
        Tables::Ept4 => run_with::<Ept4>(plan, tells),
        Tables::Ept4NoAd => run_with::<Ept4NoAd>(plan, tells),
        Tables::Pae => run_with::<Pae>(plan, tells),
    }
}

fn build<F: Format>(plan: &Plan, host: Handle) -> Vm<F, Handle> {
    let splitting = |lazy| if lazy { Splitting::Lazy } else { Splitting::Eager };
    let log = match plan.log {
        Log::Writes { lazy } => DirtyLog::bitmap().splitting(splitting(lazy)),
        Log::Bits { lazy, set } => {
            let log = DirtyLog::bitmap().track(Track::DirtyBits).splitting(splitting(lazy));
            if set { log.initially_set() } else { log }
        }
        Log::Ring => DirtyLog::ring(RingSize::new(4096).expect("within the rules")),
    };
    Vm::builder(host)
        .vcpus(plan.vcpus())
        .dirty_log(log)
        .nx_huge_pages(plan.nx_huge_pages)
        .table_budget(plan.budget.map_or(u64::MAX, |pages| pages << 12))
        .build()
        .expect("there is memory")
}

thread_local! {
    /// The message of a panic in this world.
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
    /// True on a thread that runs a world.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Records the panics of worlds as failures instead of printing them.
fn quiet_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if INSIDE.get() {
                SAID.with_borrow_mut(|said| _ = said.get_or_insert_with(|| info.to_string()));
            } else {
                usual(info);
            }
        }));
    });
}

/// The failures that the plan injects.
fn failing<R>(plan: &Plan, work: impl FnOnce() -> R) -> R {
    match (plan.alloc_fails, plan.cas_fails) {
        (0, 0) => work(),
        (0, many) => inject::every(Point::Cas, many, work).0,
        (many, _) => inject::every(Point::Alloc, many, work).0,
    }
}

fn run_with<F: Format>(plan: &Plan, tells: bool) -> Outcome {
    quiet_panics();
    INSIDE.set(true);
    let host = Primary::new(plan);
    let world = ManuallyDrop::new(World::<F> {
        vm: build(plan, Handle(host.clone())),
        host,
        plan,
        tlbs: (0..plan.vcpus()).map(|_| RefCell::new(Tlb::new(plan.faulty_tlbs))).collect(),
        windows: Windows::new(),
        tracked: RefCell::default(),
        kept: RefCell::default(),
        copies: RefCell::default(),
        steps: Cell::new(0),
        wrong: RefCell::new(None),
        story: tells.then(RefCell::default),
    });
    let observer = Observer::new(&world);
    let ended = catch_unwind(AssertUnwindSafe(|| run_world(&world, &observer))).ok();
    let (hash, steps) = (observer.hash(), world.steps());
    let holds = ended == Some(Ended::All) && !world.is_wrong();
    if !holds {
        if ended == Some(Ended::Stuck) {
            world.wrong(STUCK, || observer.sites());
        }
        world.wrong(PANICKED, || SAID.take().unwrap_or_default());
    }
    let story = world.story.as_ref().map_or_else(Vec::new, RefCell::take);
    let mut outcome = Outcome { wrong: world.wrong.borrow().clone(), hash, steps, story };
    // Coroutines of a world that failed stay suspended, so their borrows must stay valid.
    if holds {
        let host = world.host.clone();
        drop(ManuallyDrop::into_inner(world));
        if host.memory.missing() != 0 {
            outcome.wrong = Some(Wrong { what: LENT, how: format!("{} chunks", host.memory.missing()) });
        }
    }
    outcome
}

fn run_world<F: Format>(world: &World<F>, observer: &Observer<F>) -> Ended {
    let plan = world.plan;
    // SAFETY: the world does not move while it runs, and no page is requested later.
    unsafe { world.host.listen(&world.vm) };
    {
        let mut idle = Idle::take().expect("one on this thread");
        for &(slot, window, logs) in &plan.slots {
            world.create(&mut idle, slot, window, logs);
        }
    }
    let job = |cpu| {
        let work = move || {
            let run = || match cpu {
                &crate::plan::Cpu { role: Role::Vcpu(id), .. } => vcpu::run(world, id, cpu),
                cpu => thread::run(world, cpu),
            };
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                world.wrong(PANICKED, || SAID.take().unwrap_or_default());
                stop();
            }
        };
        match cpu.role {
            Role::Vcpu(id) => Job::vcpu(id, work),
            Role::Thread => Job::new("thread", work),
        }
    };
    let costs = Costs { park_after: plan.park_after_ns as f64, ..Costs::SERVER };
    let jobs = plan.cpus.iter().map(job).collect();
    let ended = failing(plan, || slat_machine::explore::run(&costs, observer, jobs));
    if ended == Ended::All && !world.is_wrong() {
        end(world);
    }
    ended
}

/// Checks the world after all threads have ended.
fn end<F: Format>(world: &World<F>) {
    let (mut idle, vm) = (Idle::take().expect("one on this thread"), &world.vm);
    world.check();
    world.harvest(&mut idle, true);
    world.compare_copies();
    vm.collect(&mut idle);
    let mut leaves = [0; 3];
    vm.memory().lockless(&mut idle).for_each(Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)), |found| {
        leaves[usize::from(found.level.number()) - 1] += 1;
        let leaf = found.leaf;
        let access = if leaf.perms.allows(Access::Write) { Access::Write } else { Access::Read };
        let pages = if found.level == Level::K4 { &[0][..] } else { &[0, 1, 259, 511] };
        for &page in pages {
            world.left_over(found.gfns.start + page, leaf.pfn + page, access);
        }
    });
    let pages = vm.table_pages(&mut idle);
    if pages.reachable + pages.waiting + pages.free != pages.allocated || pages.waiting != 0 {
        world.wrong(BOOKS, || format!("{pages:?}"));
    }
    let counted = vm.stats().leaves;
    if counted != leaves {
        world.wrong(BOOKS, || format!("{counted:?} leaves counted, {leaves:?} there"));
    }
}
