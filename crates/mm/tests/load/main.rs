//! A primary MMU under load. Four vCPUs of two VMs use memory through TLBs, and answer kicks late. A device
//! writes beside them. Two meddlers make random changes of every kind that a host can make to memory.
//!
//! The memory exceeds the limit of its group, so an evictor and faults take pages to swap all the time. A
//! neighbour in another group uses the same swap. One of the swap devices fails and recovers, and a thread
//! zeroes free frames. One VM logs writes, and a third VM has a guest of its guest.
//!
//! ```text
//!   guest ──▶ TLB ──▶ tables ──▶ frames, poisoned when they are freed ◀── the host's table ◀── meddlers
//!     │        keeps entries until a flush                                                       │
//!     └── each line of 64 bytes is right ◀────────────────── the ledger: what was dropped ◀──────┘
//! ```
//! | file | contents |
//! |---|---|
//! | [`changes`] | what meddlers do: a table with a row for each kind of change |
//! | [`guest`] | what a vCPU does |
//! | [`device`] | what writes beside the guests, through the address space and by pins |
//! | [`nested`] | a guest of a guest, in its own memory |
//! | [`groups`] | the limit, and the neighbour in another group |
//! | [`swap`] | devices by priority, one of which fails and recovers |
//! | [`log`] | a dirty log that loses nothing |
//! | [`oracle`] | what every byte must be |
//! | [`stage`] | the memory and the host, and the mistakes to be found |
//! | [`final_check`] | in the end everything is accounted for |

mod changes;
mod device;
mod final_check;
mod groups;
mod guest;
mod log;
mod nested;
mod oracle;
#[path = "../../../../slat/tests/engine/common/random.rs"]
mod random;
mod stage;
mod swap;
#[path = "../../../../slat/tests/engine/common/thorough.rs"]
mod thorough;

use changes::CHANGES;
use guest::Guest;
use log::Log;
use oracle::Lane;
use slat::baselines::{Baseline, MmuLock};
use slat::table::formats::{Ept4, Ept5, Npt4, Npt5};
use slat::{Gfn, Idle, Level, Reason, SecondaryMmu, Slot, SlotId, VcpuId, Vm};
use slat_mm::{Evictor, Zeroer};
use slat_vcpu::nested::Nest;
use slat_vcpu::{Cpu, Exit, Window};
use stage::{Mistake, Mistaken, PAGES, Primary, Stage, hva, hvas};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};
use thorough::thorough;

const VCPUS: u64 = 4;
const VMS: u64 = 2;
const MEDDLERS: u64 = 2;
const DEVICES: u64 = 1;
const EVICTORS: usize = 1;
/// Frames of each node that are kept zeroed.
const ZEROED: u64 = 256;
/// Changes of each meddler in each world: at night, and otherwise.
const STEPS: [u64; 2] = [150, 70];
/// If a mistake is not found within these changes, it is not found.
const MANY_STEPS: u64 = 20_000;
/// A world without a change for this long hangs. On a busy machine, a change may first have to evict many
/// pages.
const PATIENCE: Duration = Duration::from_secs(240);

/// How a world is built.
#[derive(Clone, Copy)]
struct Setting {
    lock: MmuLock,
    contexts: bool,
    thp: bool,
    mistake: Mistake,
    seed: u64,
}

/// The events of a world.
#[derive(Default)]
struct Tally {
    made: Vec<u64>,
    judged: u64,
    dropped: u64,
    refused: u64,
    wrong: u64,
}

fn run<F: Nest>(setting: Setting) -> Tally {
    let Setting { lock, contexts, thp, mistake, seed } = setting;
    let mut idle = Idle::take().expect("the test has its own thread");
    let stage = Stage::new(&mut idle, thp, mistake, seed, VCPUS + MEDDLERS + DEVICES);
    let mut mistaken = Vec::new();
    let mut register = |vm: &Arc<Vm<F, Primary>>| match mistake {
        Mistake::TellsLate | Mistake::Deaf(_) => {
            let to = vm.clone() as Arc<dyn SecondaryMmu>;
            let between = Arc::new(Mistaken { to, mistake, last: Mutex::default() });
            stage.space.register(&between);
            mistaken.push(between);
        }
        _ => stage.space.register(vm),
    };
    let vms: Vec<_> = (0..VMS)
        .map(|number| {
            let builder = Vm::<F, _>::builder(Primary::new(&stage)).vcpus((VCPUS / VMS) as u32);
            let builder = builder.baseline(Baseline::NONE.mmu_lock(lock).contexts(contexts));
            let vm = Arc::new(builder.build().expect("the arena is large"));
            register(&vm);
            let slot = Slot::new(SlotId(0), Gfn(0), PAGES, hva(0));
            let slot = if number == log::VM { slot.log_dirty() } else { slot };
            vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
            vm
        })
        .collect();
    let beside = mistake.runs_everything();
    *stage.log.lock() = beside.then(|| Log::new(&vms[log::VM as usize], &stage.ledger));
    let nested = beside.then(|| nested::vm::<F>(&mut idle, &stage, false));
    let ahead = beside.then(|| {
        let evictor = Evictor::start(&stage.space, EVICTORS).expect("the space has an LRU");
        (evictor, Zeroer::start(&stage.arena, ZEROED))
    });
    let window = window(&stage);
    let mut tally = Tally { made: vec![0; CHANGES.len()], ..Tally::default() };
    let mut lanes: Vec<Lane> = Vec::new();
    thread::scope(|scope| {
        let (stage, vms) = (&stage, &vms);
        let guests = (0..VCPUS).map(|number| {
            let (vm, id) = (&vms[(number % VMS) as usize], VcpuId((number / VMS) as u32));
            scope.spawn(move || guest::run(stage, vm.vcpu(id).unwrap(), window, number))
        });
        let guests: Vec<_> = guests.collect();
        // A device makes tables. No frame may become a table where guests write to free frames.
        let devices = if mistake.spoils_frames() { 0 } else { DEVICES };
        let devices = (VCPUS + MEDDLERS..).take(devices as usize);
        let devices = devices.map(|number| scope.spawn(move || device::run(stage, number)));
        let devices: Vec<_> = devices.collect();
        if let Some(nested) = &nested {
            scope.spawn(|| groups::run(stage, &stage.swap));
            scope.spawn(|| nested::run(stage, nested, window, 0..nested::VCPUS));
        }
        let meddlers = (VCPUS..VCPUS + MEDDLERS).map(|number| {
            let few = mistake.shows_in_the_end();
            let steps = if few { thorough(STEPS[0], STEPS[1]) } else { MANY_STEPS };
            scope.spawn(move || changes::run(stage, number, steps))
        });
        let meddlers: Vec<_> = meddlers.collect();
        // A guest that missed a notification keeps a page that the host has withdrawn. It asks for write
        // permission forever.
        let mut tell_all = || {
            for vm in vms {
                drop(vm.invalidate(hvas(&(0..PAGES)), Reason::Unmap).apply(&mut idle).settle());
            }
        };
        let over = || {
            meddlers.iter().all(ScopedJoinHandle::is_finished)
                || guests.iter().any(ScopedJoinHandle::is_finished)
        };
        // A change that waits for such a guest would wait forever, and no mistake would be found.
        while !wait_for_progress(stage, mistake, over) {
            tell_all();
        }
        stage.end();
        while mistake != Mistake::None && !guests.iter().all(ScopedJoinHandle::is_finished) {
            tell_all();
            // Guests wait for open notifications. One right after the other would leave them no moment to run.
            thread::park_timeout(Duration::from_millis(2));
        }
        for meddler in meddlers {
            let (lane, made) = meddler.join().unwrap();
            lanes.push(lane);
            tally.made.iter_mut().zip(made).for_each(|(sum, made)| *sum += made);
        }
        lanes.extend(guests.into_iter().chain(devices).map(|thread| thread.join().unwrap()));
    });
    tally.judged = lanes.iter().map(|lane| lane.judged).sum();
    tally.dropped = lanes.iter().map(|lane| lane.dropped).sum();
    tally.refused = stage.counts.refused.load(Relaxed);
    tally.wrong = stage.counts.wrong.load(Relaxed);
    if let Some(vm) = &nested {
        assert!(stage.space.unregister(&mut idle, vm));
    }
    drop((mistaken, ahead, nested));
    if mistake == Mistake::None {
        assert_eq!(tally.wrong, 0, "errors are reported above");
    }
    if tally.wrong == 0 && mistake.shows_in_the_end() {
        final_check::check(&mut idle, stage, vms, lanes);
    }
    tally
}

/// The frames, for vCPUs.
fn window(stage: &Stage) -> Window {
    // Frame numbers start after a huge page that is never used. SAFETY: the arena's mapping, which outlives the
    // vCPUs.
    unsafe { Window::new(stage.arena.base(), stage.arena.stats().frames + Level::M2.pages()) }
}

/// Waits until the world is over, and returns true. Where no thread makes progress, returns false if the world
/// has a mistake, and otherwise exits the process.
fn wait_for_progress(stage: &Stage, mistake: Mistake, over: impl Fn() -> bool) -> bool {
    let patience = if mistake == Mistake::None { PATIENCE } else { Duration::from_millis(500) };
    let mut last = (stage.counts.begun.load(Relaxed), Instant::now());
    while !over() {
        thread::park_timeout(Duration::from_millis(2));
        let begun = stage.counts.begun.load(Relaxed);
        if begun != last.0 {
            last = (begun, Instant::now());
        }
        if last.1.elapsed() > patience {
            if mistake != Mistake::None {
                return false;
            }
            eprintln!("seed {}: no change for {PATIENCE:?}, after {begun}", stage.seed);
            std::process::exit(1);
        }
    }
    true
}

/// A format, the lock, whether the VM uses the reasons of invalidations, and whether there are huge pages.
type Sort = (fn(Setting) -> Tally, MmuLock, bool, bool);

const SORTS: [Sort; 6] = [
    (run::<Npt4>, MmuLock::None, true, false),
    (run::<Ept4>, MmuLock::None, true, true),
    (run::<Npt5>, MmuLock::None, false, true),
    (run::<Ept5>, MmuLock::ReadWrite, true, true),
    (run::<Npt4>, MmuLock::ReadWrite, false, false),
    (run::<Ept4>, MmuLock::Exclusive, true, false),
];

/// Runs each sort of world once. With `SLAT_SOAK_SECONDS`, repeats them for that long with other seeds (`cargo
/// xtask soak`).
#[test]
fn no_guest_reads_what_is_not_its_own() {
    let seconds = std::env::var("SLAT_SOAK_SECONDS").ok().map(|seconds| seconds.parse().expect("seconds"));
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let mut made = vec![0; CHANGES.len()];
    for (seed, (run, lock, contexts, thp)) in (1..).zip(SORTS.into_iter().cycle()) {
        let last = seed > SORTS.len() as u64 && end.is_none_or(|end| Instant::now() >= end);
        if last {
            break;
        }
        let tally = run(Setting { lock, contexts, thp, mistake: Mistake::None, seed });
        println!(
            "{lock:?}, contexts {contexts}, thp {thp}: {} judged, {} dropped, {} refused, changes {:?}",
            tally.judged, tally.dropped, tally.refused, tally.made
        );
        assert!(tally.judged > 0 && tally.dropped > 0, "guests ran, and met changes");
        made.iter_mut().zip(tally.made).for_each(|(sum, made)| *sum += made);
    }
    for (change, made) in CHANGES.iter().zip(made) {
        assert!(made > 0, "no {}: the test misses a change", change.name);
    }
}

fn wrong(mistake: Mistake) -> u64 {
    run::<Npt4>(Setting { lock: MmuLock::None, contexts: true, thp: false, mistake, seed: 7 }).wrong
}

#[test]
fn negative_control_without_flushes_stale_translations_are_used() {
    assert!(wrong(Mistake::NoFlush) > 0);
}

#[test]
fn negative_control_a_host_that_frees_before_it_tells_is_found_out() {
    assert!(wrong(Mistake::TellsLate) > 0);
}

/// At the latest, the end of each world reads back what was written last.
#[test]
fn negative_control_a_swap_device_that_keeps_nothing_is_found_out() {
    let found = std::panic::catch_unwind(|| wrong(Mistake::KeepsNothing));
    assert!(found.map_or(true, |wrong| wrong > 0));
}

/// Runs on one thread.
#[test]
fn a_log_tells_of_stores_after_it_was_taken() {
    for (mistake, found) in [(Mistake::None, false), (Mistake::NoFlush, true)] {
        let mut idle = Idle::take().unwrap();
        let stage = Stage::new(&mut idle, false, mistake, 7, VCPUS);
        let builder = Vm::<Npt4, _>::builder(Primary::new(&stage));
        let vm = Arc::new(builder.build().unwrap());
        stage.space.register(&vm);
        vm.memory()
            .commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), PAGES, hva(0)).log_dirty()))
            .unwrap();
        let mut log = Log::new(&vm, &stage.ledger);
        let mut cpu = Cpu::new(vm.vcpu(VcpuId(0)).unwrap(), window(&stage)).untimed();
        let mut guest = Guest::new(&stage, log::VM);
        let mut lost = || {
            assert_eq!(cpu.run(&mut idle, &mut guest), Exit::Stopped);
            let once_more = |idle: &mut Idle| assert_eq!(cpu.run(idle, &mut guest), Exit::Stopped);
            log.harvest(&mut idle, &stage.ledger, once_more).is_some()
        };
        assert_eq!([lost(), lost()], [false, found], "{mistake:?}");
    }
}

/// Runs on one thread.
#[test]
fn changes_of_the_host_reach_a_guest_of_a_guest() {
    for (mistake, found) in [(Mistake::None, false), (Mistake::NestedForgotten, true)] {
        let mut idle = Idle::take().unwrap();
        let stage = Stage::new(&mut idle, false, mistake, 7, 1);
        let vm = nested::vm::<Npt4>(&mut idle, &stage, found);
        drop(idle);
        stage.end();
        nested::run(&stage, &vm, window(&stage), 0..1);
        assert_eq!(stage.counts.wrong.load(Relaxed) > 0, found, "{mistake:?}");
    }
}

#[test]
fn negative_control_a_reason_that_goes_unheard_is_found_out() {
    for why in [
        Reason::Unmap,
        Reason::Clear,
        Reason::Migrate,
        Reason::WriteProtect,
        Reason::SoftDirty,
        Reason::ChangePte,
        Reason::Reclaim,
    ] {
        assert!(wrong(Mistake::Deaf(why)) > 0, "{why:?}");
    }
}
