//! Write tracking: each store to some guest frames is reported to a listener.
//!
//! A hypervisor that shadows a nested guest's tables must learn of stores to those tables. A device model must learn of
//! stores to memory that the device reads. A snapshot must save the old contents before the first store. Dirty logs
//! report afterwards, and by page; write tracking reports each store with its bytes.
//!
//! ```text
//! track_writes    counts the frames                ([`crate::slots::watched`])
//!                 invalidates them as write-protected; splits a larger page that reaches out; one flush
//! a store         the leaf is read-only, and does not say that the host had it writable: `Next::Emulate(Emulate::Tracked)`
//! emulate_store   listeners: before; the caller stores; marked dirty; listeners: after
//! drop            counts the frames off: the next store asks the host, and is let through
//! ```
//! **The engine treats a tracked frame as one whose page the host maps read-only.** A fault reads the count where it
//! asks the host: after its stamp, or with the entry frozen. This adds no rule to [`crate::notify`]: the begin is a
//! host's write protection, and a fault that asked before it finds its entry changed. A permission is restored without
//! a stamp only if the leaf says that the host allowed stores, and a withdrawn leaf does not say so. The short path of a
//! fault skips leaf tables with tracked frames.
//!
//! **A tracked frame belongs to an address space**, not to a memslot as in KVM. A memslot may be deleted, moved,
//! created again, or log: the frames stay tracked, with or without a memslot. An alias of the same memory, at another
//! frame or in another address space, is not tracked; nor are stores by the VMM or a device. Of the engine's own stores
//! to guest memory, A and D by [`GuestSpace::walk_l1`] are reported, after they are made. No tracked frame is
//! [held](crate::held) to write.
//!
//! Before the first tracker a fault pays one load of a word that nothing writes, off its short path.

use crate::callbacks::{Caught, Finally};
use crate::memslots::Snapshot;
use crate::notify::begun::{Begun, Range, Scope};
use crate::space::Space;
use crate::{Format, Gfn, Gpa, GuestSpace, Host, Hva, Idle, NoMemory, PAGE_SIZE, Reason, Span};
use alloc::sync::Arc;

pub use crate::slots::watched::{TrackedStore, WriteListener};

/// A guard: stores to some frames are tracked while it lives. See [`GuestSpace::track_writes`]. Its drop does not wait.
/// If it is leaked (`core::mem::forget`), the stores are tracked as long as the VM lives; [`detach`](Self::detach) instead.
#[derive(Debug)]
#[must_use = "stores are tracked only while this lives"]
pub struct WriteTracking<'vm, F: Format> {
    space: &'vm Space<F>,
    id: u64,
    gfns: Span<Gfn>,
}

impl<F: Format> WriteTracking<'_, F> {
    /// The tracked frames.
    pub fn gfns(&self) -> Span<Gfn> {
        self.gfns
    }

    /// Continues to track without the guard, until [`GuestSpace::untrack_writes`] is called with the returned name.
    #[must_use = "nothing else ends it"]
    pub fn detach(self) -> TrackerId {
        TrackerId(core::mem::ManuallyDrop::new(self).id)
    }
}

impl<F: Format> Drop for WriteTracking<'_, F> {
    fn drop(&mut self) {
        self.space.watched.unwatch(self.id);
    }
}

/// Name of a tracker whose guard was [detached](WriteTracking::detach), unique in its address space. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TrackerId(u64);

/// Why a store was not emulated. It was not made. No listener was called, unless the memslot was deleted while one ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no memslot, or a read-only one: the store goes to a device.
    NoMemory,
    /// The frame shows [private memory](crate::Slot::is_private), which has no host address. The VMM converts the
    /// frame, or ends the guest.
    Private,
    /// The bytes do not lie in one page: emulate a store for each part.
    CrossesPage,
}

errors! { StoreError:
    Self::NoMemory => "no memslot that may be written is there: emulate a device";
    Self::Private => "the frame's memory is private to the guest";
    Self::CrossesPage => "the store crosses the end of a page: make one of each part";
}

impl<'vm, F: Format, H: Host> GuestSpace<'vm, F, H> {
    /// Tracks stores to `gfns` of this address space until the guard is dropped. From the return of this call no vCPU
    /// stores to them directly: each store faults as [`Emulate::Tracked`](crate::Emulate::Tracked), and the VMM
    /// [emulates](Self::emulate_store) it, which calls `listener`. Loads and fetches are unaffected.
    ///
    /// Trackers of one frame nest: it is tracked until the last of them is dropped. Its next store then faults once
    /// more, and is let through. The frames may have memslots, or get them later. Deleting, moving or logging a memslot
    /// changes nothing.
    ///
    /// Begins an invalidation of the frames, and flushes: waits for vCPUs in the guest. Takes time proportional to the
    /// number of frames.
    ///
    /// # Errors
    /// [`NoMemory`], with nothing changed, without memory (1 KiB, which the VM keeps, for each 2 MiB in which a frame
    /// was ever tracked), or if a frame has 65,535 trackers already.
    ///
    /// ```
    /// use slat::*;
    /// use std::sync::{Arc, Mutex};
    ///
    /// /// A host whose frame is always the address.
    /// struct Identity;
    /// impl Host for Identity {
    ///     fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
    ///         Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    ///     }
    ///     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
    ///         Err(HostError::Fault)
    ///     }
    /// }
    ///
    /// let mut idle = Idle::take().unwrap();
    /// let vm = Vm::<table::formats::Ept4, _>::builder(Identity).build()?;
    /// vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
    /// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// /// The guest's table at frame 5, of which a copy is kept.
    /// #[derive(Default)]
    /// struct Shadow(Mutex<Vec<(Gpa, Vec<u8>)>>);
    /// impl WriteListener for Shadow {
    ///     fn after(&self, _: &mut Idle, store: &TrackedStore<'_>) {
    ///         self.0.lock().unwrap().push((store.gpa, store.bytes.to_vec()));
    ///     }
    /// }
    ///
    /// let shadow = Arc::new(Shadow::default());
    /// let tracking = vm.memory().track_writes(&mut idle, Span::sized(Gfn(5), 1), shadow.clone())?;
    ///
    /// // The guest stores to its table. The VMM decodes the instruction, and makes the store.
    /// let store = Fault { gpa: Gpa(0x5008), access: Access::Write };
    /// assert_eq!(vcpu.fault(&mut idle, store)?, Next::Emulate(Emulate::Tracked));
    /// vm.memory().emulate_store(&mut idle, store.gpa, &[1, 0, 0, 0], |hva| {
    ///     assert_eq!(hva, Hva((1 << 30) + 0x5008)); // copy the bytes there
    /// })?;
    /// assert_eq!(*shadow.0.lock().unwrap(), [(Gpa(0x5008), vec![1, 0, 0, 0])]);
    ///
    /// drop(tracking); // from here on the guest stores by itself again
    /// assert_eq!(vcpu.fault(&mut idle, store)?, Next::Resume(Resume::Mapped(Level::K4)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn track_writes(
        &self,
        idle: &mut Idle,
        gfns: Span<Gfn>,
        listener: Arc<dyn WriteListener>,
    ) -> Result<WriteTracking<'vm, F>, NoMemory> {
        let gfns = gfns.clamp(&Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)));
        // Counted, then invalidated: a fault that took its stamp before, and saw no count, finds its entry changed.
        // Also if each frame is tracked already: the earlier tracker may not have flushed yet.
        let id = self.space.watched.watch(gfns, listener).ok_or(NoMemory)?;
        let tracking = WriteTracking { space: self.space, id, gfns };
        let mut change = Begun::begin(self.vm, Range::Gfns(self.space.id, gfns), Reason::WriteProtect);
        if !gfns.is_empty() {
            change.edit(idle, &Scope::Whole, None);
            change.settle(true);
        }
        Ok(tracking)
    }

    /// Ends a tracker whose guard was [detached](WriteTracking::detach). Returns false if it has ended already.
    pub fn untrack_writes(&self, tracker: TrackerId) -> bool {
        self.space.watched.unwatch(tracker.0)
    }

    /// Whether stores to `gfn` are tracked.
    pub fn tracks_writes(&self, gfn: Gfn) -> bool {
        self.space.watched.has(gfn)
    }

    /// Makes a store of the guest, of `bytes` at `gpa`: calls the frame's listeners, calls `store` with the host
    /// address, which copies the bytes, marks the page dirty if the memslot logs, and calls the listeners again. A
    /// frame that is not tracked has no listeners, but the store is made: its tracker may have been dropped since the
    /// fault.
    ///
    /// The memslot stays while `store` runs: a transaction that removes it waits. Stores of several vCPUs to one page
    /// are not ordered here. The listeners and `store` may sleep.
    ///
    /// A panic of `store` marks the page, because it may have copied a part. A panic of one listener after the store
    /// continues when the others have been called. (Without the feature `std` it aborts.)
    pub fn emulate_store(
        &self,
        idle: &mut Idle,
        gpa: Gpa,
        bytes: &[u8],
        store: impl FnOnce(Hva),
    ) -> Result<(), StoreError> {
        let (gfn, offset) = (gpa.gfn(), gpa.0 % PAGE_SIZE);
        if offset + bytes.len() as u64 > PAGE_SIZE {
            return Err(StoreError::CrossesPage);
        }
        let writable = |slots: &Snapshot<'_>| match slots.find(gfn).filter(|slot| !slot.readonly) {
            None => Err(StoreError::NoMemory),
            Some(slot) if slot.is_private() => Err(StoreError::Private),
            Some(slot) => Ok(slot),
        };
        writable(&self.snapshot(idle))?;
        let told = TrackedStore { space: self.space.id, gpa, bytes };
        let listeners = self.space.watched.listeners(gfn);
        for listener in &listeners {
            listener.before(idle, &told);
        }
        let snapshot = self.snapshot(idle);
        // The memslot may be deleted while listeners sleep; the store is then not made, as after the deletion.
        let slot = writable(&snapshot)?;
        // If `store` panics, it may have copied a part.
        let made = Finally::with((), |()| snapshot.mark_store(gfn));
        store(Hva(slot.hva_of(gfn).0 + offset));
        drop(made);
        drop(snapshot);
        tell_after(&listeners, idle, &told);
        Ok(())
    }
}

/// Tells all listeners of a store that was made, also if one of them panics: the others must not miss it.
pub(crate) fn tell_after(listeners: &[Arc<dyn WriteListener>], idle: &mut Idle, store: &TrackedStore<'_>) {
    let panics = Caught::new();
    for listener in listeners {
        panics.call(|| listener.after(idle, store));
    }
    panics.end();
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
