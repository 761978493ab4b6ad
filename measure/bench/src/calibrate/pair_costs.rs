//! The costs between two CPUs: a line that travels, a barrier that interrupts, a thread that is woken.
//!
//! One CPU leaves its mark on a few hundred lines, then the other follows a chain through all of them by read-modify-writes:
//! each says where the next one is, so no journey overlaps another. A second time round the lines are there already; what the
//! first time took longer is what they took to come. Taking turns on one line would be simpler, and would time how two loops
//! that look at a line get into each other's way.

use crate::calibrate::own_costs::Cell;
use crate::threads::harness::{Line, shuffle};
use crate::threads::machine_info::pin;
use crate::threads::samples::Series;
use parking_lot::Mutex;
#[cfg(target_os = "linux")]
use rustix::thread::{MembarrierCommand, membarrier};
use slat_cli::thread::joined;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

/// In a first-level cache they fit, with their neighbours.
const LINES: usize = 256;
/// The middle one counts.
const TURNS: usize = 16;
/// Long enough for a thread to fall asleep.
const ASLEEP: Duration = Duration::from_micros(100);
/// In the upper half of a cell: a mark, so that no read-modify-write is one that changes nothing.
const MARK: u64 = 1 << 32;

/// Cells in a ring: each holds the number of the next.
fn ring() -> Vec<Cell> {
    let mut order: Vec<usize> = (0..LINES).collect();
    shuffle(&mut order);
    let ring: Vec<Cell> = (0..LINES).map(|_| Cell::default()).collect();
    for (at, &cell) in order.iter().enumerate() {
        let next = order[(at + 1) % LINES];
        ring[cell].0.store(next as u64, Relaxed);
    }
    ring
}

/// Once round; nanoseconds for each cell.
fn round(ring: &[Cell]) -> f64 {
    let began = Instant::now();
    let mut at = 0;
    for _ in 0..ring.len() {
        // ORDER(price): nothing pairs with it; taking a lock is as strong.
        at = (ring[at].0.fetch_add(MARK, AcqRel) % MARK) as usize;
    }
    black_box(at);
    began.elapsed().as_nanos() as f64 / ring.len() as f64
}

/// A line comes from another CPU that has written it.
pub fn transfer() -> f64 {
    let (ring, line) = (&ring(), &Line::new(2));
    let follow = |me: usize| {
        move || {
            pin(me);
            let mut journeys = Vec::with_capacity(TURNS);
            for turn in 0..2 * TURNS {
                line.cross();
                if turn % 2 == me {
                    let (away, here) = (round(ring), round(ring));
                    journeys.push(away - here);
                }
            }
            journeys
        }
    };
    let journeys = thread::scope(|scope| {
        let both = [0, 1].map(|me| slat_cli::thread::start(scope, follow(me)));
        both.into_iter().flat_map(|one| joined(one.join())).collect()
    });
    Series::new(journeys).median().max(0.0)
}

/// Every thread of this process passes a full fence, while one runs elsewhere if there are two CPUs; `None` where the system has no such call.
#[cfg(target_os = "linux")]
pub fn barrier(cpus: usize) -> Option<f64> {
    membarrier(MembarrierCommand::RegisterPrivateExpedited).ok()?;
    let (over, runs) = (AtomicBool::new(false), AtomicU64::new(0));
    let time = thread::scope(|scope| {
        if cpus > 1 {
            slat_cli::thread::start(scope, || {
                pin(1);
                while !over.load(Relaxed) {
                    runs.store(1, Relaxed);
                    spin_loop();
                }
            });
            while runs.load(Relaxed) == 0 {
                thread::yield_now();
            }
        }
        let asks = slat_cli::thread::start(scope, || {
            pin(0);
            let ask = || {
                let began = Instant::now();
                let passed = membarrier(MembarrierCommand::PrivateExpedited).ok();
                passed.map(|()| began.elapsed().as_nanos() as f64)
            };
            (0..50).map(|_| ask()).collect::<Option<Vec<_>>>()
        });
        let times = joined(asks.join());
        over.store(true, Relaxed);
        times
    });
    time.map(|times| Series::new(times).median())
}

/// This system has no such call.
#[cfg(not(target_os = "linux"))]
pub fn barrier(_cpus: usize) -> Option<f64> {
    None
}

/// Waking a thread that sleeps on another CPU: the call, and from its end until the sleeper runs.
pub fn wake_up() -> (f64, f64) {
    let (noticed, over, woken) = (&AtomicU64::new(0), &AtomicBool::new(false), &Mutex::new(None));
    thread::scope(|scope| {
        let sleeper = slat_cli::thread::start(scope, move || {
            pin(1);
            // ORDER(woken): pairs with the Release of the waking thread.
            while !over.load(Acquire) {
                thread::park();
                *woken.lock() = Some(Instant::now());
                // ORDER(woken): pairs with the Acquire of the waking thread, which then looks at the time.
                noticed.fetch_add(1, Release);
            }
        });
        let wakes = slat_cli::thread::start(scope, move || {
            pin(0);
            let mut wake = |turn: u64| {
                thread::sleep(ASLEEP);
                let began = Instant::now();
                sleeper.thread().unpark();
                let called = Instant::now();
                // ORDER(woken): pairs with the Release of the sleeper.
                while noticed.load(Acquire) <= turn {
                    spin_loop();
                }
                let woken = woken.lock().unwrap_or(called);
                let ns = |from: Instant, to: Instant| to.saturating_duration_since(from).as_nanos() as f64;
                (ns(began, called), ns(called, woken))
            };
            let times: Vec<_> = (0..TURNS as u64).map(&mut wake).collect();
            // ORDER(woken): pairs with the Acquire of the sleeper, who looks before it sleeps again.
            over.store(true, Release);
            sleeper.thread().unpark();
            times
        });
        let (calls, arrivals) = joined(wakes.join()).into_iter().unzip();
        (Series::new(calls).median(), Series::new(arrivals).median())
    })
}
