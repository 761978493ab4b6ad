//! What a CPU's own work costs: accesses to a line that it has, the clock, pages, waiting, wake-ups on the same CPU.
//!
//! Everything here can be done by several CPUs at once, each for itself, and is told as the mean of them: what a CPU is
//! worth depends on whether its neighbour works.

use crate::bench::harness::{Line, Series, shuffle};
use crate::bench::machine::pin;
use slat_cli::thread::joined;
use slat_machine::Costs;
use slat_threads::world::{self, Job};
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Release, SeqCst},
    fence,
};
use std::thread;
use std::time::Instant;

/// Of a probe, so many stretches are timed, and the middle one counts: a CPU that is taken away for a while spoils one.
const STRETCHES: usize = 9;

/// A line of memory, and the one that processors fetch with it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Cell(pub AtomicU64);

/// What each of so many operations takes, in nanoseconds.
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

/// A load from a line that the CPU has.
pub fn load(cpus: usize) -> f64 {
    on(cpus, || {
        let cell = Cell::default();
        // ORDER(price): nothing pairs with it; the walker's loads are such loads.
        each(20_000, || black_box(&cell).0.load(Acquire))
    })
}

/// A store to one.
pub fn store(cpus: usize) -> f64 {
    on(cpus, || {
        let cell = Cell::default();
        // ORDER(price): nothing pairs with it; leaving a section is such a store.
        each(20_000, || black_box(&cell).0.store(1, Release))
    })
}

/// A read-modify-write of one.
pub fn rmw(cpus: usize) -> f64 {
    on(cpus, || {
        let cell = Cell::default();
        // ORDER(price): nothing pairs with it; installing a leaf is as strong.
        each(5000, || black_box(&cell).0.fetch_add(1, AcqRel))
    })
}

/// A full fence, after a store that it has to wait for.
pub fn fenced(cpus: usize) -> f64 {
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

/// A look at the clock.
pub fn clock(cpus: usize) -> f64 {
    on(cpus, || each(500, Instant::now))
}

/// Plain instructions, each of which needs the one before: how fast this CPU is at the moment.
pub fn plain(cpus: usize) -> f64 {
    on(cpus, || {
        let mut number = black_box(1_u64);
        let time = each(5000, || number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7));
        black_box(number);
        time
    })
}

/// What `act` takes on each of the first `cpus` CPUs, as a job of the world that benches run in.
fn in_jobs(cpus: usize, times: u32, act: impl Fn() + Sync) -> f64 {
    let told = Mutex::new(0.0);
    let job = |_| {
        let (told, act) = (&told, &act);
        Job::new("probe", move || {
            // What is made when it is first needed is made now.
            act();
            let time = each(times, act);
            *told.lock().unwrap_or_else(std::sync::PoisonError::into_inner) += time;
        })
    };
    world::run(&Costs::SERVER, (0..cpus).map(job).collect());
    told.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) / cpus as f64
}

/// Zeroing a page that is in no cache.
pub fn zero(cpus: usize) -> f64 {
    in_jobs(cpus, 100, world::zero_page)
}

/// Reading one.
pub fn read(cpus: usize) -> f64 {
    in_jobs(cpus, 100, world::read_page)
}

/// A look at one of 512 words in a row, for one bit, in a table that no first-level cache holds: as a dead table is looked
/// through.
pub fn word(cpus: usize) -> f64 {
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

/// Copying a line that no other processor uses: sixteen at a time, as nodes of the slots' trees are, in an order that no
/// processor foresees, from and to what no first-level cache holds.
pub fn copy(cpus: usize) -> f64 {
    const LINES: usize = 16;
    const BLOCKS: usize = 512;
    on(cpus, || {
        let mut blocks = vec![[[1_u64; 8]; LINES]; BLOCKS];
        let mut order: Vec<usize> = (0..BLOCKS).collect();
        shuffle(&mut order);
        let mut turns = order.iter().cycle().zip(order.iter().cycle().skip(1));
        let block = each(200, || {
            let Some((&from, &to)) = turns.next() else { return };
            if let Ok([from, to]) = blocks.get_disjoint_mut([from, to]) {
                *to = *black_box(from);
            }
        });
        block / LINES as f64
    })
}

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
