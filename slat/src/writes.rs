//! Write tracking: stores to some guest frames come to a listener.
//!
//! A hypervisor that runs nested guests on tables of its own must know when the guest changes the tables that it copied; a device
//! model, when the guest writes memory that the device reads; a snapshot, what was there before the first store. Dirty logs
//! tell afterwards, and by page. Here each store is told with its bytes.
//!
//! ```text
//! track_writes    count the frames                 ([`crate::slots::watched`])
//!                 invalidate them as write-protected; a larger page that reaches out is split; one flush
//! a store         the leaf is read-only, and does not say that the host had it writable: `Done::WriteTracked`
//! emulate_store   listeners: before; the caller stores; marked dirty; listeners: after
//! drop            count the frames off: the next store asks the host, and is let through
//! ```
//! **A tracked frame is one whose page the host has read-only.** A fault asks for the count where it asks the host: after its
//! stamp, or with the entry frozen. So no rule of [`crate::notify`] is added: to begin is a host's write protection, and a fault
//! that had asked before finds its entry changed. What gives the permission back without a stamp, since the leaf says that
//! the host allowed stores, finds that the leaf does not say so. The short way of a fault keeps to leaf tables in which no frame is
//! tracked.
//!
//! **Tracked is a frame of an address space**, not of a memslot as in KVM. A memslot may be deleted, moved away, made again, or log:
//! the frames stay tracked, also those that have no memslot. An alias of the same memory, at another frame or in another address
//! space, is not tracked; nor is what the VMM or a device stores by itself. Of the engine's own stores to guest memory, those of A and
//! D by [`Memslots::walk_l1`] are told, after they are made; and no tracked frame is [held](crate::held) to write.
//!
//! Before the first tracker a fault pays one load of a word that nothing writes, off its short way.

use crate::addr::{Gfn, Gpa, Hva, PAGE_SIZE, Span};
use crate::host::Host;
use crate::memslots::{Memslots, Snapshot};
use crate::notify::begun::Range;
use crate::notify::invalidation::Invalidation;
use crate::space::Space;
use crate::sync::idle::Idle;
use crate::table::format::Format;
use crate::table::pool::NoMemory;
use crate::vm::Vm;
use crate::why::Why;
use alloc::sync::Arc;

pub use crate::slots::watched::{TrackedStore, WriteListener};

/// Stores to some frames are tracked while this lives: see [`Memslots::track_writes`]. To drop it waits for no vCPU.
#[derive(Debug)]
#[must_use = "stores are tracked only while this lives"]
pub struct WriteTracking<'vm, F: Format> {
    space: &'vm Space<F>,
    id: u64,
    gfns: Span<Gfn>,
}

impl<F: Format> WriteTracking<'_, F> {
    /// The frames.
    pub fn gfns(&self) -> Span<Gfn> {
        self.gfns
    }

    /// Goes on without the guard, until [`Memslots::untrack_writes`] is given this name.
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

/// Names a tracker of one address space whose guard was [given up](WriteTracking::detach). It is never used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TrackerId(u64);

/// Why a store is not emulated: it was not made. No listener was told, unless the memslot went while one was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no memslot, or a read-only one: the store is a device's.
    NoMemory,
    /// The frame shows [private memory](crate::Slot::is_private), which has no host address to write to. The VMM converts the frame, or
    /// ends the guest.
    Private,
    /// The bytes do not lie in one page: make a store of each part.
    CrossesPage,
}

errors! { StoreError:
    Self::NoMemory => "no memslot that may be written is there: emulate a device";
    Self::Private => "the frame's memory is private to the guest";
    Self::CrossesPage => "the store crosses the end of a page: make one of each part";
}

impl<F: Format, H: Host> Vm<F, H> {
    /// [`Memslots::track_writes`] in address space 0.
    pub fn track_writes(
        &self,
        idle: &mut Idle,
        gfns: Span<Gfn>,
        listener: Arc<dyn WriteListener>,
    ) -> Result<WriteTracking<'_, F>, NoMemory> {
        self.slots().track_writes(idle, gfns, listener)
    }
}

impl<'vm, F: Format, H: Host> Memslots<'vm, F, H> {
    /// From the return of this call until the guard is dropped no vCPU stores to `gfns` of this address space by itself: each
    /// store faults as [`Done::WriteTracked`](crate::Done::WriteTracked), and is [emulated](Self::emulate_store), which tells
    /// `listener`. Loads and fetches go on as before.
    ///
    /// Trackers of one frame nest: it is tracked until the last of them goes. After that its next store faults once more, and is
    /// let through. The frames may have memslots, or get them later; memslots that go, move or log change nothing.
    ///
    /// Begins an invalidation of the frames, and flushes: waits for vCPUs in the guest. Nothing is owed. An error, with nothing done,
    /// where there is no memory (1 KiB for each 2 MiB in which a frame was ever tracked, which the VM keeps), or where a
    /// frame has 65,535 trackers already. Takes time by the frame.
    ///
    /// ```
    /// use slat::*;
    /// use std::sync::{Arc, Mutex};
    /// # struct Identity;
    /// # unsafe impl TableMemory for Identity {}
    /// # impl Host for Identity {
    /// #     fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
    /// #         Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    /// #     }
    /// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<table::formats::Ept4, _>::builder(Identity).build()?;
    /// # vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
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
    /// let tracking = vm.track_writes(&mut idle, Span::sized(Gfn(5), 1), shadow.clone())?;
    ///
    /// // The guest stores to its table. The VMM decodes the instruction, and makes the store.
    /// let store = Fault { gpa: Gpa(0x5008), access: Access::Write };
    /// assert_eq!(vcpu.fault(&mut idle, store)?, Done::WriteTracked);
    /// vm.slots().emulate_store(&mut idle, store.gpa, &[1, 0, 0, 0], |hva| {
    ///     assert_eq!(hva, Hva((1 << 30) + 0x5008)); // copy the bytes there
    /// })?;
    /// assert_eq!(*shadow.0.lock().unwrap(), [(Gpa(0x5008), vec![1, 0, 0, 0])]);
    ///
    /// drop(tracking); // from here on the guest stores by itself again
    /// assert_eq!(vcpu.fault(&mut idle, store)?, Done::Mapped(Level::K4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn track_writes(
        &self,
        idle: &mut Idle,
        gfns: Span<Gfn>,
        listener: Arc<dyn WriteListener>,
    ) -> Result<WriteTracking<'vm, F>, NoMemory> {
        let gfns = gfns.clamp(&Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)));
        // Counted, then invalidated: a fault that was stamped before, and saw no count, finds its entry changed. Also where each frame
        // is tracked already: the one that counted first need not have flushed yet.
        let id = self.space.watched.watch(gfns, listener).ok_or(NoMemory)?;
        let tracking = WriteTracking { space: self.space, id, gfns };
        let mut change = Invalidation::begin(self.vm, Range::Gfns(self.space.id, gfns), Why::WriteProtect);
        if !gfns.is_empty() && !seeded!(WatchUnprotected) {
            change.apply(idle).settle();
        }
        Ok(tracking)
    }

    /// Ends a tracker whose guard was [given up](WriteTracking::detach); false where it has ended already.
    pub fn untrack_writes(&self, tracker: TrackerId) -> bool {
        self.space.watched.unwatch(tracker.0)
    }

    /// Whether stores to `gfn` are tracked.
    pub fn tracks_writes(&self, gfn: Gfn) -> bool {
        self.space.watched.has(gfn)
    }

    /// Makes a store for the guest, of `bytes` at `gpa`: tells the listeners of the frame, calls `store` with the host address, which
    /// copies the bytes, marks the page dirty where the memslot logs, and tells the listeners again. For a frame that is not
    /// tracked the same without listeners: so a store that faulted just before its tracker went is made all the same.
    ///
    /// The memslot stays while `store` runs: a transaction that takes it away waits. Stores of several vCPUs to one page are not
    /// ordered here. May sleep in the listeners, and in `store`.
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
        // It may have gone while listeners slept; then the store goes nowhere, as it would a moment later.
        let slot = writable(&snapshot)?;
        store(Hva(slot.hva_of(gfn).0 + offset));
        drop(snapshot);
        if !seeded!(EmulatedUnmarked) {
            self.mark_dirty(Span::sized(gfn, 1));
        }
        for listener in &listeners {
            listener.after(idle, &told);
        }
        Ok(())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
