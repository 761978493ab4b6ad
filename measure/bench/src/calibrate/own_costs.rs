//! The costs of a CPU's own work: accesses to a line that it has, the clock, pages, waiting, wake-ups on the same CPU.
//!
//! Everything here can be done by several CPUs at once, each for itself, and is told as the mean of them: what a CPU is
//! worth depends on whether its neighbour works.

use crate::threads::harness::{Line, shuffle};
use crate::threads::machine_info::pin;
use crate::threads::samples::Series;
use crate::world;
use crate::world::Job;
use parking_lot::Mutex;
use slat_cli::thread::joined;
use slat_machine::Costs;
use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};
use std::thread;
use std::time::Instant;

/// Of a probe, so many stretches are timed, and the middle one counts: a CPU that is taken away for a while spoils one.
const STRETCHES: usize = 9;

/// A line of memory, and the one that processors fetch with it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Cell(pub AtomicU64);

/// The time of each of so many operations, in nanoseconds.
fn each<T>(operations: u32, mut operation: impl FnMut() -> T) -> f64 {
    let stretch = || {
        let began = Instant::now();
        for _ in 0..operations {
            black_box(operation());
        }
        began.elapsed().as_nanos() as f64 / f64::from(operations)
    };
    Series::new(std::iter::repeat_with(stretch).take(STRETCHES).collect()).median()
}

/// The mean of what `probe` says on each of the first `cpus` CPUs, at the same time.
fn on(cpus: usize, probe: impl Fn() -> f64 + Sync) -> f64 {
    let line = Line::new(cpus);
    let all: f64 = thread::scope(|scope| {
        let ask = |cpu| {
            let (line, probe) = (&line, &probe);
            move || {
                pin(cpu);
                line.cross();
                probe()
            }
        };
        let asked: Vec<_> = (0..cpus).map(|cpu| slat_cli::thread::start(scope, ask(cpu))).collect();
        asked.into_iter().map(|asked| joined(asked.join())).sum()
    });
    all / cpus as f64
}

/// Each operation that a CPU does alone, by the name of its cost, on each of the first `cpus` CPUs.
pub fn probes(cpus: usize) -> Vec<(&'static str, f64)> {
    // ORDER(price): nothing pairs with any of these.
    vec![
        // As a walker's loads, the store that leaves a section, and the installation of a leaf.
        ("load", of_cell(cpus, 20_000, |cell| cell.load(Acquire))),
        ("store", of_cell(cpus, 20_000, |cell| cell.store(1, Release))),
        ("rmw", of_cell(cpus, 5000, |cell| cell.fetch_add(1, AcqRel))),
        ("fence", fenced(cpus)),
        ("clock", on(cpus, || each(500, Instant::now))),
        ("zero", zero(cpus)),
        ("read", in_jobs(cpus, 100, world::read_page)),
        ("word", word(cpus)),
        ("copy", copy(cpus)),
    ]
}

/// An access to a line that the CPU has.
fn of_cell<T>(cpus: usize, times: u32, access: impl Fn(&AtomicU64) -> T + Sync) -> f64 {
    on(cpus, || {
        let cell = Cell::default();
        each(times, || access(black_box(&cell.0)))
    })
}

/// A full fence, after a store that it has to wait for.
fn fenced(cpus: usize) -> f64 {
    on(cpus, || {
        let cell = Cell::default();
        let both = each(5000, || {
            // ORDER(price): nothing pairs with either; a symmetric barrier is such a pair.
            black_box(&cell).0.store(1, Release);
            fence(SeqCst);
        });
        // ORDER(price): as above.
        (both - each(5000, || black_box(&cell).0.store(1, Release))).max(0.0)
    })
}

/// `work`, while all but one of the first `busy` CPUs compute by the clock, as a guest or a host does between two operations of
/// the engine. CPUs that share a core slow each other down.
pub fn while_busy<T>(busy: usize, work: impl FnOnce() -> T) -> T {
    struct Over<'o>(&'o AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    let over = &AtomicBool::new(false);
    thread::scope(|scope| {
        // Also when `work` panics.
        let _over = Over(over);
        for cpu in 1..busy {
            slat_cli::thread::start(scope, move || {
                pin(cpu);
                while !over.load(Relaxed) {
                    world::compute(1000);
                }
            });
        }
        work()
    })
}

/// The time of `act` on each of the first `cpus` CPUs, as a job of the world that scenarios run in.
fn in_jobs(cpus: usize, times: u32, act: impl Fn() + Sync) -> f64 {
    let sum = Mutex::new(0.0);
    let job = |_| {
        let (sum, act) = (&sum, &act);
        Job::new("probe", move || {
            // Values that are made at their first use are made now.
            act();
            let time = each(times, act);
            *sum.lock() += time;
        })
    };
    world::run(&Costs::SERVER, (0..cpus).map(job).collect());
    sum.into_inner() / cpus as f64
}

/// Zeroing a page that is in no cache.
pub fn zero(cpus: usize) -> f64 {
    in_jobs(cpus, 100, world::zero_page)
}

/// A look at one of 512 words in a row, for one bit, in a table that no first-level cache holds: as a dead table is looked
/// through.
fn word(cpus: usize) -> f64 {
    const WORDS: usize = 512;
    const TABLES: usize = 64;
    on(cpus, || {
        let tables = vec![[7_u64; WORDS]; TABLES];
        let mut order: Vec<usize> = (0..TABLES).collect();
        shuffle(&mut order);
        let (mut next, mut leaves) = (order.iter().cycle(), 0);
        let table = each(200, || {
            let Some(&at) = next.next() else { return };
            leaves += black_box(&tables[at]).iter().map(|&word| u32::from(word as u32 & 7 != 0)).sum::<u32>();
        });
        black_box(leaves);
        table / WORDS as f64
    })
}

/// Copying a line of a node of sixteen lines, as a change of the memslots copies nodes of their trees: into memory that is allocated
/// for it, while the oldest of some copies is freed. The order of the nodes is one that no processor foresees, and no first-level
/// cache holds them.
fn copy(cpus: usize) -> f64 {
    const LINES: usize = 16;
    const NODES: usize = 512;
    on(cpus, || {
        let mut nodes: Vec<Box<Node>> = (0..NODES).map(|_| Box::new([[1; 8]; LINES])).collect();
        let mut order: Vec<usize> = (0..NODES).collect();
        shuffle(&mut order);
        let mut turns = order.iter().cycle();
        // The memory that a grace period keeps.
        let mut old: VecDeque<Box<Node>> = (0..LINES).map(|_| Box::new([[1; 8]; LINES])).collect();
        let node = each(200, || {
            let Some(&at) = turns.next() else { return };
            let copy = black_box(&nodes[at]).clone();
            old.push_back(std::mem::replace(&mut nodes[at], copy));
            old.pop_front();
        });
        node / LINES as f64
    })
}

/// A node of a tree of memslots.
type Node = [[u64; 8]; 16];

/// A wake-up, from the call to the moment when the sleeper runs, where both threads have the same CPU.
pub fn wake_up() -> f64 {
    in_jobs(1, 20, || world::hand_over(|| ())) / 2.0
}

/// A turn of a loop that waits.
pub fn pause(cpus: usize) -> f64 {
    on(cpus, || each(1000, std::hint::spin_loop))
}

/// Giving the CPU away while no other thread wants it.
pub fn give_away(cpus: usize) -> f64 {
    on(cpus, || each(50, thread::yield_now))
}
