//! The primitives of the engine: atomics, fences, locks, and waits.
//!
//! Only this module replaces them. A shipped build has `core`'s atomics, with parking locks under `std` and spinning
//! ones without it. Under `--cfg loom` the atomics are loom's, which explores the protocols of [`super::readside`] and
//! [`crate::active`] interleaving by interleaving. Under `--cfg shuttle` they are `core`'s, since page tables
//! lie in borrowed memory, with a possible thread switch before each operation: whole VMs run under many schedules.
//! Under `--cfg virtual_time` (the package `slat-virtual`, built from the same source) each operation, lock and wait
//! costs a simulated CPU its price.

#[cfg(not(any(loom, tsan, virtual_time)))]
pub(crate) use core::sync::atomic::fence;
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{
    Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst},
    compiler_fence,
};

#[cfg(not(any(loom, shuttle, virtual_time)))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64};
// Also in virtual time: a row beside an entry comes with the entry's line.
#[cfg(all(feature = "nested", not(any(loom, shuttle))))]
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
    AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Instant, RawMutex, RawRwLock, fence, filled, full_path,
    quiet, read_whole, scanned, spin_loop, written_whole,
};

/// The cell itself, for accesses that need no schedule: no other thread reaches it, or nothing depends on its value.
#[cfg(not(any(shuttle, virtual_time)))]
#[inline(always)]
pub(crate) fn quiet(cell: &AtomicU64) -> &AtomicU64 {
    cell
}

/// Like [`quiet`], for a thread that reads all words of a table, and for the thread that fills it.
#[cfg(not(virtual_time))]
pub(crate) use {quiet as scanned, quiet as filled};

/// Reads `T` by plain loads, since no other thread writes it meanwhile. Only virtual time charges for it.
#[cfg(not(virtual_time))]
#[inline(always)]
pub(crate) fn read_whole<T>(_: &T) {}

/// `T` was written by plain stores, and other threads may read it from now on. Only virtual time charges for it.
#[cfg(not(virtual_time))]
#[inline(always)]
pub(crate) fn written_whole<T>(_: &T) {}

/// A fault begins its full pipeline, or an invalidation begins. Only virtual time charges for it.
#[cfg(not(virtual_time))]
#[inline(always)]
pub(crate) fn full_path() {}

/// ThreadSanitizer knows no fences. An exchange on one global word orders at least as much: a race that it then reports
/// is real, and loom finds races that only a weaker fence would show.
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

/// loom has no compiler fence, and no membarrier to pair it with: a symmetric fence replaces both.
#[cfg(loom)]
pub(crate) fn compiler_fence(order: Ordering) {
    fence(order);
}

/// A full fence directly after a read-modify-write of this thread. On x86 that instruction is a full fence already.
#[inline(always)]
pub(crate) fn fence_after_rmw() {
    // ORDER(rmw): everything before, including the read-modify-write, before everything after. Callers name the pair.
    if cfg!(all(any(target_arch = "x86", target_arch = "x86_64"), not(any(loom, tsan, miri)))) {
        compiler_fence(SeqCst);
    } else {
        fence(SeqCst);
    }
}

// Miri has spinning locks: those of `parking_lot` make pointers of numbers.
#[cfg(all(feature = "std", not(any(miri, shuttle, virtual_time))))]
pub(crate) use parking_lot::RawMutex;
#[cfg(all(feature = "std", feature = "baselines", not(any(miri, shuttle, virtual_time))))]
pub(crate) use parking_lot::RawRwLock;
#[cfg(any(not(feature = "std"), miri))]
pub(crate) type RawMutex = spin::Mutex<()>;
#[cfg(all(feature = "baselines", any(not(feature = "std"), miri)))]
pub(crate) type RawRwLock = spin::RwLock<()>;

/// A monotonic clock, where there is one.
#[cfg(all(feature = "std", feature = "baselines", not(virtual_time)))]
pub(crate) use std::time::Instant;

/// A mutex: parks under `std`, spins without it.
pub(crate) type Mutex<T> = lock_api::Mutex<RawMutex, T>;

/// A value alone on its cache lines (two, since processors fetch lines in pairs).
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

/// Waits for another thread: spins first, then (under `std`) yields the processor, which that thread may need.
#[derive(Debug, Default)]
pub(crate) struct Patience(u32);

impl Patience {
    /// Waits once more, longer than the last time.
    pub(crate) fn wait(&mut self) {
        self.0 = self.0.saturating_add(1);
        #[cfg(loom)]
        loom::thread::yield_now();
        #[cfg(shuttle)]
        spin_loop();
        // As long as below; the longest wait also stands for a yield.
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
