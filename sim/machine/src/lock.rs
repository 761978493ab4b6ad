//! A mutex and a reader-writer lock, handed on in order of arrival.
//!
//! Taking or leaving one is a read-modify-write of its line, which those who come meanwhile take away. Who finds it taken
//! waits, without touching the line again, until it is handed the lock: that takes a transfer, and what it takes to notice
//! ([`Costs::handoff`](crate::Costs)); then the new owner fetches the line. That is a queued spin lock, the fairest and
//! the best under contention that there is. Outside of a run both spin.

use crate::atomic::access;
use crate::cpu::{Machine, Paused, with};
use crate::lines::Access;
use core::hint::spin_loop;
use core::panic::Location;
use core::sync::atomic::{AtomicU64, Ordering};
use lock_api::GuardSend;

/// A mutex.
#[derive(Debug, Default)]
pub struct RawMutex(RawRwLock);

/// A reader-writer lock. Who comes while somebody waits waits behind him, so neither kind can be kept out for ever.
#[derive(Debug, Default)]
pub struct RawRwLock {
    /// How many read, or [`WRITER`].
    held: AtomicU64,
}

const WRITER: u64 = 1 << 63;

/// A mutex around a value.
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;
/// A reader-writer lock around a value.
pub type RwLock<T> = lock_api::RwLock<RawRwLock, T>;

impl RawRwLock {
    /// Takes it if it is free; who waits does not count here.
    fn take(&self, alone: bool) -> bool {
        let take = |held: u64| {
            if alone { (held == 0).then_some(WRITER) } else { (held & WRITER == 0).then_some(held + 1) }
        };
        // ORDER(lock): AcqRel: between threads, outside of a run, it is an ordinary lock.
        self.held.fetch_update(Ordering::AcqRel, Ordering::Relaxed, take).is_ok()
    }

    #[track_caller]
    fn try_enter(&self, alone: bool) -> bool {
        access(self, Access::Rmw);
        let waited_for = with(|machine| machine.waiters.borrow().contains_key(&self.address()));
        !waited_for.unwrap_or(false) && self.take(alone)
    }

    #[track_caller]
    fn enter(&self, alone: bool) {
        if self.try_enter(alone) {
            return;
        }
        let site = Location::caller();
        let waits = with(|machine| {
            let (me, began) = ((machine.me(), alone), machine.clock());
            machine.waiters.borrow_mut().entry(self.address()).or_default().push_back(me);
            machine.pause(Paused::Blocked);
            machine.waited(self.address(), began, site);
        });
        if waits.is_some() {
            // Its owner now, who has yet to fetch the line.
            access(self, Access::Rmw);
        } else {
            while !self.take(alone) {
                spin_loop();
            }
        }
    }

    #[track_caller]
    fn leave(&self, alone: bool) {
        access(self, Access::Rmw);
        // ORDER(lock): Release, as above.
        self.held.fetch_sub(if alone { WRITER } else { 1 }, Ordering::Release);
        with(|machine| self.hand_on(machine));
    }

    /// Whoever is next and can have it now: one who wants it alone, or all who read up to the next such.
    fn hand_on(&self, machine: &Machine) {
        let mut waiters = machine.waiters.borrow_mut();
        let Some(line) = waiters.get_mut(&self.address()) else { return };
        let mut handed = 0;
        while let Some(&(cpu, alone)) = line.front() {
            if !self.take(alone) {
                break;
            }
            line.pop_front();
            // One after the other they read what the line says.
            handed += machine.between(cpu) + machine.prices.handoff;
            machine.wake(cpu, machine.clock() + handed);
        }
        if line.is_empty() {
            waiters.remove(&self.address());
        }
    }

    fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// Lets those who wait go first.
    #[track_caller]
    fn bump(&self, alone: bool) {
        if with(|machine| machine.waiters.borrow().contains_key(&self.address())).unwrap_or(false) {
            self.leave(alone);
            self.enter(alone);
        }
    }
}

// SAFETY: `take` lets one in, or readers only; `unlock` and its like undo that once.
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

// SAFETY: to let others in is to leave and to come back.
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
