//! Everything at once: four vCPUs use their caches, while four meddlers change the host, the tables, the memslots and
//! the budget in every way, in whatever order the machine schedules them.
//!
//! ```text
//!   guest ──▶ caches ──▶ walker ──▶ the tables          host ◀── meddlers: pages move, go, lose W, become huge
//!     │         keep entries                              ▲      zap all, split, recover, write-protect
//!     │         until a flush                             │      slots: create, delete, move, log
//!     └──────── each use is judged ───────────────────────┘      budget, collect, read everything
//! ```
//! | file | contents |
//! |---|---|
//! | [`host`], [`arena`] | the primary MMU, which uses no frame twice; memory for tables, which detects strays |
//! | [`vcpu_thread`], [`walker`], [`caches`] | a vCPU that acts as hardware does |
//! | [`meddlers`], [`memslots`] | threads that change the VM |
//! | [`nested`] | a guest of the guest, and its hypervisor's table |
//! | [`vm_under_test`], [`slot_places`], [`logs`] | the known facts, and the judgement |
//! | [`final_checks`] | the final checks, in which everything is accounted for |
//! | [`progress`], [`tally`] | the progress of each thread; a watchdog |
//!
//! By default it is a fixed amount of work. `SLAT_SOAK_SECONDS` sets a duration: `cargo xtask soak`.

mod arena;
mod caches;
#[path = "../engine/common/tally.rs"]
mod counts;
mod final_checks;
mod host;
mod logs;
mod meddlers;
mod memslots;
mod nested;
mod progress;
#[path = "../engine/common/random.rs"]
mod random;
mod slot_places;
mod tally;
mod vcpu_thread;
mod vm_under_test;
mod walker;

use progress::Amount;
use slat::table::formats::{Ept4, Ept5, Npt4, Npt5};
use slat::*;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tally::Tally;
use vm_under_test::{Mistake, Setting, World};

const VCPUS: usize = 4;
const MEDDLERS: usize = 4;

/// Steps of each thread in each world, without a given duration.
const STEPS: u64 = 150;
/// Steps after which a mistake counts as not found.
const MANY_STEPS: u64 = 100_000;
/// Maximum duration of one world with a given duration; a short one is divided among the sorts.
const WORLD: Duration = Duration::from_secs(10);

/// Runs a world until each thread has done `amount`.
fn run<F: Format>(setting: Setting, amount: Amount, before: &Tally) -> Tally {
    let mut idle = Idle::take().unwrap();
    let world = World::<F>::new(setting, amount, &mut idle);
    let [nx, nested] = [(setting.nx_huge_pages, " nx"), (setting.nested, " nested")]
        .map(|(is, name)| if is { name } else { "" });
    let name = format!("{} {:?}{nx}{nested}", F::NAME, setting.lock);
    let report = || {
        let mut sum = *before;
        sum += world.tally();
        println!("{name}: {sum}");
    };
    std::thread::scope(|scope| {
        let world = &world;
        let vcpus = (0..VCPUS).map(|id| scope.spawn(move || vcpu_thread::run(world, VcpuId(id as u32))));
        let mut threads: Vec<_> = vcpus.collect();
        threads.extend((0..MEDDLERS).map(|index| scope.spawn(move || meddlers::run(world, index))));
        let watchdog =
            scope.spawn(|| world.watch.guard(report, || format!("{name}: {:#?}", world.vm.stats())));
        let results: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        world.watch.over();
        watchdog.thread().unpark();
        if let Some(panicked) = results.into_iter().find_map(Result::err) {
            std::panic::resume_unwind(panicked);
        }
    });
    if setting.mistake == Mistake::None {
        assert_eq!(world.counts.wrong.load(Relaxed), 0, "{name}: said above");
        final_checks::check(&world, &mut idle);
    }
    world.tally()
}

/// A format, its VM's settings, and whether its vCPUs run L2.
type Sort = (fn(Setting, Amount, &Tally) -> Tally, MmuLock, bool, bool);

const SORTS: [Sort; 6] = [
    (run::<Npt4>, MmuLock::None, false, true),
    (run::<Ept4>, MmuLock::None, true, false),
    (run::<Npt5>, MmuLock::None, true, true),
    (run::<Ept5>, MmuLock::None, false, false),
    (run::<Npt4>, MmuLock::ReadWrite, true, false),
    (run::<Ept4>, MmuLock::Exclusive, false, true),
];

/// Runs every sort of world, one after the other, for the given duration; each once without one.
fn soak(time: Option<Duration>) -> Tally {
    let end = time.map(|time| (Instant::now() + time, (time / SORTS.len() as u32).min(WORLD)));
    let mut sum = Tally::default();
    for (seed, &(run, lock, nx_huge_pages, nested)) in (1..).zip(SORTS.iter().cycle()) {
        let amount = match end {
            None if seed > SORTS.len() as u64 => break,
            None => Amount::Steps(STEPS),
            Some((end, _)) if Instant::now() >= end => break,
            Some((end, each)) => Amount::Until(end.min(Instant::now() + each)),
        };
        sum += run(Setting { lock, nx_huge_pages, nested, mistake: Mistake::None, seed }, amount, &sum);
    }
    sum
}

#[test]
fn everything_at_once() {
    let time = std::env::var("SLAT_SOAK_SECONDS").ok().map(|seconds| {
        Duration::from_secs_f64(seconds.parse().expect("SLAT_SOAK_SECONDS is a number of seconds"))
    });
    let sum = soak(time);
    println!("in all: {sum}");
    assert_eq!(sum.stale, 0);
    for (times, what) in sum.must_have_happened() {
        assert!(times > 0, "no {what}: the test has missed something");
    }
}

/// Runs a world with a mistake until the vCPUs find it; another world if, beside other work, they do not.
fn stale_uses(mistake: Mistake) -> u64 {
    let stale = |seed| {
        let setting =
            Setting { lock: MmuLock::None, nx_huge_pages: false, nested: seed % 2 == 1, mistake, seed };
        run::<Npt4>(setting, Amount::Steps(MANY_STEPS), &Tally::default()).stale
    };
    (7..11).map(stale).find(|&stale| stale > 0).unwrap_or(0)
}

#[test]
fn negative_control_without_flushes_stale_translations_are_used() {
    assert!(stale_uses(Mistake::NoFlush) > 0);
}

#[test]
fn negative_control_a_host_that_changes_first_and_tells_later_is_found_out() {
    assert!(stale_uses(Mistake::RashHost) > 0);
}

#[test]
fn negative_control_changes_at_once_that_are_made_when_they_have_ended_are_found_out() {
    assert!(stale_uses(Mistake::EndsFirst) > 0);
}
