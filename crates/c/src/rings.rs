//! Dirty rings, and the settings of dirty logs.

use crate::harvest::begin;
use crate::slat_status;
use crate::slat_status::SLAT_EINVAL;
use crate::status::{given, guarded};
use crate::types::{DIRTY_FLAGS, dirty_log};
use crate::{slat_dirty_page, slat_harvest, slat_thread, slat_vm};
use core::ffi::c_void;
use core::mem::MaybeUninit;
use slat::VcpuId;

/// Changes the settings of a VM's dirty logs at run time. `flags` are `SLAT_VM_DIRTY_*`, and `ring_bytes` is as in
/// `slat_config`. Later logs begin set or clear, and split large pages, as the flags say. Rings can be added to a VM
/// without rings while it has no vCPUs. The size of rings, their removal, and `SLAT_VM_DIRTY_BITS` in a format that has
/// them, cannot change. Any thread; waits for transactions.
///
/// Errors, after which nothing has changed: `SLAT_EINVAL`, `SLAT_ENOMEM`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
#[unsafe(no_mangle)]
pub extern "C" fn slat_set_dirty_log(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    flags: u32,
    ring_bytes: u32,
) -> slat_status {
    guarded(|| {
        let (vm, mut call) = (given(vm)?, given(thread)?.call()?);
        let log = dirty_log(flags, ring_bytes).filter(|_| flags & !DIRTY_FLAGS == 0).ok_or(SLAT_EINVAL)?;
        Ok(vm.any.set_dirty_log(call.idle(), log)?)
    })
}

/// Takes the pages that one vCPU has written since its ring was last harvested, in `harvest`; otherwise as
/// `slat_harvest_begin`. Marks of devices, and pages that a failed harvest gives back, are in no ring:
/// `slat_harvest_all_begin` takes them.
///
/// Errors, after which nothing is lost: `SLAT_ENXIO` in a VM without rings; `SLAT_ENOMEM`, `SLAT_EINVAL`; `SLAT_EBUSY`,
/// `SLAT_EPERM` for the token.
#[unsafe(no_mangle)]
pub extern "C" fn slat_ring_harvest_begin(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    vcpu: u32,
    harvest: Option<&mut MaybeUninit<*mut slat_harvest>>,
) -> slat_status {
    begin(vm, thread, harvest, |vm, idle| vm.harvest_ring(idle, VcpuId(vcpu)))
}

/// The first of two steps: calls `tell` with the pages that one vCPU has written and that were not reported yet, in the
/// order of its stores; a page may occur more than once. `count` gets their number. This cleans no page: copy pages
/// after `slat_rings_reset`. `tell` does not wait, and does not call slat. Any thread; never sleeps. Errors: as
/// `slat_ring_harvest_begin`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_ring_collect(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    vcpu: u32,
    tell: Option<unsafe extern "C" fn(user: *mut c_void, page: *const slat_dirty_page)>,
    user: *mut c_void,
    count: Option<&mut MaybeUninit<u64>>,
) -> slat_status {
    guarded(|| {
        let (vm, tell, count, mut call) = (given(vm)?, given(tell)?, given(count)?, given(thread)?.call()?);
        let told = vm.any.collect_ring(call.idle(), VcpuId(vcpu), &mut |page| {
            let page = slat_dirty_page::from(page);
            // SAFETY: the caller's own function and pointer; the page is ours until it returns.
            unsafe { tell(user, &raw const page) }
        });
        count.write(told?);
        Ok(())
    })
}

/// The second step: all collected pages, of every vCPU, are clean from now on, and the vCPUs have room again. `count`
/// gets the number of stores. When this returns, earlier stores are in memory: copy the pages after it. Any thread;
/// waits for vCPUs in the guest, unless nothing was collected. Errors, after which `slat_harvest_all_begin` takes the
/// pages that are neither clean nor collected: as `slat_ring_harvest_begin`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_rings_reset(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    count: Option<&mut MaybeUninit<u64>>,
) -> slat_status {
    guarded(|| {
        let (vm, count, mut call) = (given(vm)?, given(count)?, given(thread)?.call()?);
        count.write(vm.any.reset_rings(call.idle())?);
        Ok(())
    })
}

/// Returns the number of stores of one vCPU that were collected and not reset, in `count`. Any thread; never sleeps.
/// Errors: as `slat_ring_harvest_begin`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_ring_not_reset(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    vcpu: u32,
    count: Option<&mut MaybeUninit<u64>>,
) -> slat_status {
    guarded(|| {
        let (vm, count, mut call) = (given(vm)?, given(count)?, given(thread)?.call()?);
        count.write(vm.any.collected_not_reset(call.idle(), VcpuId(vcpu))?);
        Ok(())
    })
}
