//! Pending pages: a fault returns, and a token wakes its vCPU.

use crate::slat_status;
use crate::slat_status::{SLAT_EINVAL, SLAT_ENOENT};
use crate::status::{given, guarded};
use crate::{slat_vcpu, slat_vm};
use core::mem::MaybeUninit;
use slat::Token;

/// Reports that the page with the token `token` is present, or will not come: wakes the vCPUs that wait for it, by
/// `kick`. `woken` gets their number, unless it is null. Call this after the host's own table has the page. A second
/// call, or a call for an unknown token, has no effect. Any thread, also in the guest, which holds no lock that `kick`
/// takes; never sleeps. Errors: `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_ready(
    vm: Option<&'static slat_vm>,
    token: u64,
    woken: Option<&mut MaybeUninit<usize>>,
) -> slat_status {
    guarded(|| {
        let count = given(vm)?.any.ready(Token(token));
        woken.map(|woken| woken.write(count));
        Ok(())
    })
}

/// Lists the vCPUs that wait for `token`, which is not ready: up to `room` of their numbers in `vcpus`, and their
/// total, which may be more, in `count`. Others may begin to wait meanwhile. Any thread; never sleeps. Errors:
/// `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_waiters(
    vm: Option<&'static slat_vm>,
    token: u64,
    vcpus: *mut u32,
    room: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> slat_status {
    guarded(|| {
        let (vm, count) = (given(vm)?, given(count)?);
        if room != 0 && (vcpus.is_null() || !vcpus.is_aligned()) {
            return Err(SLAT_EINVAL);
        }
        let waiters = vm.any.waiters(Token(token));
        for (at, vcpu) in waiters.iter().take(room).enumerate() {
            // SAFETY: there is room for as many numbers, by the caller's contract.
            unsafe { vcpus.add(at).write(vcpu.0) };
        }
        count.write(waiters.len());
        Ok(())
    })
}

/// Returns the token of the page for which the last pending fault, or prefault, of this vCPU ended. Out of the guest.
/// Any thread; never sleeps. Errors: `SLAT_ENOENT` if there was none; `SLAT_EBUSY`, `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_vcpu_pending_token(
    vcpu: Option<&slat_vcpu>,
    token: Option<&mut MaybeUninit<u64>>,
) -> slat_status {
    guarded(|| {
        let (vcpu, token) = (given(vcpu)?, given(token)?);
        let found = vcpu.out(|vcpu| vcpu.pending_token().ok_or(SLAT_ENOENT))?;
        token.write(found.0);
        Ok(())
    })
}

/// Takes a ready token for which this vCPU waits: the guest may repeat the accesses that got this token. The vCPU no
/// longer waits for it, and gets it once. Call this before each entry. Out of the guest. Any thread; never sleeps.
///
/// Errors: `SLAT_ENOENT` if none is ready; `SLAT_EBUSY`, `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_vcpu_take_ready(
    vcpu: Option<&slat_vcpu>,
    token: Option<&mut MaybeUninit<u64>>,
) -> slat_status {
    guarded(|| {
        let (vcpu, token) = (given(vcpu)?, given(token)?);
        let found = vcpu.out(|vcpu| vcpu.take_ready().ok_or(SLAT_ENOENT))?;
        token.write(found.0);
        Ok(())
    })
}

/// Returns whether a token for which this vCPU waits is ready, in `is_ready`. Call this in the guest, beside
/// `slat_vcpu_kicked`. Only the thread that entered; never sleeps. Errors: `SLAT_EBUSY` out of the guest; `SLAT_EPERM`,
/// `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_vcpu_has_ready(
    vcpu: Option<&slat_vcpu>,
    is_ready: Option<&mut MaybeUninit<bool>>,
) -> slat_status {
    guarded(|| {
        let (vcpu, is_ready) = (given(vcpu)?, given(is_ready)?);
        is_ready.write(vcpu.ask_guest(|guest, _| Ok(guest.has_ready()))?);
        Ok(())
    })
}

/// Makes this vCPU wait for no token any more, because it is reset, or its guest moves away. Out of the guest. Any
/// thread; never sleeps. Errors: `SLAT_EBUSY`, `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_vcpu_forget_tokens(vcpu: Option<&slat_vcpu>) -> slat_status {
    guarded(|| {
        given(vcpu)?.out(|vcpu| {
            vcpu.forget_tokens();
            Ok(())
        })
    })
}
