//! Pages that are on their way: a fault returns, and its vCPU is woken by a token.

use crate::slat_status;
use crate::slat_status::{SLAT_EINVAL, SLAT_ENOENT};
use crate::status::{given, guarded};
use crate::{slat_vcpu, slat_vm};
use core::mem::MaybeUninit;
use slat::Token;

/// The page that the host called `token` is there, or cannot be had: wakes the vCPUs that wait for it, by `kick`. How many is in
/// `woken`, unless it is null. After the host's own table has the page. To call it twice, or for a token that was never answered, does
/// nothing more. Any thread, also in the guest, which holds no lock that `kick` takes; never sleeps. Errors: `SLAT_EINVAL`.
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

/// The vCPUs that wait for `token`, which is not ready: the numbers of `room` of them in `vcpus`, and how many they are, which may be
/// more, in `count`. Others may begin to wait meanwhile. Any thread; never sleeps. Errors: `SLAT_EINVAL`.
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
            // SAFETY: there is room for as many numbers, says the caller.
            unsafe { vcpus.add(at).write(vcpu.0) };
        }
        count.write(waiters.len());
        Ok(())
    })
}

/// The token of the page for which a fault, or a prefault, of this vCPU has ended as pending last. Out of the guest. Any thread; never
/// sleeps. Errors: `SLAT_ENOENT` where none has; `SLAT_EBUSY`, `SLAT_EINVAL`.
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

/// A token that this vCPU waits for and that is ready: the accesses that it was answered for may be made again. The vCPU does not wait
/// for it any more, and is told of it once. To be called before each entry. Out of the guest. Any thread; never sleeps.
///
/// Errors: `SLAT_ENOENT` where none is ready; `SLAT_EBUSY`, `SLAT_EINVAL`.
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

/// Whether a token that this vCPU waits for is ready, in `is_ready`: asked in the guest, beside `slat_vcpu_kicked`. By the thread
/// that entered; never sleeps. Errors: `SLAT_EBUSY` out of the guest; `SLAT_EPERM`, `SLAT_EINVAL`.
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

/// This vCPU waits for no token any more, and is told of none: it is reset, or its guest moves away. Out of the guest. Any thread; never
/// sleeps. Errors: `SLAT_EBUSY`, `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_vcpu_forget_tokens(vcpu: Option<&slat_vcpu>) -> slat_status {
    guarded(|| {
        given(vcpu)?.out(|vcpu| {
            vcpu.forget_tokens();
            Ok(())
        })
    })
}
