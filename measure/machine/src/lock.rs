//! A mutex and a reader-writer lock: queued spin locks as in hypervisors, or parking locks as in user space.
//!
//! Acquiring and releasing a lock are read-modify-writes of its line, which other CPUs transfer meanwhile.
//! [`Costs::park_after`](crate::Costs) chooses what a waiter does:
//!
//! * **Queued spin lock** (0). A waiter does not touch the line until the lock is handed to it, in order of arrival.
//!   The hand-off takes one transfer and the time to notice; then the waiter fetches the line. This lock is fair, and
//!   the best one under contention.
//! * **Parking lock**, as in user space. A waiter spins for this time and then sleeps. The releasing holder wakes the
//!   first sleeper by a system call and leaves the lock free. Another CPU may take it first; then the sleeper sleeps
//!   again. A release hands the lock to the first sleeper if it is a fair one, or if the sleeper has waited for half a
//!   millisecond, as in `parking_lot`. Readers do not enter while a writer waits.
//!
//! Outside of a run both locks spin.

use crate::atomic::access;
use crate::cpu::{Machine, Paused, Waiter, Waiters, with};
use crate::prices::Ps;
use crate::schedule::Access;
use core::hint::spin_loop;
use core::panic::Location;
use core::sync::atomic::{AtomicU64, Ordering};
use lock_api::GuardSend;

/// A mutex.
#[derive(Debug, Default)]
pub struct RawMutex(RawRwLock);

/// A reader-writer lock.
#[derive(Debug, Default)]
pub struct RawRwLock {
    /// The number of readers, or [`WRITER`].
    held: AtomicU64,
}

const WRITER: u64 = 1 << 63;

/// A parking lock is handed to a waiter that has waited for so long.
const FAIR_AFTER: Ps = 500_000_000;

/// A mutex around a value.
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;
/// A held mutex.
pub type MutexGuard<'m, T> = lock_api::MutexGuard<'m, RawMutex, T>;
/// A reader-writer lock around a value.
pub type RwLock<T> = lock_api::RwLock<RawRwLock, T>;

impl Machine {
    /// Returns whether a waiter that spins until `parks` has fallen asleep.
    fn sleeps(&self, parks: Ps) -> bool {
        self.prices.park_after > 0 && self.clock() >= parks
    }

    /// Lets `waiter` continue: a sleeper is woken, a spinning waiter notices after those before it. Returns the delay
    /// of the last spinning waiter from now.
    fn rouse(&self, waiter: Waiter, behind: Ps) -> Ps {
        if self.sleeps(waiter.parks) {
            self.spend(self.prices.wake);
            self.wake(waiter.cpu, self.clock() + self.prices.wake_arrives);
            behind
        } else {
            let notices = behind + self.between(waiter.cpu) + self.prices.handoff;
            self.wake(waiter.cpu, self.clock() + notices);
            notices
        }
    }
}

impl RawRwLock {
    /// Takes the lock if it is free, without regard to waiters.
    fn take(&self, alone: bool) -> bool {
        let take = |held: u64| {
            if alone { (held == 0).then_some(WRITER) } else { (held & WRITER == 0).then_some(held + 1) }
        };
        // ORDER(lock): AcqRel: outside of a run this is an ordinary lock between threads.
        self.held.fetch_update(Ordering::AcqRel, Ordering::Relaxed, take).is_ok()
    }

    #[track_caller]
    fn try_enter(&self, alone: bool) -> bool {
        access(self, Access::Rmw);
        !with(|machine| self.has_to_queue(machine, alone)).unwrap_or(false) && self.take(alone)
    }

    /// Returns whether a waiter precedes the CPU that arrives now.
    fn has_to_queue(&self, machine: &Machine, alone: bool) -> bool {
        let waiters = machine.waiters.borrow();
        let Some(queue) = waiters.get(&self.address()) else { return false };
        machine.prices.park_after == 0 || !alone && queue.iter().any(|waiter| waiter.alone)
    }

    #[track_caller]
    fn enter(&self, alone: bool) {
        let (site, mut since) = (Location::caller(), None);
        while !self.try_enter(alone) {
            let queued = with(|machine| {
                let (cpu, began) = (machine.me(), machine.clock());
                let since = *since.get_or_insert(began);
                let waiter = Waiter { cpu, alone, parks: began + machine.prices.park_after, since };
                machine.waiters.borrow_mut().entry(self.address()).or_default().push_back(waiter);
                machine.pause(Paused::Blocked);
                machine.waited(self.address(), began, site);
                machine.cpu().handed.take()
            });
            match queued {
                // The lock was handed to this CPU, which fetches its line.
                Some(true) => return access(self, Access::Rmw),
                Some(false) => {}
                None => spin_loop(),
            }
        }
    }

    #[track_caller]
    fn leave(&self, alone: bool) {
        self.leave_to(alone, false);
    }

    /// Releases the lock. A queued lock, or a `fair` release, hands it to the next waiter.
    #[track_caller]
    fn leave_to(&self, alone: bool, fair: bool) {
        access(self, Access::Rmw);
        // ORDER(lock): Release, as above.
        self.held.fetch_sub(if alone { WRITER } else { 1 }, Ordering::Release);
        with(|machine| {
            let mut waiters = machine.waiters.borrow_mut();
            let Some(queue) = waiters.get_mut(&self.address()) else { return };
            let waits_long = queue.front().is_some_and(|first| machine.clock() >= first.since + FAIR_AFTER);
            if fair || waits_long || machine.prices.park_after == 0 {
                self.hand_on(machine, queue);
            } else {
                self.call(machine, queue);
            }
            if queue.is_empty() {
                waiters.remove(&self.address());
            }
        });
    }

    /// Hands the lock to the next waiters: one writer, or all readers up to the next writer.
    fn hand_on(&self, machine: &Machine, queue: &mut Waiters) {
        let mut handed = 0;
        while let Some(&waiter) = queue.front() {
            if !self.take(waiter.alone) {
                break;
            }
            queue.pop_front();
            machine.cpus[waiter.cpu as usize].handed.set(true);
            // The readers read the line one after the other.
            handed = machine.rouse(waiter, handed);
        }
    }

    /// Tells the next waiters that the lock is free, if it is.
    fn call(&self, machine: &Machine, queue: &mut Waiters) {
        // ORDER(lock): Relaxed: this machine executes all operations in one order.
        if self.held.load(Ordering::Relaxed) != 0 {
            return;
        }
        let mut called = 0;
        while let Some(&waiter) = queue.front() {
            if called > 0 && waiter.alone {
                break;
            }
            queue.pop_front();
            called += 1;
            machine.rouse(waiter, 0);
            if waiter.alone {
                break;
            }
        }
    }

    fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// Lets waiters go first; in a parking lock, those that sleep.
    #[track_caller]
    fn bump(&self, alone: bool) {
        // The lock's word says whether waiters exist.
        access(self, Access::Load);
        let waits = with(|machine| {
            let waiters = machine.waiters.borrow();
            let first = waiters.get(&self.address()).and_then(|queue| queue.front());
            first.is_some_and(|first| machine.prices.park_after == 0 || machine.sleeps(first.parks))
        });
        if waits.unwrap_or(false) {
            self.leave_to(alone, true);
            self.enter(alone);
        }
    }
}

// SAFETY: `take` admits one writer, or readers only. Each unlock undoes one of them.
unsafe impl lock_api::RawRwLock for RawRwLock {
    #[allow(clippy::declare_interior_mutable_const, reason = "the trait's way to make one")]
    const INIT: Self = Self { held: AtomicU64::new(0) };
    type GuardMarker = GuardSend;

    #[track_caller]
    fn lock_shared(&self) {
        self.enter(false);
    }

    #[track_caller]
    fn try_lock_shared(&self) -> bool {
        self.try_enter(false)
    }

    #[track_caller]
    unsafe fn unlock_shared(&self) {
        self.leave(false);
    }

    #[track_caller]
    fn lock_exclusive(&self) {
        self.enter(true);
    }

    #[track_caller]
    fn try_lock_exclusive(&self) -> bool {
        self.try_enter(true)
    }

    #[track_caller]
    unsafe fn unlock_exclusive(&self) {
        self.leave(true);
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawMutex for RawMutex {
    #[allow(clippy::declare_interior_mutable_const, reason = "the trait's way to make one")]
    const INIT: Self = Self(<RawRwLock as lock_api::RawRwLock>::INIT);
    type GuardMarker = GuardSend;

    #[track_caller]
    fn lock(&self) {
        self.0.enter(true);
    }

    #[track_caller]
    fn try_lock(&self) -> bool {
        self.0.try_enter(true)
    }

    #[track_caller]
    unsafe fn unlock(&self) {
        self.0.leave(true);
    }
}

// SAFETY: the caller holds the lock, releases it and takes it again.
unsafe impl lock_api::RawMutexFair for RawMutex {
    #[track_caller]
    unsafe fn unlock_fair(&self) {
        self.0.leave(true);
    }

    #[track_caller]
    unsafe fn bump(&self) {
        self.0.bump(true);
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawRwLockFair for RawRwLock {
    #[track_caller]
    unsafe fn unlock_shared_fair(&self) {
        self.leave(false);
    }

    #[track_caller]
    unsafe fn unlock_exclusive_fair(&self) {
        self.leave(true);
    }

    #[track_caller]
    unsafe fn bump_shared(&self) {
        self.bump(false);
    }

    #[track_caller]
    unsafe fn bump_exclusive(&self) {
        self.bump(true);
    }
}
