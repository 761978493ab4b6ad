//! What is kept for a slot while its writes are logged: the user's own type.

use crate::pool::NoMemory;
use crate::seeded::refused;
use crate::slot::Slot;
use alloc::alloc::{Layout, alloc, dealloc};
use core::ptr::NonNull;

/// What is kept for a slot while its writes are logged: a dirty bitmap, for instance.
///
/// It is made when a transaction creates a logging slot or switches a slot's logging on. It stays with the slot when the slot moves,
/// and is dropped when logging ends and no reader of an older version is left.
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
    /// The log of `slot`, which begins. `serial` tells the logs of one map apart. With `set`, every page counts as written. `None`
    /// where there is no memory: the operation is refused.
    fn begin(slot: &Slot, serial: u64, set: bool) -> Option<Self>;
}

/// Nothing is kept.
impl Log for () {
    fn begin(_: &Slot, _: u64, _: bool) -> Option<Self> {
        Some(())
    }
}

/// A log: owned by the map, lent to readers of the versions that hold it.
pub(crate) struct Kept<L>(NonNull<L>);

impl<L> Clone for Kept<L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for Kept<L> {}

// SAFETY: a shared log may be used, and an ended one freed, on any thread, as `L` allows; the map decides who frees it.
unsafe impl<L: Send + Sync> Send for Kept<L> {}
// SAFETY: as above.
unsafe impl<L: Send + Sync> Sync for Kept<L> {}

impl<L> Kept<L> {
    /// Not a box, whose allocation cannot be refused.
    pub(crate) fn new(log: L) -> Result<Self, NoMemory> {
        if refused() {
            return Err(NoMemory);
        }
        let layout = Layout::new::<L>();
        let place = if layout.size() == 0 {
            NonNull::dangling()
        } else {
            // SAFETY: it has a size.
            NonNull::new(unsafe { alloc(layout) }).ok_or(NoMemory)?.cast::<L>()
        };
        // SAFETY: fresh from the allocator, with the layout of what is written, or of no size.
        unsafe { place.write(log) };
        Ok(Self(place))
    }

    /// # Safety
    /// For all of `'g` the caller reads a version that holds this log.
    pub(crate) unsafe fn get<'g>(self) -> &'g L {
        // SAFETY: made in `new`; freed when no version that is read holds it.
        unsafe { self.0.as_ref() }
    }

    /// # Safety
    /// No version that is still read holds it, and it is freed once.
    pub(crate) unsafe fn free(self) {
        let layout = Layout::new::<L>();
        // SAFETY: made in `new` with this layout; the caller's word.
        unsafe {
            self.0.drop_in_place();
            if layout.size() > 0 {
                dealloc(self.0.as_ptr().cast(), layout);
            }
        }
    }
}
