//! Write tracking: a listener sees stores to some frames.

use crate::any::AnyTracking;
use crate::slat_status;
use crate::slat_status::SLAT_EINVAL;
use crate::status::{given, guarded};
use crate::types::frames;
use crate::vm::{Child, space_id};
use crate::{slat_listener, slat_store, slat_thread, slat_vm};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use slat::{Gpa, Idle, PAGE_SIZE, TrackedStore, WriteListener};

/// A tracker of stores: a listener, and its frames.
pub struct slat_tracking {
    /// Ends before its VM may be freed: fields drop in order.
    _any: Box<dyn AnyTracking>,
    _vm: Child,
}

impl core::fmt::Debug for slat_tracking {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("slat_tracking").finish_non_exhaustive()
    }
}

/// C's listener. The engine keeps it until no call of it is under way.
struct Listener {
    functions: slat_listener,
    /// The engine has taken the listener, and calls `release` at its end.
    is_taken: AtomicBool,
}

// SAFETY: `slat_track_writes` has its caller promise that any thread may be in any of these functions.
unsafe impl Send for Listener {}
// SAFETY: as above.
unsafe impl Sync for Listener {}

type Tells = unsafe extern "C" fn(*mut c_void, *const slat_thread, *const slat_store);

impl Listener {
    fn tell(&self, function: Option<Tells>, idle: &mut Idle, store: &TrackedStore<'_>) {
        let Some(function) = function else { return };
        let &TrackedStore { space, gpa, bytes } = store;
        let (gpa, space) = (gpa.0, space.0.into());
        let (store, thread) = (
            slat_store { gpa, bytes: bytes.as_ptr().cast(), count: bytes.len(), space },
            slat_thread::lent(idle),
        );
        // SAFETY: the caller's own function and pointer; the rest is ours until it returns.
        unsafe { function(self.functions.user, &raw const thread, &raw const store) }
    }
}

impl WriteListener for Listener {
    fn before(&self, idle: &mut Idle, store: &TrackedStore<'_>) {
        self.tell(self.functions.before, idle, store);
    }

    fn after(&self, idle: &mut Idle, store: &TrackedStore<'_>) {
        self.tell(self.functions.after, idle, store);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if *self.is_taken.get_mut()
            && let Some(release) = self.functions.release
        {
            // SAFETY: the caller's own function and pointer, once.
            unsafe { release(self.functions.user) }
        }
    }
}

/// Tracks stores to [gpa, gpa + bytes) of address space `space`. After this call each store of a vCPU there faults as
/// `SLAT_WRITE_TRACKED`, and the VMM makes it by `slat_emulate_store`, which calls `listener`. Loads and fetches do not
/// fault. The frames need no memslot; memslots that are deleted, move or log change nothing. Trackers of one frame
/// nest. Copies `listener`. Any thread; waits for vCPUs in the guest.
///
/// The caller promises that the functions of `listener` do what their comments say. Owed: `slat_untrack_writes`.
/// Errors, after which no store is tracked and `release` is not called: `SLAT_ENOENT` for the space, `SLAT_ENOMEM`,
/// `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_track_writes(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    space: u32,
    gpa: u64,
    bytes: u64,
    listener: Option<&slat_listener>,
    tracking: Option<&mut MaybeUninit<*mut slat_tracking>>,
) -> slat_status {
    guarded(|| {
        let (vm, functions, tracking) = (Child::of(given(vm)?), *given(listener)?, given(tracking)?);
        let gfns = frames(gpa, bytes).ok_or(SLAT_EINVAL)?;
        let mut call = given(thread)?.call()?;
        let listener = Arc::new(Listener { functions, is_taken: AtomicBool::new(false) });
        let any = vm.vm().track_writes(call.idle(), (space_id(space)?, gfns), listener.clone())?;
        listener.is_taken.store(true, Relaxed);
        tracking.write(Box::into_raw(Box::new(slat_tracking { _any: any, _vm: vm })));
        Ok(())
    })
}

/// Ends a tracker and frees its handle. If no other tracker covers a frame, its next store faults once more and then
/// succeeds. Stores under way still call the listener. Any thread; waits for no vCPU. Not checked: that no other thread
/// does the same. Errors: `SLAT_EINVAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_untrack_writes(tracking: *mut slat_tracking) -> slat_status {
    guarded(|| {
        // SAFETY: made by `slat_track_writes`, live, and used by no other call, by the caller's contract.
        drop(given((!tracking.is_null()).then(|| unsafe { Box::from_raw(tracking) }))?);
        Ok(())
    })
}

/// Makes a store of `count` bytes at `gpa` for the guest, within one page: calls the listeners of the frame, calls
/// `store` with the host address to copy the bytes there, marks the page dirty if the memslot logs, and calls the
/// listeners again. An untracked frame has no listeners. The memslot stays while `store` runs; `store` may sleep, but
/// does not call slat. Any thread; may sleep in listeners and `store`.
///
/// Errors, after which no store was made: `SLAT_ENOENT` if there is no space, or no writable memslot; `SLAT_EFAULT` for
/// a private frame; `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slat_emulate_store(
    vm: Option<&'static slat_vm>,
    thread: Option<&slat_thread>,
    space: u32,
    gpa: u64,
    bytes: *const c_void,
    count: usize,
    store: Option<unsafe extern "C" fn(user: *mut c_void, hva: u64)>,
    user: *mut c_void,
) -> slat_status {
    guarded(|| {
        let (vm, store, mut call) = (given(vm)?, given(store)?, given(thread)?.call()?);
        if bytes.is_null() || count > PAGE_SIZE as usize {
            return Err(SLAT_EINVAL);
        }
        // SAFETY: as many bytes, by the caller's contract.
        let bytes = unsafe { core::slice::from_raw_parts(bytes.cast::<u8>(), count) };
        // SAFETY: the caller's own function and pointer.
        let mut store = |hva: slat::Hva| unsafe { store(user, hva.0) };
        vm.any.emulate_store(call.idle(), (space_id(space)?, Gpa(gpa)), bytes, &mut store)
    })
}
