//! Invalidations, from begin to end.

use crate::any::AnyChange;
use crate::held::{Held, OUT};
use crate::slat_status;
use crate::slat_status::SLAT_EINVAL;
use crate::status::{given, guarded};
use crate::types::pages;
use crate::vm::Child;
use crate::{slat_page, slat_thread, slat_vm, slat_why_raw};
use alloc::boxed::Box;
use core::mem::MaybeUninit;
use slat::{Hva, Reason, Span};

/// A change of the host's tables. One call at a time may use it, from any thread.
#[derive(Debug)]
pub struct slat_change {
    /// Ends before its VM may be freed: fields drop in order.
    held: Held<Box<dyn AnyChange>>,
    hvas: Span<Hva>,
    child: Child,
}

/// Begins an invalidation of [hva, hva + bytes) before the host changes its tables there, for this reason. The handle
/// is in `change`. Faults on the range wait until it ends. Any thread, also in the guest; never sleeps. Up to 4,032 may
/// be open, also nested.
///
/// Owed: `slat_invalidate_end`, soon. Errors: `SLAT_EAGAIN` where 4,032 are open, or memory for more than 64 cannot be had;
/// `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub extern "C" fn slat_invalidate_begin(
    vm: Option<&'static slat_vm>,
    hva: u64,
    bytes: u64,
    why: slat_why_raw,
    change: Option<&mut MaybeUninit<*mut slat_change>>,
) -> slat_status {
    guarded(|| {
        let (child, change) = (Child::of(given(vm)?), given(change)?);
        let hvas = pages(hva, bytes).ok_or(SLAT_EINVAL)?;
        let why = *Reason::ALL.get(why as usize).filter(|why| **why != Reason::Slot).ok_or(SLAT_EINVAL)?;
        let held = Held::new(child.vm().invalidate(hvas, why)?);
        let made = slat_change { held, hvas, child };
        change.write(Box::into_raw(Box::new(made)));
        Ok(())
    })
}

/// Applies the edits of the reason to the guest's tables, and flushes. When this returns, no vCPU uses the old
/// mappings, and the host may change its own tables. For a page-by-page reason (`SLAT_RECLAIM`, `SLAT_NUMA`,
/// `SLAT_CHANGE_PTE`) every page of the range counts as changed; a host that reports single pages does not call this.
/// Any thread; waits for vCPUs in the guest, and may sleep in the host's
/// `alloc_tables` and `free_tables`.
///
/// Errors: `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for change and token.
#[unsafe(no_mangle)]
pub extern "C" fn slat_invalidate_apply(
    change: Option<&slat_change>,
    thread: Option<&slat_thread>,
) -> slat_status {
    guarded(|| {
        let (mut call, mut has) = (given(thread)?.call()?, given(change)?.held.have(OUT)?);
        has.apply(call.idle());
        Ok(())
    })
}

/// For a page-by-page reason, instead of `slat_invalidate_apply`: reports that the host's page at [hva, hva + bytes), in the range of the change, is now
/// `to`, or nothing if `to` is null. Edits the guest's mappings of it, and flushes. When this returns, no vCPU uses the
/// old frame. The host calls this under its own lock of the page, and copies or frees the old frame afterwards. After
/// `slat_invalidate_apply` this does nothing. Any thread; waits for vCPUs in the guest.
///
/// Errors: `SLAT_EINVAL`, also for a range outside of the change; `SLAT_EBUSY`, `SLAT_EPERM` for change and token.
#[unsafe(no_mangle)]
pub extern "C" fn slat_invalidate_changed(
    change: Option<&slat_change>,
    thread: Option<&slat_thread>,
    hva: u64,
    bytes: u64,
    to: Option<&slat_page>,
) -> slat_status {
    guarded(|| {
        let (change, mut call) = (given(change)?, given(thread)?.call()?);
        let hvas = pages(hva, bytes).filter(|hvas| change.hvas.covers(hvas)).ok_or(SLAT_EINVAL)?;
        let host = change.child.vm().host();
        let to = to.map(|page| host.page(page).ok_or(SLAT_EINVAL)).transpose()?;
        change.held.have(OUT)?.changed(call.idle(), hvas, to);
        Ok(())
    })
}

/// Ends an invalidation and frees its handle: faults on the range continue, and ask the host again. Without an apply
/// the invalidation is cancelled, and the host then changes nothing. Any thread, also in the guest; never sleeps.
///
/// Errors, after which it is still open: `SLAT_EBUSY` in another call, `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_invalidate_end(change: *mut slat_change) -> slat_status {
    guarded(|| {
        // SAFETY: null, or a live change, by the caller's contract.
        core::mem::forget(given(unsafe { change.as_ref() })?.held.have(OUT)?);
        // SAFETY: made by `slat_invalidate_begin`, and no other call has it.
        drop(unsafe { Box::from_raw(change) });
        Ok(())
    })
}
