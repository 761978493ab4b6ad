//! Panics of the embedder's code, in the one place that catches them.
//!
//! The engine calls the embedder in many places: [`Host`](crate::Host), [`TableMemory`](crate::TableMemory),
//! [`Translations`](crate::Translations), [`WriteListener`](crate::WriteListener), and closures. Each call may panic, and
//! the caller of the VM may catch the panic and continue. The rule: **at each such call the state of the VM is whole, or
//! a guard makes it whole while the panic unwinds.** Then the next operation is right, and ends.
//!
//! | state at the call | cure | examples |
//! |---|---|---|
//! | whole | none is needed: callbacks come last | events of faults, zaps and splits; the end of a transaction |
//! | a later step must run | a guard runs it | arming of a log, spare table pages, dirty pages that were taken, frozen entries |
//! | the other callbacks must run, too | [`Caught`] | kicks of one flush, listeners of one store |
//!
//! `inject_tests/callbacks.rs` lets each call of each callback panic in turn.

use core::cell::Cell;

/// Runs callbacks that must all run, whichever of them panics. Keeps the first panic until [`end`](Self::end).
///
/// Without the feature `std` a panic cannot be caught, and aborts.
pub(crate) struct Caught {
    #[cfg(feature = "std")]
    panic: Cell<Option<alloc::boxed::Box<dyn core::any::Any + Send>>>,
    #[cfg(not(feature = "std"))]
    _not_sync: core::marker::PhantomData<Cell<()>>,
}

/// Dropped only while a panic unwinds; its own panic then aborts.
#[cfg(not(feature = "std"))]
struct AbortOnUnwind;

#[cfg(not(feature = "std"))]
impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        panic!("a callback panicked before others that must run: the operation cannot be finished");
    }
}

#[cfg_attr(
    not(feature = "std"),
    allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "as with `std`")
)]
impl Caught {
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(feature = "std")]
            panic: Cell::new(None),
            #[cfg(not(feature = "std"))]
            _not_sync: core::marker::PhantomData,
        }
    }

    /// Returns the callback's answer; `None` if it panicked.
    #[cfg(feature = "std")]
    #[inline(always)]
    pub(crate) fn call<R>(&self, callback: impl FnOnce() -> R) -> Option<R> {
        let answer = std::panic::catch_unwind(core::panic::AssertUnwindSafe(callback));
        answer.map_err(|panic| self.keep(panic)).ok()
    }

    #[cfg(feature = "std")]
    #[cold]
    fn keep(&self, panic: alloc::boxed::Box<dyn core::any::Any + Send>) {
        let first = self.panic.take().unwrap_or(panic);
        self.panic.set(Some(first));
    }

    /// Returns the callback's answer. A panic aborts.
    #[cfg(not(feature = "std"))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as with `std`")]
    #[inline(always)]
    pub(crate) fn call<R>(&self, callback: impl FnOnce() -> R) -> Option<R> {
        let unwound = AbortOnUnwind;
        let answer = callback();
        core::mem::forget(unwound);
        Some(answer)
    }

    /// Runs the last callback, with nothing left to do but to [`end`](Self::end).
    #[cfg_attr(not(feature = "std"), expect(clippy::unused_self, reason = "as with `std`"))]
    #[inline(always)]
    pub(crate) fn call_last(&self, callback: impl FnOnce()) {
        #[cfg(feature = "std")]
        self.call(callback);
        // Nothing is left undone, so a panic may unwind.
        #[cfg(not(feature = "std"))]
        callback();
    }

    /// Resumes the first panic, if any, unless this thread already unwinds. Call it when the state is whole.
    #[cfg_attr(not(feature = "std"), expect(clippy::unused_self, reason = "as with `std`"))]
    #[inline(always)]
    pub(crate) fn end(self) {
        #[cfg(feature = "std")]
        if let Some(panic) = self.panic.take().filter(|_| !std::thread::panicking()) {
            std::panic::resume_unwind(panic);
        }
    }
}

/// A step that runs when this is dropped: at the end of its block, or while a panic unwinds.
pub(crate) struct Finally<T, A: FnMut(&mut T)>(T, A);

impl<T, A: FnMut(&mut T)> Finally<T, A> {
    /// Runs `step` at the end, with `state`, to which this dereferences.
    #[inline(always)]
    pub(crate) fn with(state: T, step: A) -> Self {
        Self(state, step)
    }
}

impl<T, A: FnMut(&mut T)> core::ops::Deref for Finally<T, A> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T, A: FnMut(&mut T)> core::ops::DerefMut for Finally<T, A> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T, A: FnMut(&mut T)> Drop for Finally<T, A> {
    #[inline(always)]
    fn drop(&mut self) {
        (self.1)(&mut self.0);
    }
}
