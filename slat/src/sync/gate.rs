//! The entry of a walk: a section of the read side, preceded by the lock of a baseline policy, if the VM has one.
//!
//! The TDP MMU series replaces one mutex by a reader-writer lock, so that faults run in parallel. The read side gives
//! that without a shared line. All three are policies of a VM, chosen when it is built, so that one program measures
//! them with the same code:
//!
//! | policy | a fault enters by | an invalidation enters by |
//! |---|---|---|
//! | [`MmuLock::Exclusive`] | the mutex | the mutex |
//! | [`MmuLock::ReadWrite`] | the lock, reading | the lock, writing |
//! | [`MmuLock::None`] | its seat | its seat: they meet at the entry, by CAS |
//!
//! The two locks exist only for measurements. They are here and not in a wrapper around `fault` and `apply` in the
//! benches, for two reasons. A walk releases the lock now and then for waiters, while a wrapper would hold it for the
//! whole walk and make the baseline look slower. A fault holds no lock while it asks the host, while a wrapper would.
//!
//! Under every policy a walk is a section of the read side, which alone keeps the memslots that it reads, as in KVM,
//! whose faults also are SRCU sections. With a lock alone, a version of the slots could be freed during a walk.
//!
//! A lock that is not free at once is timed by the clock. A free lock has no further cost.

use super::mode::{Mode, Side};
use super::prim::{AtomicU64, Padded, RawMutex, RawMutexFair as _, RawRwLock, RawRwLockFair as _, Relaxed};
use super::readside::{ReadSide, Seat, Section, Within};
use lock_api::{RawMutex as _, RawRwLock as _};

/// The lock around a VM's second-level tables. Fixed when the VM is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MmuLock {
    /// No shared lock: per-thread seats, edits by CAS, stamps in the holes. The default.
    #[default]
    None,
    /// One reader-writer lock, as in the TDP MMU series: faults read, invalidations write.
    ReadWrite,
    /// One mutex for everything, as before that series.
    Exclusive,
}

/// The two baseline locks, and the policy of this VM.
pub(crate) struct Lock {
    policy: MmuLock,
    mutex: RawMutex,
    rwlock: RawRwLock,
    waits: Padded<Waits>,
}

/// Written only by threads that wait.
#[derive(Default)]
struct Waits {
    count: AtomicU64,
    ns: AtomicU64,
}

/// An open gate. Dropping it leaves.
pub(crate) struct Gate<'g> {
    /// Ends after `drop` has released the lock.
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
                // Called through the trait: spin's own `lock` returns a guard that would release it at once.
                if !lock_api::RawMutex::try_lock(&self.mutex) {
                    self.wait(|| lock_api::RawMutex::lock(&self.mutex));
                }
                Held::Mutex(&self.mutex)
            }
        };
        // After the lock, for which this may have waited.
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

    /// Returns how often a lock was not free, and the nanoseconds waited, if there is a clock.
    pub(crate) fn waits(&self) -> (u64, u64) {
        (self.waits.count.load(Relaxed), self.waits.ns.load(Relaxed))
    }
}

impl Gate<'_> {
    /// See [`Section::within`].
    #[inline(always)]
    pub(crate) fn within(&self) -> Within<'_> {
        self.section.within()
    }

    /// Leaves, lets waiters in, and enters again in the same mode.
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

    /// Returns the waits and nanoseconds of a thread that enters in mode `B` while another is inside in mode `A`.
    fn beside<A: Mode, B: Mode>(policy: MmuLock) -> (u64, u64) {
        let (lock, reads) = (Lock::new(policy), ReadSide::new(2, Barrier::symmetric()));
        let first = reads.claim(0).unwrap();
        thread::scope(|scope| {
            let inside = lock.enter::<A>(&reads, &first);
            let other = scope.spawn(|| {
                let seat = reads.claim(1).unwrap();
                drop(lock.enter::<B>(&reads, &seat));
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
