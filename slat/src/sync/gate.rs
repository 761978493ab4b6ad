//! How a walk enters: through the read side, or through the lock of a baseline policy.
//!
//! Seed 003 asks for a reader-writer lock where there was one mutex; its *point* is faults in parallel, which
//! the read side gives without a shared line. All three stay as policies of a VM, chosen when it is built, so
//! that "before", "as described" and "ours" are measured with the same code:
//!
//! | policy | a fault enters by | an invalidation enters by |
//! |---|---|---|
//! | [`MmuLock::Exclusive`] | the mutex | the mutex |
//! | [`MmuLock::ReadWrite`] | the lock, reading | the lock, writing |
//! | [`MmuLock::None`] | its seat | its seat: they meet at the entry, by CAS |

use super::mode::{Mode, Side};
use super::prim::{RawMutex, RawMutexFair as _, RawRwLock, RawRwLockFair as _};
use super::readside::{ReadSide, Seat, Section};
use lock_api::{RawMutex as _, RawRwLock as _};

/// What guards the second-level tables of a VM. Snapshotted when the VM is built, for its whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MmuLock {
    /// Nothing shared: per-thread seats, edits by CAS, stamps in the holes. The default.
    #[default]
    None,
    /// One reader-writer lock, as seed 003 describes: faults read, invalidations write.
    ReadWrite,
    /// One mutex for everything: how it was before.
    Exclusive,
}

/// The two baseline locks, and which of them (or neither) this VM uses.
pub(crate) struct Lock {
    policy: MmuLock,
    mutex: RawMutex,
    rwlock: RawRwLock,
}

/// An open gate. Dropping it leaves.
pub(crate) struct Gate<'g> {
    held: Held<'g>,
}

enum Held<'g> {
    Section { section: Section<'g> },
    Mutex(&'g RawMutex),
    Read(&'g RawRwLock),
    Write(&'g RawRwLock),
}

impl core::fmt::Debug for Lock {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Lock").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl Lock {
    pub(crate) fn new(policy: MmuLock) -> Self {
        Self { policy, mutex: RawMutex::INIT, rwlock: RawRwLock::INIT }
    }

    #[inline(always)]
    pub(crate) fn policy(&self) -> MmuLock {
        self.policy
    }

    /// Enters in mode `M`. The borrow of `seat` and the caller's borrow of `Idle` keep it from entering twice.
    #[inline(always)]
    pub(crate) fn enter<'g, M: Mode>(&'g self, reads: &ReadSide, seat: &'g Seat) -> Gate<'g> {
        let held = match (self.policy, M::SIDE) {
            (MmuLock::None, _) | (_, Side::Neither) => Held::Section { section: reads.enter_outermost(seat) },
            (MmuLock::ReadWrite, Side::Read) => {
                self.rwlock.lock_shared();
                Held::Read(&self.rwlock)
            }
            (MmuLock::ReadWrite, Side::Write) => {
                self.rwlock.lock_exclusive();
                Held::Write(&self.rwlock)
            }
            (MmuLock::Exclusive, _) => {
                self.mutex.lock();
                Held::Mutex(&self.mutex)
            }
        };
        Gate { held }
    }
}

impl Gate<'_> {
    /// Leaves, lets those in who wait, and enters again in the same mode.
    #[inline]
    pub(crate) fn rest(&mut self, reads: &ReadSide) {
        match &mut self.held {
            Held::Section { section } => section.rest(reads),
            // SAFETY: this gate holds that side of that lock, on this thread, and holds it again afterwards.
            Held::Mutex(lock) => unsafe { lock.bump() },
            // SAFETY: as above.
            Held::Read(lock) => unsafe { lock.bump_shared() },
            // SAFETY: as above.
            Held::Write(lock) => unsafe { lock.bump_exclusive() },
        }
    }
}

impl Drop for Gate<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY (each arm): this gate took exactly that side of that lock, on this thread, and gives it back once.
        match &self.held {
            Held::Section { .. } => {}
            // SAFETY: as above.
            Held::Mutex(lock) => unsafe { lock.unlock() },
            // SAFETY: as above.
            Held::Read(lock) => unsafe { lock.unlock_shared() },
            // SAFETY: as above.
            Held::Write(lock) => unsafe { lock.unlock_exclusive() },
        }
    }
}
