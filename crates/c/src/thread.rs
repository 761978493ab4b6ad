//! The token of a thread: slat's `Idle` behind a handle that says whether it is in use.

use crate::slat_status;
use crate::slat_status::{SLAT_EBUSY, SLAT_EINVAL, SLAT_EPERM};
use crate::status::{given, guarded};
use alloc::boxed::Box;
use core::cell::Cell;
use core::mem::MaybeUninit;
use slat::Idle;

/// A thread's token. Calls that may wait need it. Each thread has one, and only that thread uses it.
#[derive(Debug)]
pub struct slat_thread {
    idle: *mut Idle,
    owner: usize,
    /// Lent to the host for one call of `resolve`.
    is_lent: bool,
    state: Cell<State>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    InCall,
    InGuest,
}

/// A call that uses the token.
pub(crate) struct Call<'t>(&'t slat_thread);

/// Returns a value that identifies this thread among all live ones.
#[cfg(feature = "std")]
#[inline]
fn this_thread() -> usize {
    std::thread_local! {
        static HERE: u8 = const { 0 };
    }
    HERE.with(|here| core::ptr::from_ref(here).addr())
}

/// Without `std` nothing identifies a thread: a kernel keeps the promise of [`slat_thread_new`].
#[cfg(not(feature = "std"))]
fn this_thread() -> usize {
    0
}

impl slat_thread {
    /// Makes a token for a call inside a call.
    pub(crate) fn lent(idle: &mut Idle) -> Self {
        Self { idle, owner: this_thread(), is_lent: true, state: Cell::new(State::Free) }
    }

    /// Begins a call.
    #[inline]
    pub(crate) fn call(&self) -> Result<Call<'_>, slat_status> {
        self.check_owner()?;
        if self.state.get() != State::Free {
            return Err(SLAT_EBUSY);
        }
        self.state.set(State::InCall);
        Ok(Call(self))
    }

    #[inline]
    pub(crate) fn check_owner(&self) -> Result<(), slat_status> {
        if self.owner == this_thread() { Ok(()) } else { Err(SLAT_EPERM) }
    }

    /// Frees the token after its vCPU has left the guest.
    pub(crate) fn left_guest(&self) {
        self.state.set(State::Free);
    }
}

impl Call<'_> {
    pub(crate) fn idle(&mut self) -> &mut Idle {
        // SAFETY: the token is this thread's, as `call` has checked; no other call uses it, as the state shows.
        unsafe { &mut *self.0.idle }
    }

    /// A lent token cannot outlive its call, so it enters no guest.
    pub(crate) fn may_enter(&self) -> Result<(), slat_status> {
        if self.0.is_lent { Err(SLAT_EBUSY) } else { Ok(()) }
    }

    /// Ends the call in the guest: the token stays in use.
    pub(crate) fn in_guest(self) {
        self.0.state.set(State::InGuest);
        core::mem::forget(self);
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.state.set(State::Free);
    }
}

/// Makes the calling thread's token, in `thread`. Never sleeps.
///
/// Owed: `slat_thread_free` by the same thread, before it ends. Errors: `SLAT_EBUSY` if the thread has one, or in a
/// callback that may not sleep; `SLAT_EINVAL`. A library without `std` cannot tell threads apart. There, no other token of this thread may be in use
/// (or of this processor in a kernel without threads), and slat does not check that other threads leave the token
/// alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_thread_new(thread: Option<&mut MaybeUninit<*mut slat_thread>>) -> slat_status {
    guarded(|| {
        let thread = given(thread)?;
        #[cfg(feature = "std")]
        let idle = Idle::take().ok_or(SLAT_EBUSY)?;
        // SAFETY: the caller promises that no other token of this thread is in use.
        #[cfg(not(feature = "std"))]
        let idle = unsafe { Idle::assume() };
        let idle = Box::into_raw(Box::new(idle));
        let made = slat_thread { idle, owner: this_thread(), is_lent: false, state: Cell::new(State::Free) };
        thread.write(Box::into_raw(Box::new(made)));
        Ok(())
    })
}

/// Frees a token. Only its own thread; never sleeps.
///
/// Errors, after which the token is unchanged: `SLAT_EBUSY` in a call or in the guest; `SLAT_EPERM` in another thread;
/// `SLAT_EINVAL` for null and for the token that `resolve` was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_thread_free(thread: *mut slat_thread) -> slat_status {
    guarded(|| {
        // SAFETY: null, or a live token, by the caller's contract.
        let token = given(unsafe { thread.as_ref() })?;
        drop(token.call()?);
        if token.is_lent {
            return Err(SLAT_EINVAL);
        }
        // SAFETY: both were made by `slat_thread_new`, and nothing uses them.
        unsafe {
            drop(Box::from_raw(token.idle));
            drop(Box::from_raw(thread));
        }
        Ok(())
    })
}
