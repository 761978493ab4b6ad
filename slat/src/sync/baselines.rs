//! Baselines: the locks of KVM before the direct MMU, and what it did before the other patch series, for measurements of
//! "before" in the same program, with the same code. Only with the feature `baselines`.
//!
//! | policy | a fault enters by | an invalidation enters by |
//! |---|---|---|
//! | [`MmuLock::Exclusive`] | the mutex | the mutex |
//! | [`MmuLock::ReadWrite`] | the lock, reading | the lock, writing |
//! | [`MmuLock::None`] | its seat | its seat: they meet at the entry, by CAS |
//!
//! The locks are in the engine's gate and not in a wrapper around `fault` and `apply` in the benches, for two reasons. A
//! walk releases the lock now and then for waiters, while a wrapper would hold it for the whole walk and make the
//! baseline look slower. A fault holds no lock while it asks the host, while a wrapper would.
//!
//! A lock that is not free at once is timed by the clock. A free lock has no further cost.

use super::mode::{Mode, Side};
use super::prim::{AtomicU64, Padded, RawMutex, RawRwLock, Relaxed};
use lock_api::{RawMutex as _, RawRwLock as _};

/// The lock around a VM's second-level tables.
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

/// KVM's earlier policies that a VM follows. Fixed when the VM is built
/// ([`Builder::baseline`](crate::vm::Builder::baseline)).
///
/// ```
/// use slat::baselines::{Baseline, MmuLock};
/// # use slat::{*, table::{NoMemory, formats::Npt4}};
/// # fn build<H: Host>(host: H) -> Result<Vm<Npt4, H>, NoMemory> {
/// Vm::builder(host).baseline(Baseline::NONE.mmu_lock(MmuLock::ReadWrite)).build()
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Baseline {
    lock: MmuLock,
    contexts: bool,
    lockless_aging: bool,
}

impl Default for Baseline {
    /// Nothing is as before.
    fn default() -> Self {
        Self::NONE
    }
}

impl Baseline {
    /// Nothing is as before.
    pub const NONE: Self = Self { lock: MmuLock::None, contexts: true, lockless_aging: true };
    /// Under one reader-writer lock.
    pub const READ_WRITE: Self = Self { lock: MmuLock::ReadWrite, ..Self::NONE };
    /// Under one mutex.
    pub const EXCLUSIVE: Self = Self { lock: MmuLock::Exclusive, ..Self::NONE };

    /// Sets the lock of the tables. Default: [`MmuLock::None`].
    #[must_use]
    pub fn mmu_lock(self, lock: MmuLock) -> Self {
        Self { lock, ..self }
    }

    /// Makes the VM use the reason of each invalidation. Default: on. If off, each invalidation unmaps its whole range
    /// when it begins, as KVM did before the NUMA protection and change-pte series.
    #[must_use]
    pub fn contexts(self, on: bool) -> Self {
        Self { contexts: on, ..self }
    }

    /// Makes aging passes take no lock, as in the MGLRU aging series. Default: on. If off, each pass takes the lock
    /// exclusively. Under [`MmuLock::None`] there is no lock.
    #[must_use]
    pub fn lockless_aging(self, on: bool) -> Self {
        Self { lockless_aging: on, ..self }
    }

    /// Whether walks take a lock.
    #[inline(always)]
    pub(crate) fn has_lock(self) -> bool {
        self.lock != MmuLock::None
    }

    /// Whether the reasons of invalidations are ignored.
    #[inline(always)]
    pub(crate) fn ignores_reasons(self) -> bool {
        !self.contexts
    }

    /// Whether a pass of aging takes the lock.
    #[inline(always)]
    pub(crate) fn ages_alone(self) -> bool {
        self.has_lock() && !self.lockless_aging
    }
}

/// The two locks, and the policy of this VM.
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

/// A lock that is held. Dropping it releases the lock.
pub(crate) enum Locked<'g> {
    NoLock,
    Mutex(&'g RawMutex),
    Read(&'g RawRwLock),
    Write(&'g RawRwLock),
}

impl Lock {
    pub(crate) fn new(baseline: Baseline) -> Self {
        Self {
            policy: baseline.lock,
            mutex: RawMutex::INIT,
            rwlock: RawRwLock::INIT,
            waits: Padded::default(),
        }
    }

    /// Takes the side of mode `M`.
    #[inline(always)]
    pub(crate) fn take<M: Mode>(&self) -> Locked<'_> {
        match (self.policy, M::SIDE) {
            (MmuLock::None, _) | (_, Side::Neither) => Locked::NoLock,
            (MmuLock::ReadWrite, Side::Read) => {
                if !self.rwlock.try_lock_shared() {
                    self.wait(|| self.rwlock.lock_shared());
                }
                Locked::Read(&self.rwlock)
            }
            (MmuLock::ReadWrite, Side::Write) => {
                if !self.rwlock.try_lock_exclusive() {
                    self.wait(|| self.rwlock.lock_exclusive());
                }
                Locked::Write(&self.rwlock)
            }
            (MmuLock::Exclusive, _) => {
                // Called through the trait: spin's own `lock` returns a guard that would release it at once.
                if !lock_api::RawMutex::try_lock(&self.mutex) {
                    self.wait(|| lock_api::RawMutex::lock(&self.mutex));
                }
                Locked::Mutex(&self.mutex)
            }
        }
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

impl Locked<'_> {
    /// Lets waiters in, and takes the lock again.
    pub(crate) fn bump(&self) {
        match self {
            Locked::NoLock => {}
            // SAFETY: this thread holds that side of that lock, and holds it again afterwards.
            Locked::Mutex(lock) => unsafe { lock.bump() },
            // SAFETY: as above.
            Locked::Read(lock) => unsafe { lock.bump_shared() },
            // SAFETY: as above.
            Locked::Write(lock) => unsafe { lock.bump_exclusive() },
        }
    }
}

impl Drop for Locked<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        match self {
            Locked::NoLock => {}
            // SAFETY: this took exactly that side of that lock, on this thread, and gives it back once.
            Locked::Mutex(lock) => unsafe { lock.unlock() },
            // SAFETY: as above.
            Locked::Read(lock) => unsafe { lock.unlock_shared() },
            // SAFETY: as above.
            Locked::Write(lock) => unsafe { lock.unlock_exclusive() },
        }
    }
}

#[cfg(all(feature = "std", not(any(miri, shuttle))))]
use lock_api::{RawMutexFair as _, RawRwLockFair as _};
#[cfg(any(not(feature = "std"), miri, shuttle))]
use spinning::{RawMutexFair as _, RawRwLockFair as _};

/// Spinning locks do not know their waiters: a bump releases the lock for a moment.
#[cfg(any(not(feature = "std"), miri, shuttle))]
mod spinning {
    use lock_api::{RawMutex as _, RawRwLock as _};

    pub(crate) trait RawMutexFair {
        /// # Safety
        /// The caller holds the lock.
        unsafe fn bump(&self);
    }

    pub(crate) trait RawRwLockFair {
        /// # Safety
        /// The caller holds the lock, shared.
        unsafe fn bump_shared(&self);
        /// # Safety
        /// The caller holds the lock, exclusively.
        unsafe fn bump_exclusive(&self);
    }

    impl RawMutexFair for super::RawMutex {
        unsafe fn bump(&self) {
            // SAFETY: the caller holds the lock.
            unsafe { self.unlock() };
            lock_api::RawMutex::lock(self);
        }
    }

    impl RawRwLockFair for super::RawRwLock {
        unsafe fn bump_shared(&self) {
            // SAFETY: the caller holds the lock, shared.
            unsafe { self.unlock_shared() };
            self.lock_shared();
        }

        unsafe fn bump_exclusive(&self) {
            // SAFETY: the caller holds the lock, exclusively.
            unsafe { self.unlock_exclusive() };
            self.lock_exclusive();
        }
    }
}

#[cfg(all(test, feature = "std", not(loom)))]
mod tests {
    use super::*;
    use crate::sync::mode::{Exclusive, Shared};
    use std::thread;

    /// Returns the waits and nanoseconds of a thread that enters in mode `B` while another is inside in mode `A`.
    fn beside<A: Mode, B: Mode>(policy: MmuLock) -> (u64, u64) {
        let lock = Lock::new(Baseline::default().mmu_lock(policy));
        thread::scope(|scope| {
            let inside = lock.take::<A>();
            let other = scope.spawn(|| drop(lock.take::<B>()));
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
