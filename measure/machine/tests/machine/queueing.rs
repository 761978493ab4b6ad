//! One lock and N customers, compared with the machine-repairman model of queueing theory.
//!
//! ```text
//!   ┌──▶ think Z ──▶ queue ──▶ lock, held S ──┐       closed: N customers go round for ever
//!   └─────────────────────────────────────────┘       throughput X(N), time in the queue and the lock R(N)
//! ```
//! * Exponential times: an exact product form (Gordon, Newell, 1967), by mean value analysis (Reiser, Lavenberg,
//!   1980): `R(n) = S (1 + Q(n-1))`, `X(n) = n / (Z + R(n))`, `Q(n) = X(n) R(n)`.
//! * Constant times: the asymptotic bounds are reached, `X = min(N / (Z + S), 1 / S)` (Denning, Buzen, 1978), after
//!   customers have fallen into step.
//! * Constant lock times with any thinking times lie between the two.
//!
//! Transfers and hand-offs cost nothing in most of these tests, so a lock is a pure queue. One test adds them, which
//! lengthens each customer's hold.

use slat_machine::lock::Mutex;
use slat_machine::{Costs, Job, JobStats, compute, now, run};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Think and hold times in nanoseconds.
const THINK: u64 = 10_000;
const HOLD: u64 = 1000;

/// All prices are zero except the customers' own times.
const FREE: Costs = Costs {
    load: 0.0,
    store: 0.0,
    rmw: 0.0,
    fence: 0.0,
    step: 0.0,
    near: 0.0,
    far: 0.0,
    handoff: 0.0,
    clock: 0.0,
    ..Costs::SERVER
};

/// The distribution of times.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Times {
    Exponential,
    Same,
}

impl Times {
    fn draw(self, lots: &mut fastrand::Rng, mean: u64) -> u64 {
        match self {
            Self::Exponential => (-(1.0 - lots.f64()).ln() * mean as f64).round() as u64,
            Self::Same => mean,
        }
    }
}

/// How customers are served. All variants except the first are mistakes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Lock {
    Right,
    /// The lock forgets one of twenty waiters, which asks again later.
    Forgets,
    /// The lock is handed on as if each owner held it for a tenth longer.
    HandsOnLate,
    /// Now and then the lock admits any CPU that arrives.
    LetsTwoIn,
}

/// Measurements of a steady state.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Customers served per nanosecond.
    throughput: f64,
    /// Nanoseconds from asking for the lock to having released it.
    response: f64,
    /// Share of time that customers waited, as the machine reports it.
    waiting: f64,
}

/// Nanoseconds of warm-up, and until the end.
const WARM: u64 = 2_000_000;
const END: u64 = 62_000_000;

/// Runs `n` customers until the end.
fn simulate(customers: u32, times: Times, lock: Lock, costs: &Costs) -> Seen {
    let mutex = &Mutex::new(());
    let (served, response) = (&AtomicU64::new(0), &AtomicU64::new(0));
    let job = |customer: u32| {
        Job::new("customer", move || {
            let mut lots = fastrand::Rng::with_seed(customer.into());
            for nth in 0.. {
                compute(times.draw(&mut lots, THINK));
                let (asked, hold) = (now(), times.draw(&mut lots, HOLD));
                if lock == Lock::LetsTwoIn && nth % 10 == 0 {
                    compute(hold);
                } else {
                    let mine = mutex.lock();
                    if lock == Lock::Forgets && now() > asked && nth % 20 == 0 {
                        drop(mine);
                        compute(20 * THINK);
                        continue;
                    }
                    compute(if lock == Lock::HandsOnLate { hold * 11 / 10 } else { hold });
                }
                if now() >= END {
                    return;
                }
                if asked >= WARM {
                    served.fetch_add(1, Relaxed);
                    response.fetch_add(now() - asked, Relaxed);
                }
            }
        })
    };
    let told = run(costs, (0..customers).map(job).collect());
    let sum = |of: fn(&JobStats) -> u64| told.jobs.iter().map(of).sum::<u64>() as f64;
    let served = served.load(Relaxed) as f64;
    Seen {
        throughput: served / (END - WARM) as f64,
        response: response.load(Relaxed) as f64 / served,
        waiting: sum(|job| job.waiting_ns) / sum(|job| job.ns),
    }
}

/// The values that theory predicts.
#[derive(Clone, Copy, Debug)]
struct Known {
    throughput: f64,
    response: f64,
}

/// Exponential times: exact.
fn product_form(customers: u32, hold: f64) -> Known {
    let mut queue = 0.0;
    let mut known = Known { throughput: 0.0, response: 0.0 };
    for there in 1..=customers {
        known.response = hold * (1.0 + queue);
        known.throughput = f64::from(there) / (THINK as f64 + known.response);
        queue = known.throughput * known.response;
    }
    known
}

/// Constant times: the asymptotic bounds.
fn bounds(customers: u32, hold: f64) -> Known {
    let throughput = (f64::from(customers) / (THINK as f64 + hold)).min(1.0 / hold);
    Known { throughput, response: f64::from(customers) / throughput - THINK as f64 }
}

/// Returns whether measured and predicted values agree within this many percent.
fn agrees(seen: Seen, known: Known, percent: f64) -> bool {
    let near = |a: f64, b: f64| (a / b - 1.0).abs() <= percent / 100.0;
    near(seen.throughput, known.throughput) && near(seen.response, known.response)
}

/// Below the knee, at it, beyond it, and far beyond. The knee is where one customer's round is full: (Z + S) / S =
/// 11.
const CUSTOMERS: [u32; 6] = [1, 4, 8, 11, 20, 60];

#[test]
fn exponential_times_make_the_exact_queue() {
    for customers in CUSTOMERS {
        let seen = simulate(customers, Times::Exponential, Lock::Right, &FREE);
        let known = product_form(customers, HOLD as f64);
        assert!(agrees(seen, known, 3.0), "{customers}: {seen:?}, {known:?}");
    }
}

#[test]
fn times_that_are_the_same_meet_the_bounds() {
    for customers in CUSTOMERS {
        let seen = simulate(customers, Times::Same, Lock::Right, &FREE);
        let known = bounds(customers, HOLD as f64);
        assert!(agrees(seen, known, 0.5), "{customers}: {seen:?}, {known:?}");
    }
}

#[test]
fn reported_waiting_equals_the_queueing_time() {
    for customers in CUSTOMERS {
        let seen = simulate(customers, Times::Exponential, Lock::Right, &FREE);
        let Known { response, .. } = product_form(customers, HOLD as f64);
        let known = (response - HOLD as f64) / (THINK as f64 + response);
        assert!((seen.waiting - known).abs() < 0.01, "{customers}: {seen:?}, {known}");
    }
}

/// A contended lock is handed over and its line fetched by each next holder. Where an arriving CPU has taken the line
/// meanwhile, the holder fetches it once more to release it. This lengthens each hold.
#[test]
fn transfers_and_hand_offs_lengthen_each_hold() {
    let costs = Costs { near: 50.0, handoff: 100.0, cpus_per_socket: 64, ..FREE };
    let [least, most] =
        [2.0, 3.0].map(|journeys| bounds(60, HOLD as f64 + journeys * costs.near + costs.handoff));
    let is_between = |seen: Seen| {
        (most.throughput..=least.throughput).contains(&seen.throughput)
            && (least.response..=most.response).contains(&seen.response)
    };
    let seen = simulate(60, Times::Same, Lock::Right, &costs);
    assert!(is_between(seen), "{seen:?}, {least:?}, {most:?}");
    for wrong in [Costs { handoff: 10.0, ..costs.clone() }, Costs { handoff: 160.0, ..costs }] {
        assert!(!is_between(simulate(60, Times::Same, Lock::Right, &wrong)), "{wrong:?}");
    }
}

#[test]
fn a_broken_lock_is_detected() {
    for lock in [Lock::Forgets, Lock::HandsOnLate, Lock::LetsTwoIn] {
        let found = CUSTOMERS.iter().filter(|&&customers| {
            let exponential = simulate(customers, Times::Exponential, lock, &FREE);
            !agrees(exponential, product_form(customers, HOLD as f64), 3.0)
        });
        assert!(found.count() >= 4, "{lock:?}");
        let same = simulate(20, Times::Same, lock, &FREE);
        assert!(!agrees(same, bounds(20, HOLD as f64), 0.5), "{lock:?}: {same:?}");
    }
}
