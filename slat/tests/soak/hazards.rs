//! Callbacks of the host that misbehave: they panic, or they let other threads run where the engine is in the middle of
//! an operation.

use crate::random::Random;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

thread_local! {
    static RANDOM: RefCell<Random> = RefCell::new(Random::new(0));
    static OFTEN: Cell<bool> = const { Cell::new(false) };
}

/// One call in this many panics in [`often`].
const OFTEN_ONE_IN: u64 = 12;

/// The payload of a panic on purpose.
struct OnPurpose;

/// How callbacks misbehave. See the module's header.
pub struct Hazards {
    /// One call in this many panics; zero for none.
    panics: u64,
    /// One call in this many waits; zero for none.
    waits: u64,
    pub panicked: AtomicU64,
}

impl Hazards {
    pub fn none() -> Self {
        Self { panics: 0, waits: 0, panicked: AtomicU64::new(0) }
    }

    pub fn some() -> Self {
        Self { panics: 3000, waits: 60, ..Self::none() }
    }

    /// Called by each callback, after its own work.
    pub fn strike(&self) {
        let draws = |one_in: u64| one_in > 0 && RANDOM.with_borrow_mut(|random| random.one_in(one_in));
        if draws(self.waits) {
            std::thread::yield_now();
        }
        let panics = if OFTEN.get() { self.panics.min(OFTEN_ONE_IN) } else { self.panics };
        // A second panic would end the process.
        if !std::thread::panicking() && draws(panics) {
            self.panicked.fetch_add(1, Relaxed);
            resume_unwind(Box::new(OnPurpose));
        }
    }
}

/// Seeds this thread's choices.
pub fn seed(seed: u64) {
    RANDOM.set(Random::new(seed));
}

/// Runs `work`, in which callbacks panic often if `is_often` is set.
pub fn often<R>(is_often: bool, work: impl FnOnce() -> R) -> R {
    OFTEN.set(is_often);
    let result = catch_unwind(AssertUnwindSafe(work));
    OFTEN.set(false);
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Runs `work`. Returns `None` if a callback panicked on purpose; any other panic goes on.
pub fn caught<R>(work: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(work))
        .map_err(|panic| {
            if !panic.is::<OnPurpose>() {
                resume_unwind(panic)
            }
        })
        .ok()
}
