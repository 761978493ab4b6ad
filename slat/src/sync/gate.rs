//! How a walk enters: through the read side, and before it through the lock of a baseline policy.
//!
//! The TDP MMU series asks for a reader-writer lock where there was one mutex; its *point* is faults in parallel, which
//! the read side gives without a shared line. All three stay as policies of a VM, chosen when it is built, so
//! that "before", "as described" and "ours" are measured with the same code:
//!
//! | policy | a fault enters by | an invalidation enters by |
//! |---|---|---|
//! | [`MmuLock::Exclusive`] | the mutex | the mutex |
//! | [`MmuLock::ReadWrite`] | the lock, reading | the lock, writing |
//! | [`MmuLock::None`] | its seat | its seat: they meet at the entry, by CAS |
//!
//! The two locks exist to be measured, and are here, not in a wrapper around `fault` and `apply` in the benches, for two reasons.
//! A walk lets the lock go now and then, in its middle, for others that wait: a wrapper would hold it for the whole walk, and
//! the baseline would look worse than it is. And a fault holds no lock while the host is asked: a wrapper would hold it.
//!
//! Whatever the lock, a walk is a section of the read side: the memslots that it looks at are kept by that alone, as in KVM,
//! whose faults are in an SRCU section besides. Without it a version of the slots could go under a walk that had only a lock.
//!
//! A lock that is not free at once is waited for by the clock; one that is free costs nothing more than itself.

use super::mode::{Mode, Side};
use super::prim::{AtomicU64, Padded, RawMutex, RawMutexFair as _, RawRwLock, RawRwLockFair as _, Relaxed};
use super::readside::{ReadSide, Seat, Section};
use lock_api::{RawMutex as _, RawRwLock as _};

/// What guards the second-level tables of a VM. Snapshotted when the VM is built, for its whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MmuLock {
    /// Nothing shared: per-thread seats, edits by CAS, stamps in the holes. The default.
    #[default]
    None,
    /// One reader-writer lock, as the TDP MMU series describes: faults read, invalidations write.
    ReadWrite,
    /// One mutex for everything: how it was before.
    Exclusive,
}

/// The two baseline locks, and which of them (or neither) this VM uses.
pub(crate) struct Lock {
    policy: MmuLock,
    mutex: RawMutex,
    rwlock: RawRwLock,
    waits: Padded<Waits>,
}

/// Written by the threads that wait alone.
#[derive(Default)]
struct Waits {
    count: AtomicU64,
    ns: AtomicU64,
}

/// An open gate. Dropping it leaves.
pub(crate) struct Gate<'g> {
    /// Ends after the lock is given back, which `drop` does.
    section: Section<'g>,
    held: Held<'g>,
}

enum Held<'g> {
    NoLock,
    Mutex(&'g RawMutex),
    Read(&'g RawRwLock),
    Write(&'g RawRwLock),
}

impl Lock {
    pub(crate) fn new(policy: MmuLock) -> Self {
        Self { policy, mutex: RawMutex::INIT, rwlock: RawRwLock::INIT, waits: Padded::default() }
    }

    #[inline(always)]
    pub(crate) fn policy(&self) -> MmuLock {
        self.policy
    }

    /// Enters in mode `M`. The borrow of `seat` and the caller's borrow of `Idle` keep it from entering twice.
    #[inline(always)]
    pub(crate) fn enter<'g, M: Mode>(&'g self, reads: &ReadSide, seat: &'g Seat) -> Gate<'g> {
        let held = match (self.policy, M::SIDE) {
            (MmuLock::None, _) | (_, Side::Neither) => Held::NoLock,
            (MmuLock::ReadWrite, Side::Read) => {
                if !self.rwlock.try_lock_shared() {
                    self.wait(|| self.rwlock.lock_shared());
                }
                Held::Read(&self.rwlock)
            }
            (MmuLock::ReadWrite, Side::Write) => {
                if !self.rwlock.try_lock_exclusive() {
                    self.wait(|| self.rwlock.lock_exclusive());
                }
                Held::Write(&self.rwlock)
            }
            (MmuLock::Exclusive, _) => {
                // By the trait's name: spin's mutex has a `lock` of its own, whose guard would let go at once.
                if !lock_api::RawMutex::try_lock(&self.mutex) {
                    self.wait(|| lock_api::RawMutex::lock(&self.mutex));
                }
                Held::Mutex(&self.mutex)
            }
        };
        // After the lock, which may be waited for.
        Gate { section: reads.enter_outermost(seat), held }
    }

    /// Takes a lock that was not free.
    #[cold]
    fn wait(&self, lock: impl FnOnce()) {
        #[cfg(feature = "std")]
        let began = super::prim::Instant::now();
        self.waits.count.fetch_add(1, Relaxed);
        lock();
        #[cfg(feature = "std")]
        self.waits.ns.fetch_add(began.elapsed().as_nanos() as u64, Relaxed);
    }

    /// How often a lock was not free, and how many nanoseconds it was waited for, where there is a clock.
    pub(crate) fn waits(&self) -> (u64, u64) {
        (self.waits.count.load(Relaxed), self.waits.ns.load(Relaxed))
    }
}

impl Gate<'_> {
    /// Leaves, lets those in who wait, and enters again in the same mode.
    #[inline]
    pub(crate) fn rest(&mut self, reads: &ReadSide) {
        match &self.held {
            Held::NoLock => {}
            // SAFETY: this gate holds that side of that lock, on this thread, and holds it again afterwards.
            Held::Mutex(lock) => unsafe { lock.bump() },
            // SAFETY: as above.
            Held::Read(lock) => unsafe { lock.bump_shared() },
            // SAFETY: as above.
            Held::Write(lock) => unsafe { lock.bump_exclusive() },
        }
        self.section.rest(reads);
    }
}

impl Drop for Gate<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY (each arm): this gate took exactly that side of that lock, on this thread, and gives it back once.
        match &self.held {
            Held::NoLock => {}
            // SAFETY: as above.
            Held::Mutex(lock) => unsafe { lock.unlock() },
            // SAFETY: as above.
            Held::Read(lock) => unsafe { lock.unlock_shared() },
            // SAFETY: as above.
            Held::Write(lock) => unsafe { lock.unlock_exclusive() },
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, feature = "std", not(loom)))]
mod tests {
    use super::*;
    use crate::sync::barrier::Barrier;
    use crate::sync::mode::{Exclusive, Shared};
    use std::thread;

    /// What a thread that enters in mode `B`, while another is inside in mode `A`, counts: waits and nanoseconds.
    fn beside<A: Mode, B: Mode>(policy: MmuLock) -> (u64, u64) {
        let (lock, reads) = (Lock::new(policy), ReadSide::new(2, Barrier::symmetric()));
        let first = reads.claim(0).unwrap();
        thread::scope(|scope| {
            let inside = lock.enter::<A>(&reads, first.seat());
            let other = scope.spawn(|| {
                let seat = reads.claim(1).unwrap();
                drop(lock.enter::<B>(&reads, seat.seat()));
            });
            while lock.waits().0 == 0 && !other.is_finished() {
                thread::yield_now();
            }
            drop(inside);
        });
        lock.waits()
    }

    #[test]
    fn only_a_lock_that_is_not_free_is_waited_for() {
        for (waits, ns) in [
            beside::<Shared, Shared>(MmuLock::Exclusive),
            beside::<Shared, Exclusive>(MmuLock::ReadWrite),
            beside::<Exclusive, Shared>(MmuLock::ReadWrite),
        ] {
            assert!(waits == 1 && ns > 0, "{waits} waits, {ns} ns");
        }
        assert_eq!(beside::<Shared, Shared>(MmuLock::ReadWrite), (0, 0));
        assert_eq!(beside::<Shared, Shared>(MmuLock::None), (0, 0));
    }
}
