//! The primitives under shuttle, which runs all threads of a test on one thread, and picks the next one at each step.
//!
//! Shuttle's own atomics are not plain words, so a page-table entry cannot be one. These are `core`'s atomics, with a
//! [`step`] before each operation, at which shuttle may switch threads. A waiting thread calls [`spin_loop`]: shuttle
//! then *does* switch, and schedules by priority put the waiting thread last. Every operation is sequentially
//! consistent here, whatever its ordering: loom checks the orderings.

use core::fmt;
use core::sync::atomic::{self as core_atomic, Ordering};

std::thread_local! {
    /// Only the threads of one test may use shuttle's atomics; other tests run beside it.
    static STEP: shuttle::sync::atomic::AtomicBool = const { shuttle::sync::atomic::AtomicBool::new(false) };
}

/// Lets shuttle switch threads, as before an access to its own atomics.
pub(crate) fn step() {
    STEP.with(|step| step.load(Ordering::Relaxed));
}

/// Lets shuttle run another thread, for which this one waits.
pub(crate) fn spin_loop() {
    shuttle::thread::yield_now();
}

/// Accesses without a step. See [`prim::quiet`](super::quiet) of other builds.
pub(crate) fn quiet(cell: &AtomicU64) -> &core_atomic::AtomicU64 {
    &cell.0
}

/// To shuttle, locks spin.
pub(crate) type RawMutex = spin::mutex::SpinMutex<(), Turn>;
pub(crate) type RawRwLock = spin::rwlock::RwLock<(), Turn>;

/// How to wait for a lock.
pub(crate) struct Turn;

impl spin::RelaxStrategy for Turn {
    fn relax() {
        spin_loop();
    }
}

macro_rules! stepping {
    ($name:ident $(<$param:ident>)?, $value:ty, $($operation:ident)*) => {
        /// `core`'s atomic, with a step before each operation.
        #[repr(transparent)]
        pub(crate) struct $name $(<$param>)? (core_atomic::$name $(<$param>)?);

        #[allow(dead_code, reason = "each type has what the others have")]
        impl $(<$param>)? $name $(<$param>)? {
            pub(crate) const fn new(value: $value) -> Self {
                Self(core_atomic::$name::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                step();
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                step();
                self.0.store(value, order);
            }

            pub(crate) fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                done: Ordering,
                lost: Ordering,
            ) -> Result<$value, $value> {
                step();
                self.0.compare_exchange(old, new, done, lost)
            }

            $(pub(crate) fn $operation(&self, value: $value, order: Ordering) -> $value {
                step();
                self.0.$operation(value, order)
            })*
        }

        impl $(<$param>)? Default for $name $(<$param>)? {
            fn default() -> Self {
                Self(Default::default())
            }
        }

        impl $(<$param>)? fmt::Debug for $name $(<$param>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

stepping!(AtomicBool, bool, swap);
stepping!(AtomicU8, u8, swap fetch_and fetch_or);
stepping!(AtomicU32, u32, swap);
stepping!(AtomicU64, u64, swap fetch_add fetch_sub fetch_and fetch_or fetch_max);
stepping!(AtomicPtr<T>, *mut T, swap);
