//! `Idle`: a value that proves that this thread holds no MMU lock and is inside no walk.
//!
//! There is one per thread, and it cannot leave it. Whatever may sleep (asking the host for a page, waiting
//! for a shootdown or a grace period) takes `&mut Idle`; a [`Walk`](crate::walk::Walk) borrows the same value
//! for as long as it lives. So sleeping inside a walk does not compile:
//!
//! ```compile_fail,E0499
//! # use slat::{*, table::TableMemory};
//! # fn f<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
//! let walk = vm.shared(idle);
//! vm.host().resolve(idle, Hva(0), Access::Read); // second mutable borrow: rejected
//! drop(walk);
//! # }
//! ```
//!
//! **Per thread, not per VM**: a host that breaks a copy-on-write share inside a fault notifies other VMs from the same thread. A
//! VM lends a seat for that.

use core::marker::PhantomData;

/// Proof that this thread holds no MMU lock. See the module's header.
#[derive(Debug)]
pub struct Idle {
    /// Makes the token stay on its thread: raw pointers are neither `Send` nor `Sync`.
    _thread: PhantomData<*mut ()>,
    /// Whether it is the one that [`take`](Self::take) counts.
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

impl Idle {
    /// This thread's token, or `None` while it is out already.
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
        // Made only when it was free: dropping one gives it back.
        TAKEN.with(|taken| (!taken.replace(true)).then(|| Self { _thread: PhantomData, counted: true }))
    }

    /// A token made from nothing: for kernels, which know their own threads, and for callbacks of foreign code whose caller
    /// has the thread's token and does not use it meanwhile.
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
    /// No other token of this processor or thread may be in use while this one is: two would let a walk and a
    /// sleep meet, which deadlocks, and let one seat be entered twice, which frees memory under a reader.
    pub unsafe fn assume() -> Self {
        Self {
            _thread: PhantomData,
            // Where none is out this one counts: none is taken beside it.
            #[cfg(feature = "std")]
            counted: TAKEN.try_with(|taken| !taken.replace(true)).unwrap_or(false),
        }
    }
}

#[cfg(feature = "std")]
impl Drop for Idle {
    fn drop(&mut self) {
        // A thread being torn down has lost its flag already; then there is nothing to give back.
        if self.counted {
            let _ = TAKEN.try_with(|taken| taken.set(false));
        }
    }
}
