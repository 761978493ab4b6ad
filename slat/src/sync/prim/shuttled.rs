//! The primitives under shuttle, which runs all threads of a test on one, and decides at each step who goes on.
//!
//! Shuttle's own atomics are no words: a page-table entry cannot be one. So these are `core`'s, each operation after a
//! [`step`] at which another thread may be chosen. A thread that waits says so ([`spin_loop`]): then another one *is* chosen, and
//! schedules by priority put the one who waits behind all others. Every operation is sequentially consistent here, whatever
//! its ordering says: orderings are loom's to check.

use core::fmt;
use core::sync::atomic::{self as core_atomic, Ordering};

std::thread_local! {
    /// Shuttle's atomics may be used by the threads of one test, which are one to the machine; other tests run beside it.
    static STEP: shuttle::sync::atomic::AtomicBool = const { shuttle::sync::atomic::AtomicBool::new(false) };
}

/// Another thread may go on here: what shuttle does before an access to an atomic of its own.
pub(crate) fn step() {
    STEP.with(|step| step.load(Ordering::Relaxed));
}

/// Waits for another thread, which is to go on now.
pub(crate) fn spin_loop() {
    shuttle::thread::yield_now();
}

/// Without a step. See [`prim::quiet`](super::quiet) of other builds.
pub(crate) fn quiet(cell: &AtomicU64) -> &core_atomic::AtomicU64 {
    &cell.0
}

/// Locks spin, as far as shuttle can tell.
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
        /// `core`'s, with a step before each operation.
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
