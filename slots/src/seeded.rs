//! Seeded mistakes and failures: for this crate's tests, and for processes built with `--cfg seeded`.
//!
//! `slat/src/seeded.rs` lists the mistakes, and what must find each.

/// Whether this allocation is refused. Always false except in tests.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn refused() -> bool {
    false
}

/// Whether the mistake of this name is switched on: for this thread, or by `SLAT_SEEDED` for the process.
#[cfg(any(test, seeded))]
pub(crate) fn is(name: &str) -> bool {
    static EVERYWHERE: std::sync::OnceLock<Option<std::string::String>> = std::sync::OnceLock::new();
    #[cfg(test)]
    if planned::MADE.get() == Some(name) {
        return true;
    }
    cfg!(seeded) && EVERYWHERE.get_or_init(|| std::env::var("SLAT_SEEDED").ok()).as_deref() == Some(name)
}

#[cfg(test)]
pub(crate) use planned::{nth, refused, with};

#[cfg(test)]
mod planned {
    use core::cell::Cell;

    std::thread_local! {
        pub(super) static MADE: Cell<Option<&'static str>> = const { Cell::new(None) };
        /// Number of allocations until the one that is refused.
        static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Runs `work` on this thread with the mistake switched on.
    pub(crate) fn with<R>(name: &'static str, work: impl FnOnce() -> R) -> R {
        MADE.set(Some(name));
        let result = work();
        MADE.set(None);
        result
    }

    pub(crate) fn refused() -> bool {
        let left = LEFT.get();
        LEFT.set(left.and_then(|left| left.checked_sub(1)));
        left == Some(0)
    }

    /// Runs `work` with allocation number `nth`, from 0, refused; returns whether `work` got there.
    pub(crate) fn nth<R>(nth: u64, work: impl FnOnce() -> R) -> (R, bool) {
        LEFT.set(Some(nth));
        let result = work();
        (result, LEFT.take().is_none())
    }
}
