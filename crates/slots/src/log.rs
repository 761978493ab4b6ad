//! The user's value for a slot while its writes are logged.

use crate::pool::NoMemory;
use crate::slot::Slot;
use alloc::alloc::{Layout, alloc, dealloc};
use core::ptr::NonNull;

/// The user's value for a slot while its writes are logged, such as a dirty bitmap.
///
/// A transaction creates it with a logging slot, or when it switches logging on. It moves with its slot. It is
/// dropped after logging has ended and all readers of older versions have finished.
///
/// ```
/// use slat_slots::{Gfn, Hva, Limits, Log, SharedSlots, Slot, SlotId};
/// use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
///
/// struct Written(Vec<AtomicBool>);
/// impl Log for Written {
///     fn begin(slot: &Slot, _serial: u64, set: bool) -> Option<Self> {
///         Some(Self((0..slot.gfns.len()).map(|_| set.into()).collect()))
///     }
/// }
/// let mut slots = SharedSlots::<Written>::new(Limits::default());
/// slots.commit(|tx| tx.create(Slot::new(SlotId(0), Gfn(16), 16, Hva(0x7000_0000)).log_dirty()))?;
/// let seen = slots.snapshot();
/// seen.log(SlotId(0)).unwrap().0[3].store(true, Relaxed);
/// # Ok::<(), slat_slots::SlotError>(())
/// ```
pub trait Log: Sized + Send + Sync {
    /// Creates the log of `slot`. `serial` distinguishes the logs of one map. With `set`, every page counts as
    /// written. `None` refuses the operation for lack of memory.
    fn begin(slot: &Slot, serial: u64, set: bool) -> Option<Self>;
}

/// Stores nothing.
impl Log for () {
    fn begin(_: &Slot, _: u64, _: bool) -> Option<Self> {
        Some(())
    }
}

/// A log, owned by the map and borrowed by readers of the versions that contain it.
pub(crate) struct Kept<L>(NonNull<L>);

impl<L> Clone for Kept<L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for Kept<L> {}

// SAFETY: like a shared `L`, which any thread may use and, after it has ended, free; the map frees it once.
unsafe impl<L: Send + Sync> Send for Kept<L> {}
// SAFETY: as above.
unsafe impl<L: Send + Sync> Sync for Kept<L> {}

impl<L> Kept<L> {
    /// Not a `Box`, whose allocation cannot fail gracefully.
    pub(crate) fn new(log: L) -> Result<Self, NoMemory> {
        let layout = Layout::new::<L>();
        let place = if layout.size() == 0 {
            NonNull::dangling()
        } else {
            // SAFETY: its size is not zero.
            NonNull::new(unsafe { alloc(layout) }).ok_or(NoMemory)?.cast::<L>()
        };
        // SAFETY: newly allocated with the layout of `L`, or of size zero.
        unsafe { place.write(log) };
        Ok(Self(place))
    }

    /// # Safety
    /// During `'g` the caller reads a version that contains this log.
    pub(crate) unsafe fn get<'g>(self) -> &'g L {
        // SAFETY: created in `new`; freed when no version that contains it is read any more.
        unsafe { self.0.as_ref() }
    }

    /// # Safety
    /// No version that contains it is read any more, and it is freed once.
    pub(crate) unsafe fn free(self) {
        let layout = Layout::new::<L>();
        // SAFETY: created in `new` with this layout; the caller keeps the condition.
        unsafe {
            self.0.drop_in_place();
            if layout.size() > 0 {
                dealloc(self.0.as_ptr().cast(), layout);
            }
        }
    }
}
