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
//! | [`chaos`], [`hazards`] | every other operation; callbacks that panic or wait: `cargo xtask chaos` |
//! | [`nested`] | a guest of the guest, and its hypervisor's table |
//! | [`vm_under_test`], [`slot_places`], [`logs`] | the known facts, and the judgement |
//! | [`final_checks`] | the final checks, in which everything is accounted for |
//! | [`progress`], [`tally`] | the progress of each thread; a watchdog |
//!
//! By default it is a fixed amount of work. `SLAT_SOAK_SECONDS` sets a duration: `cargo xtask soak`; so does
//! `SLAT_CHAOS_SECONDS` for the worlds with chaos, `cargo xtask chaos`, and `SLAT_CHAOS_SEED` their first seed.

mod arena;
mod caches;
mod chaos;
#[path = "../engine/common/tally.rs"]
mod counts;
mod final_checks;
mod hazards;
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
use slat::baselines::MmuLock;
use slat::table::formats::{Arm64NoAd, Ept4, Ept4NoAd, Ept5, Npt4, Npt5, Sv39x4};
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
    let [nx, nested, chaos] =
        [(setting.nx_huge_pages, " nx"), (setting.nested, " nested"), (setting.chaos, " chaos")]
            .map(|(is, name)| if is { name } else { "" });
    let name = format!("{} {:?}{nx}{nested}{chaos} seed {}", F::NAME, setting.lock, setting.seed);
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
        assert_eq!(world.vm.host().chaos.late_reads.load(Relaxed), 0, "{name}: L1's table, read too late");
        chaos::clear_away(&world, &mut idle);
        final_checks::check(&world, &mut idle);
    }
    world.tally()
}

/// A world of one format.
type Run = fn(Setting, Amount, &Tally) -> Tally;
type Sort = (Run, Setting);

const SORTS: [Sort; 6] = [
    (run::<Npt4>, Setting { nested: true, ..Setting::PLAIN }),
    (run::<Ept4>, Setting { nx_huge_pages: true, ..Setting::PLAIN }),
    (run::<Npt5>, Setting { nx_huge_pages: true, nested: true, ..Setting::PLAIN }),
    (run::<Ept5>, Setting::PLAIN),
    (run::<Npt4>, Setting { lock: MmuLock::ReadWrite, nx_huge_pages: true, ..Setting::PLAIN }),
    (run::<Ept4>, Setting { lock: MmuLock::Exclusive, nested: true, ..Setting::PLAIN }),
];

const BITS: DirtyLog = DirtyLog::bitmap().track(Track::DirtyBits);

/// The worlds of [`chaos`].
fn chaotic_sorts() -> [Sort; 6] {
    let chaos = Setting { chaos: true, ..Setting::PLAIN };
    let ring = DirtyLog::ring(RingSize::new(4096).expect("a good size"));
    [
        (run::<Npt4>, Setting { nested: true, ..chaos }),
        (run::<Ept4>, Setting { log: BITS, nested: true, ..chaos }),
        (run::<Ept4NoAd>, Setting { nx_huge_pages: true, ..chaos }),
        (run::<Sv39x4>, Setting { log: BITS.initially_set(), ..chaos }),
        (run::<Arm64NoAd>, Setting { log: ring, ..chaos }),
        (run::<Npt5>, Setting { log: DirtyLog::bitmap().splitting(Splitting::Lazy), nested: true, ..chaos }),
    ]
}

/// Runs every sort of world, one after the other, for the given duration; each once without one. The seed of the first
/// one is `first`.
fn soak(sorts: &[Sort], time: Option<Duration>, first: u64) -> Tally {
    let end = time.map(|time| (Instant::now() + time, (time / sorts.len() as u32).min(WORLD)));
    let mut sum = Tally::default();
    for (nth, &(run, setting)) in sorts.iter().cycle().enumerate() {
        let amount = match end {
            None if nth == sorts.len() => break,
            None => Amount::Steps(STEPS),
            Some((end, _)) if Instant::now() >= end => break,
            Some((end, each)) => Amount::Until(end.min(Instant::now() + each)),
        };
        sum += run(Setting { seed: first + nth as u64, ..setting }, amount, &sum);
    }
    sum
}

/// Returns the duration that a variable sets.
fn duration(variable: &str) -> Option<Duration> {
    let parsed =
        |seconds: String| seconds.parse().unwrap_or_else(|_| panic!("{variable}: a number of seconds"));
    std::env::var(variable).ok().map(|seconds| Duration::from_secs_f64(parsed(seconds)))
}

/// `cargo xtask chaos`.
#[test]
fn chaos() {
    let seed = std::env::var("SLAT_CHAOS_SEED").ok();
    let seed = seed.map_or(1, |seed| seed.parse().expect("SLAT_CHAOS_SEED is a number"));
    let sum = soak(&chaotic_sorts(), duration("SLAT_CHAOS_SECONDS"), seed);
    println!("in all: {sum}");
    assert_eq!(sum.stale, 0);
}

#[test]
fn everything_at_once() {
    let sum = soak(&SORTS, duration("SLAT_SOAK_SECONDS"), 1);
    println!("in all: {sum}");
    assert_eq!(sum.stale, 0);
    for (times, what) in sum.must_have_happened() {
        assert!(times > 0, "no {what}: the test has missed something");
    }
}

/// Runs a world with a mistake until the vCPUs find it; another world if, beside other work, they do not.
fn stale_uses(mistake: Mistake) -> u64 {
    let stale = |seed| {
        let setting = Setting { nested: seed % 2 == 1, mistake, seed, ..Setting::PLAIN };
        run::<Npt4>(setting, Amount::Steps(MANY_STEPS), &Tally::default()).stale
    };
    (7..11).map(stale).find(|&stale| stale > 0).unwrap_or(0)
}

#[test]
fn negative_control_without_flushes_stale_translations_are_used() {
    assert!(stale_uses(Mistake::NoFlush) > 0);
}

#[test]
#[cfg_attr(feature = "oracle-always", ignore = "breaks the contract, which the oracle reports")]
fn negative_control_a_host_that_changes_first_and_tells_later_is_found_out() {
    assert!(stale_uses(Mistake::RashHost) > 0);
}

#[test]
#[cfg_attr(feature = "oracle-always", ignore = "breaks the contract, which the oracle reports")]
fn negative_control_changes_at_once_that_are_made_when_they_have_ended_are_found_out() {
    assert!(stale_uses(Mistake::EndsFirst) > 0);
}
