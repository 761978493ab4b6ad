//! Held frames: guest memory that the VMM or hardware uses beside the tables.

use crate::any_hold::AnyHold;
use crate::held::{Has, Held, IN_GUEST as IN_USE, OUT};
use crate::slat_status;
use crate::slat_status::{SLAT_EBUSY, SLAT_EINVAL, SLAT_ESTALE};
use crate::status::{given, guarded};
use crate::types::access;
use crate::vm::{Child, space_id};
use crate::{slat_access_raw, slat_thread, slat_vcpu, slat_vm};
use alloc::boxed::Box;
use core::mem::MaybeUninit;
use slat::{Access, Gpa};

/// A held guest frame. One call at a time may use the handle, from any thread; from `slat_held_use` to `slat_held_done`
/// only that thread.
#[derive(Debug)]
pub struct slat_held {
    held: Held<Inner>,
    writes: bool,
    for_hardware: bool,
}

struct Inner {
    /// Given back before its VM may be freed: fields drop in order.
    any: Box<dyn AnyHold>,
    vm: Child,
    /// The token of the thread in a use.
    user: Option<&'static slat_thread>,
}

impl slat_held {
    /// Takes access in a use, by the thread that began it.
    fn have_in_use(&self) -> Result<Has<'_, Inner>, slat_status> {
        let has = self.held.have(IN_USE)?;
        has.user.map_or(Err(SLAT_EBUSY), slat_thread::check_owner)?;
        Ok(has)
    }
}

/// Holds the guest frame at `gpa` for the access `wants`: a clock page, a posted-interrupt descriptor, a page of
/// descriptors. The holder uses the frame by its number, not through the guest's tables. The host may take it back, so
/// a use is valid or refused, never stale. Everything that takes a leaf of the frame also takes the held frame back,
/// and waits for a use to end. A frame held for `SLAT_WRITE` may also be read. With `for_hardware`, use it by
/// `slat_held_current`. Any thread; may sleep in `resolve`, and waits for an invalidation that covers the frame.
///
/// Owed: `slat_release`. Errors: `SLAT_ENOENT` if there is no space or memslot; `SLAT_EFAULT`, also for writing if the
/// memslot is read-only or stores are tracked; `SLAT_EPOISONED`, `SLAT_EIO`, `SLAT_EINPROGRESS`, `SLAT_ENODATA` from
/// the host; `SLAT_ENOMEM`, `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
#[unsafe(no_mangle)]
pub extern "C" fn slat_hold(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    space: u32,
    gpa: u64,
    wants: slat_access_raw,
    for_hardware: bool,
    held: Option<&mut MaybeUninit<*mut slat_held>>,
) -> slat_status {
    guarded(|| {
        let (vm, held, mut call) = (Child::of(given(vm)?), given(held)?, given(thread)?.call()?);
        let access = access(wants).ok_or(SLAT_EINVAL)?;
        let at = (space_id(space)?, Gpa(gpa).gfn());
        let any = vm.vm().hold(call.idle(), at, access, for_hardware)?;
        let inner = Held::new(Inner { any, vm, user: None });
        let made = slat_held { held: inner, writes: access == Access::Write, for_hardware };
        held.write(Box::into_raw(Box::new(made)));
        Ok(())
    })
}

/// Gives a held frame back and frees its handle. If hardware uses the frame, no running vCPU's control block may have
/// it. Any thread; waits for nothing.
///
/// Errors, after which it is still held: `SLAT_EBUSY` in a use or in another call; `SLAT_EINVAL`. Not checked: that no
/// thread uses it later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_release(held: *mut slat_held) -> slat_status {
    guarded(|| {
        // SAFETY: null, or a live handle, by the caller's contract.
        core::mem::forget(given(unsafe { held.as_ref() })?.held.have(OUT)?);
        // SAFETY: made by `slat_hold`, and no other call has it.
        drop(unsafe { Box::from_raw(held) });
        Ok(())
    })
}

/// Begins a use: the frame in `pfn` is the guest's until `slat_held_done`. With `writes` the page is dirty afterwards
/// if its memslot logs. Meanwhile the thread's token is in use, and invalidations of the frame wait. So access the
/// frame through a mapping of its own, wait for nothing, and end soon. Any thread; never sleeps.
///
/// Owed: `slat_held_done`. Errors: `SLAT_ESTALE` if the host has taken the frame back; `SLAT_EINVAL`, also for `writes`
/// on a frame that is not held for writing; `SLAT_EBUSY`, also for the token that `resolve` was given; `SLAT_EPERM`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_held_use(
    held: Option<&slat_held>,
    thread: Option<&'static slat_thread>,
    writes: bool,
    pfn: Option<&mut MaybeUninit<u64>>,
) -> slat_status {
    guarded(|| {
        let (held, thread, pfn) = (given(held)?, given(thread)?, given(pfn)?);
        if writes && !held.writes {
            return Err(SLAT_EINVAL);
        }
        let mut call = thread.call()?;
        call.may_enter()?;
        let mut has = held.held.have(OUT)?;
        pfn.write(has.any.begin(call.idle(), writes).ok_or(SLAT_ESTALE)?.0);
        has.user = Some(thread);
        has.then = IN_USE;
        call.in_guest();
        Ok(())
    })
}

/// Ends a use, and frees the thread's token. Only the thread that began it; never sleeps.
///
/// Errors: `SLAT_EBUSY` outside a use; `SLAT_EPERM`, `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_held_done(held: Option<&slat_held>) -> slat_status {
    guarded(|| {
        let mut has = given(held)?.have_in_use()?;
        has.any.end();
        if let Some(thread) = has.user.take() {
            thread.left_guest();
        }
        has.then = OUT;
        Ok(())
    })
}

/// Asks the host for the frame again if it has been taken back; otherwise does nothing. Hardware must not use it
/// meanwhile. After an error the frame stays refused. Sleeps, waits and fails as `slat_hold`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_held_refresh(held: Option<&slat_held>, thread: Option<&slat_thread>) -> slat_status {
    guarded(|| {
        let (mut call, mut has) = (given(thread)?.call()?, given(held)?.held.have(OUT)?);
        Ok(has.any.refresh(call.idle())?)
    })
}

/// Returns the frame for the control block of `vcpu`, in `pfn`. Call this at each entry, after `slat_vcpu_enter`, and
/// after each `slat_vcpu_answer`. Each vCPU holds the frame separately. Until the vCPU leaves, an invalidation that
/// takes the frame back kicks it. Only the thread that entered; never sleeps.
///
/// Errors: `SLAT_ESTALE` if the host has taken the frame back: leave, and refresh it. `SLAT_EBUSY` if the vCPU is out
/// of the guest; `SLAT_EINVAL` if the frame is not held for hardware, or belongs to another VM; `SLAT_EPERM`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_held_current(
    held: Option<&slat_held>,
    vcpu: Option<&slat_vcpu>,
    pfn: Option<&mut MaybeUninit<u64>>,
) -> slat_status {
    guarded(|| {
        let (held, vcpu, pfn) = (given(held)?, given(vcpu)?, given(pfn)?);
        if !held.for_hardware {
            return Err(SLAT_EINVAL);
        }
        let has = held.held.have(OUT)?;
        let found = vcpu.ask_guest(|guest, vm| {
            if has.vm.is_of_same(vm) { has.any.current(guest).ok_or(SLAT_ESTALE) } else { Err(SLAT_EINVAL) }
        });
        pfn.write(found?.0);
        Ok(())
    })
}

/// Marks the frame dirty, if its memslot logs, because hardware has or may have written it. Call this after the write,
/// and before `slat_held_refresh`. The memslot may have moved meanwhile. Any thread; never sleeps. Errors: `SLAT_EBUSY`,
/// `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_held_mark_dirty(held: Option<&slat_held>) -> slat_status {
    guarded(|| {
        given(held)?.held.have(OUT)?.any.mark_dirty();
        Ok(())
    })
}
