//! `Idle`: a value that proves that this thread holds no MMU lock and is inside no walk.
//!
//! Each thread has one, and it cannot leave the thread. Every function that may sleep (asking the host for a page,
//! waiting for a shootdown or a grace period) takes `&mut Idle`. A [`Walk`](crate::walk::Walk) borrows the same value
//! while it lives, so sleeping inside a walk does not compile:
//!
//! ```compile_fail,E0499
//! # use slat::*;
//! # fn f<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
//! let walk = vm.memory().shared(idle);
//! vm.host().resolve(idle, Hva(0), Access::Read); // second mutable borrow: rejected
//! drop(walk);
//! # }
//! ```
//!
//! **Calls without a token.** Some calls read memslots or tables and never sleep, so they take no token:
//! [`GuestSpace::is_dirty`](crate::guest_space::GuestSpace::is_dirty),
//! [`try_walk_l1`](crate::guest_space::GuestSpace::try_walk_l1). A function of the embedder that they call inside a section
//! could take the thread's token and wait for that section for ever. [`Idle::take`] therefore returns `None` there.
//!
//! **Per thread, not per VM**: a host that breaks a copy-on-write share inside a fault notifies other VMs from the same
//! thread. Each of those VMs lends it a seat.

use core::marker::PhantomData;

/// Proof that this thread holds no MMU lock. See the module's header.
#[derive(Debug)]
pub struct Idle {
    /// Makes the token stay on its thread: raw pointers are neither `Send` nor `Sync`.
    _thread: PhantomData<*mut ()>,
    /// Whether it is the token that [`take`](Self::take) counts.
    #[cfg(feature = "std")]
    counted: bool,
}

#[cfg(shuttle)]
use shuttle::thread_local;
#[cfg(virtual_time)]
use slat_machine::thread_local;
#[cfg(all(feature = "std", not(any(shuttle, virtual_time))))]
use std::thread_local;

#[cfg(feature = "std")]
thread_local! {
    static TAKEN: core::cell::Cell<bool> = const { core::cell::Cell::new(false) };
}

#[cfg(feature = "std")]
thread_local! {
    /// Number of [`NoIdle`]s.
    static REFUSED: core::cell::Cell<u32> = const { core::cell::Cell::new(0) };
}

/// While this lives, its thread cannot take its token: it is in a call that has not got the token and opens a section.
/// Without `std` the caller of [`Idle::assume`] guarantees that.
pub(crate) struct NoIdle {
    _thread: PhantomData<*mut ()>,
}

impl NoIdle {
    #[inline]
    pub(crate) fn new() -> Self {
        Self::count(|refused| refused + 1);
        Self { _thread: PhantomData }
    }

    #[inline]
    fn count(change: impl FnOnce(u32) -> u32) {
        // A thread that is being torn down takes no token.
        #[cfg(feature = "std")]
        let _ = REFUSED.try_with(|refused| refused.set(change(refused.get())));
        #[cfg(not(feature = "std"))]
        let _ = change;
    }
}

impl Drop for NoIdle {
    #[inline]
    fn drop(&mut self) {
        Self::count(|refused| refused - 1);
    }
}

impl Idle {
    /// Takes this thread's token. Returns `None` while it is taken, and inside a section of a call that has not got it:
    /// in a host's [`lookup`](crate::Host::lookup) or [`read`](crate::Host::read), or in an observer.
    ///
    /// ```
    /// use slat::Idle;
    /// let idle = Idle::take().expect("first on this thread");
    /// assert!(Idle::take().is_none(), "one per thread");
    /// assert!(Idle::take().is_none(), "however often one asks");
    /// drop(idle);
    /// assert!(Idle::take().is_some(), "dropping gives it back");
    /// ```
    #[cfg(feature = "std")]
    pub fn take() -> Option<Self> {
        if REFUSED.with(core::cell::Cell::get) > 0 {
            return None;
        }
        // Constructed only if it was free: dropping one gives it back.
        TAKEN.with(|taken| (!taken.replace(true)).then(|| Self { _thread: PhantomData, counted: true }))
    }

    /// Creates a token unchecked: for kernels, which track their own threads, and for callbacks from foreign code,
    /// whose caller has the thread's token and does not use it meanwhile.
    ///
    /// ```
    /// use slat::Idle;
    /// let outer = Idle::take().unwrap();
    /// extern "C" fn callback() {
    ///     // SAFETY: called from below, where the thread is in no walk, and `outer` is not used before this returns.
    ///     let mut _idle = unsafe { Idle::assume() };
    ///     assert!(Idle::take().is_none(), "the thread's token is out");
    /// }
    /// callback();
    /// assert!(Idle::take().is_none(), "still");
    /// drop(outer);
    /// assert!(Idle::take().is_some());
    /// ```
    ///
    /// # Safety
    /// While this token is in use, no other token of the thread or processor may be, and the thread may be in no
    /// section: not below [`Host::lookup`](crate::Host::lookup) and the like. Two tokens, or one inside a section, would
    /// allow a sleep inside a walk, which deadlocks, and two entries of one seat, which frees memory under a reader.
    pub unsafe fn assume() -> Self {
        Self {
            _thread: PhantomData,
            // If no token is taken, this one counts: [`take`](Self::take) then returns `None`.
            #[cfg(feature = "std")]
            counted: TAKEN.try_with(|taken| !taken.replace(true)).unwrap_or(false),
        }
    }
}

#[cfg(feature = "std")]
impl Drop for Idle {
    fn drop(&mut self) {
        // A thread that is being torn down has lost its flag: there is nothing to give back.
        if self.counted {
            let _ = TAKEN.try_with(|taken| taken.set(false));
        }
    }
}

#[cfg(all(test, feature = "std", not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    #[test]
    fn a_section_without_the_token_that_unwinds_refuses_it_no_longer() {
        let outer = NoIdle::new();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _inner = NoIdle::new();
            assert!(Idle::take().is_none());
            resume_unwind(std::boxed::Box::new("on purpose"));
        }));
        assert!(panicked.is_err() && Idle::take().is_none(), "the outer one still refuses it");
        drop(outer);
        let idle = Idle::take().expect("nothing refuses it");
        let _during = NoIdle::new();
        drop(idle);
        assert!(Idle::take().is_none(), "a token that is given back meanwhile is not taken again");
    }
}
