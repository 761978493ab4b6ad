//! The primitives under everything: atomics, fences, locks, and how to wait.
//!
//! One place swaps them. In a shipped build they are `core`'s atomics, with parking locks under `std` and
//! spinning ones without it. Under `--cfg loom` the atomics are loom's, so that the protocols of
//! [`super::readside`] and [`crate::notify::active`] are explored interleaving by interleaving. Under `--cfg shuttle` they
//! are still `core`'s, since page tables lie in memory that is lent, but before each operation another thread may go
//! on: so whole VMs run under many schedules. Under `--cfg virtual_time` (the package `slat-virtual`, which is this same
//! source) each operation costs a simulated CPU what it would cost a real one, and locks and waits do too.

#[cfg(not(any(loom, tsan, virtual_time)))]
pub(crate) use core::sync::atomic::fence;
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{
    Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst},
    compiler_fence,
};

#[cfg(not(any(loom, shuttle, virtual_time)))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64};
// Where time is simulated, too: what lies beside an entry comes with the line.
#[cfg(not(any(loom, shuttle)))]
pub(crate) use core::sync::atomic::AtomicU32;

#[cfg(shuttle)]
mod shuttled;
#[cfg(all(test, shuttle))]
pub(crate) use shuttled::step;
#[cfg(shuttle)]
pub(crate) use shuttled::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, RawMutex, RawRwLock, quiet, spin_loop,
};

#[cfg(virtual_time)]
mod simulated;
#[cfg(virtual_time)]
pub(crate) use simulated::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Instant, RawMutex, RawRwLock, copied, fence, filled, quiet,
    read_whole, scanned, spin_loop,
};

/// The cell itself, for accesses around which no schedule need be tried: no other thread can reach it, or nothing is decided
/// on what is found.
#[cfg(not(any(shuttle, virtual_time)))]
#[inline(always)]
pub(crate) fn quiet(cell: &AtomicU64) -> &AtomicU64 {
    cell
}

/// The same for a thread that reads all words of a table, and for the one that fills it.
#[cfg(not(virtual_time))]
pub(crate) use {quiet as scanned, quiet as filled};

/// What is read by plain loads: no other thread uses it. Costs nothing but those.
#[cfg(not(virtual_time))]
#[inline(always)]
pub(crate) fn read_whole<T>(_: &T) {}

/// So many bytes have been copied by plain loads and stores. Costs nothing but those.
#[cfg(not(virtual_time))]
#[inline(always)]
pub(crate) fn copied(_bytes: usize) {}

/// ThreadSanitizer knows no fences. An exchange on one place for all orders at least as much: what it then calls a race
/// is one; a race that only a weaker fence would show is loom's to find.
#[cfg(tsan)]
pub(crate) fn fence(_: Ordering) {
    static PLACE: AtomicU64 = AtomicU64::new(0);
    // ORDER(rmw): every such fence is before or after every other.
    PLACE.fetch_add(1, AcqRel);
}

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};

#[cfg(not(any(loom, shuttle, virtual_time)))]
pub(crate) use core::hint::spin_loop;
#[cfg(loom)]
pub(crate) use loom::hint::spin_loop;

/// loom has no compiler fence, and no membarrier to pair it with: the symmetric fence stands in for both.
#[cfg(loom)]
pub(crate) fn compiler_fence(order: Ordering) {
    fence(order);
}

/// A full fence straight after a read-modify-write of this thread. On x86 that instruction is one already.
#[inline(always)]
pub(crate) fn fence_after_rmw() {
    // ORDER(rmw): everything before, the read-modify-write included, before everything after. Callers say who pairs.
    if cfg!(all(any(target_arch = "x86", target_arch = "x86_64"), not(any(loom, tsan, miri)))) {
        compiler_fence(SeqCst);
    } else if !seeded!(RmwUnfenced) {
        fence(SeqCst);
    }
}

#[cfg(all(feature = "std", not(any(shuttle, virtual_time))))]
pub(crate) use parking_lot::{RawMutex, RawRwLock};
#[cfg(not(feature = "std"))]
pub(crate) type RawMutex = spin::Mutex<()>;
#[cfg(not(feature = "std"))]
pub(crate) type RawRwLock = spin::RwLock<()>;

#[cfg(all(feature = "std", not(shuttle)))]
pub(crate) use lock_api::{RawMutexFair, RawRwLockFair};
#[cfg(any(not(feature = "std"), shuttle))]
pub(crate) use spinning::{RawMutexFair, RawRwLockFair};

/// Spinning locks do not know their waiters: to let others in is to let go for a moment.
#[cfg(any(not(feature = "std"), shuttle))]
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
            // SAFETY: held, says the caller.
            unsafe { self.unlock() };
            lock_api::RawMutex::lock(self);
        }
    }

    impl RawRwLockFair for super::RawRwLock {
        unsafe fn bump_shared(&self) {
            // SAFETY: held so, says the caller.
            unsafe { self.unlock_shared() };
            self.lock_shared();
        }

        unsafe fn bump_exclusive(&self) {
            // SAFETY: held so, says the caller.
            unsafe { self.unlock_exclusive() };
            self.lock_exclusive();
        }
    }
}

/// A clock that only goes forward, where there is one.
#[cfg(all(feature = "std", not(virtual_time)))]
pub(crate) use std::time::Instant;

/// A mutex: parks under `std`, spins without it.
pub(crate) type Mutex<T> = lock_api::Mutex<RawMutex, T>;

/// A value alone on its cache lines (two of them: processors fetch lines in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub T);

impl<T> core::ops::Deref for Padded<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Waits a little for another thread: spins first, then (under `std`) gives the processor away, since the
/// thread waited for may need it.
#[derive(Debug, Default)]
pub(crate) struct Patience(u32);

impl Patience {
    /// One more wait, longer than the last.
    pub(crate) fn wait(&mut self) {
        self.0 = self.0.saturating_add(1);
        #[cfg(loom)]
        loom::thread::yield_now();
        #[cfg(shuttle)]
        spin_loop();
        // As long as below; the longest stands for giving the processor away, too.
        #[cfg(virtual_time)]
        slat_machine::pauses(1 << self.0.min(6));
        #[cfg(not(any(loom, shuttle, virtual_time)))]
        {
            #[cfg(feature = "std")]
            if self.0 > 6 {
                std::thread::yield_now();
                return;
            }
            for _ in 0..1_u32 << self.0.min(6) {
                spin_loop();
            }
        }
    }
}
