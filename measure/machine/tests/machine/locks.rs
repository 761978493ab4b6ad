//! Locks: mutual exclusion, order of arrival, and concurrent readers.

use lock_api::RawMutex as _;
use slat_machine::Ordering::Relaxed;
use slat_machine::lock::{Mutex, RawMutex, RwLock};
use slat_machine::{AtomicU64, Costs, Instant, Job, compute, guest, kick, now, rest, run};
use std::sync::Mutex as Shared;

#[test]
fn a_mutex_lets_one_in_and_hands_on_in_order_of_arrival() {
    let (lock, inside, order) = (Mutex::new(0), AtomicU64::new(0), Shared::new(Vec::new()));
    let job = |cpu: u64| {
        let (lock, inside, order) = (&lock, &inside, &order);
        Job::new("CPU", move || {
            compute(1000 * cpu);
            let mut entered = lock.lock();
            *entered += 1;
            // Operations on shared lines give other CPUs a chance to enter.
            assert_eq!(inside.fetch_add(1, Relaxed), 0, "no other CPU is in");
            compute(50_000);
            assert_eq!(inside.fetch_sub(1, Relaxed), 1, "nor has come");
            order.lock().unwrap().push(cpu);
        })
    };
    let told = run(&Costs::SERVER, (0..20).map(job).collect());
    assert_eq!(*lock.lock(), 20);
    assert_eq!(order.into_inner().unwrap(), (0..20).collect::<Vec<_>>());
    assert!(told.wall_ns > 20 * 50_000 && told.wall_ns < 20 * 51_000, "{}", told.wall_ns);
    // The last CPU waited for nineteen others.
    assert!(told.jobs[19].waiting_ns > 19 * 49_000, "{:?}", told.jobs[19]);
}

#[test]
fn readers_share_the_lock_and_exclude_writers() {
    let (lock, readers, most) = (RwLock::new(()), AtomicU64::new(0), AtomicU64::new(0));
    let job = |cpu: u64| {
        let (lock, readers, most) = (&lock, &readers, &most);
        Job::new("CPU", move || {
            for turn in 0..10 {
                compute(100 * cpu + turn);
                if cpu == 0 {
                    let _alone = lock.write();
                    assert_eq!(readers.load(Relaxed), 0);
                    compute(500);
                    assert_eq!(readers.load(Relaxed), 0);
                } else {
                    let _together = lock.read();
                    most.fetch_max(readers.fetch_add(1, Relaxed) + 1, Relaxed);
                    compute(2000);
                    readers.fetch_sub(1, Relaxed);
                }
            }
        })
    };
    run(&Costs::SERVER, (0..16).map(job).collect());
    assert!(most.load(Relaxed) > 4, "{most:?}");
}

#[test]
fn a_kick_ends_a_guests_computing_when_it_arrives() {
    let costs = Costs { kick: 100.0, kick_arrives: 700.0, kick_taken: 50.0, ..Costs::SERVER };
    // Reading takes no time here.
    let (asked, left) = (std::sync::atomic::AtomicBool::new(false), std::sync::atomic::AtomicU64::new(0));
    let vcpu = || {
        left.store(guest(1_000_000, || asked.load(Relaxed)), Relaxed);
        assert_eq!(now(), 200_825, "sent at 200 us, and sending takes as long as it takes");
        asked.store(false, Relaxed);
        // A kick that arrives after the stretch does not end it.
        assert_eq!(guest(500, || asked.load(Relaxed)), 0);
    };
    let kicker = || {
        compute(200_000);
        asked.store(true, Relaxed);
        kick(0);
        kick(7);
    };
    let told = run(&costs, vec![Job::vcpu(0, vcpu), Job::new("kicker", kicker)]);
    assert_eq!((told.kicks, left.load(Relaxed)), (2, 1_000_000 - 200_800));
}

#[test]
fn sleep_is_reported_and_clocks_take_time_to_read() {
    let sleeper = || {
        let began = Instant::now();
        rest(5000);
        assert_eq!(
            began.elapsed().as_nanos(),
            5000 + 2 * Costs::SERVER.clock as u128 - Costs::SERVER.clock as u128
        );
    };
    let told = run(&Costs::SERVER, vec![Job::new("sleeper", sleeper)]);
    assert_eq!(told.jobs[0].asleep_ns, 5000);
}

#[test]
fn outside_of_a_run_a_lock_is_a_lock() {
    let lock = RawMutex::INIT;
    lock.lock();
    assert!(!lock.try_lock());
    // SAFETY: locked above.
    unsafe { lock.unlock() };
    assert!(lock.try_lock());
    let (count, both) = (Mutex::new(0), 2);
    std::thread::scope(|scope| {
        for _ in 0..both {
            scope.spawn(|| (0..10_000).for_each(|_| *count.lock() += 1));
        }
    });
    assert_eq!(*count.lock(), 20_000);
}

#[test]
#[should_panic(expected = "every CPU waits for another")]
fn a_deadlock_is_reported() {
    let lock = RawMutex::INIT;
    let twice = || {
        lock.lock();
        lock.lock();
    };
    run(&Costs::SERVER, vec![Job::new("CPU", twice)]);
}

#[test]
fn a_run_has_one_outcome() {
    let once = || {
        let lock = Mutex::new(());
        let job = |cpu: u64| {
            let lock = &lock;
            Job::new("CPU", move || {
                for turn in 0..50 {
                    compute((cpu * 7919 + turn * 104_729) % 3000);
                    let _in = lock.lock();
                    compute(100);
                }
            })
        };
        run(&Costs::SERVER, (0..100).map(job).collect())
    };
    assert_eq!(once(), once());
}

/// Two CPUs that take a lock in turn with a short pause; how long each waited, and the wall time.
fn fight(park_after: f64, hold: u64) -> (Vec<u64>, u64) {
    let costs = Costs { park_after, wake_arrives: 50_000.0, ..Costs::SERVER };
    let lock = Mutex::new(0);
    let job = || {
        for _ in 0..100 {
            *lock.lock() += 1;
            let held = lock.lock();
            compute(hold);
            drop(held);
            compute(100);
        }
    };
    let told = run(&costs, (0..2).map(|_| Job::new("CPU", job)).collect());
    assert_eq!(*lock.lock(), 200);
    (told.jobs.iter().map(|job| job.waiting_ns).collect(), told.wall_ns)
}

#[test]
fn the_holder_of_a_parking_lock_may_retake_it_before_the_sleeper() {
    let (_, queued) = fight(0.0, 10_000);
    let (waits, parked) = fight(3000.0, 10_000);
    // In a queue they take turns. A sleeper is overtaken a few times before it runs.
    assert!(queued < 200 * 10_500, "{queued}");
    assert!(waits.iter().any(|&wait| wait > 150_000) && parked < 2 * queued, "{waits:?} {parked} {queued}");
    // A waiter with a short wait does not sleep.
    let (waits, _) = fight(3000.0, 200);
    assert!(waits.iter().all(|&wait| wait < 50_000), "{waits:?}");
}

/// A CPU that holds a lock for long and lets others go first now and then, or not; how long the other CPU waited.
fn generous(park_after: f64, bumps: bool) -> u64 {
    let costs = Costs { park_after, ..Costs::SERVER };
    let lock = Mutex::new(());
    let holder = || {
        let mut held = lock.lock();
        for _ in 0..10 {
            compute(20_000);
            if bumps {
                lock_api::MutexGuard::bump(&mut held);
            }
        }
    };
    let other = || {
        compute(1000);
        drop(lock.lock());
    };
    let told = run(&costs, vec![Job::new("holder", holder), Job::new("other", other)]);
    told.jobs[1].waiting_ns
}

#[test]
fn a_fair_release_hands_the_lock_to_a_sleeper() {
    for park_after in [0.0, 3000.0] {
        let (waited, waited_for_all) = (generous(park_after, true), generous(park_after, false));
        assert!(waited < 30_000, "{park_after}: {waited}");
        assert!(waited_for_all > 195_000, "{park_after}: {waited_for_all}");
    }
}

#[test]
fn a_parking_lock_that_its_holder_always_retakes_at_once_is_handed_to_a_waiter_after_half_a_millisecond() {
    let costs = Costs { park_after: 3000.0, ..Costs::SERVER };
    let (lock, had) = (Mutex::new(()), AtomicU64::new(0));
    let greedy = || {
        for _ in 0..2000 {
            let _held = lock.lock();
            compute(1000);
            if had.load(Relaxed) > 0 {
                break;
            }
        }
    };
    let other = || {
        compute(1500);
        let _held = lock.lock();
        had.store(1, Relaxed);
    };
    let told = run(&costs, vec![Job::new("greedy", greedy), Job::new("other", other)]);
    let waited = told.jobs[1].waiting_ns;
    assert!((400_000..600_000).contains(&waited), "{waited}");
}
