//! Notifies the secondary MMUs of an address space of changes, and asks them which pages were accessed.

use crate::pages::hvas_of;
use crate::space::AddressSpace;
use crate::state::State;
use crate::vma::EVERYWHERE;
use slat::{Again, Event, Gfn, Hva, Idle, Pages, Reason, SecondaryMmu, Span, Young};
use std::sync::{Arc, Weak};

impl AddressSpace {
    /// Notifies `mmu` of every later change before it happens, until it is [unregistered](Self::unregister) or
    /// dropped. Waits for changes in progress. Register a [`Vm`](slat::Vm) before its first fault.
    ///
    /// Inside [`around`](SecondaryMmu::around) a secondary MMU may call only [`lookup`](Self::lookup) of this
    /// address space: other functions take locks that the change holds. In particular it cannot register or
    /// unregister a secondary MMU there.
    ///
    /// **A panic** of the secondary MMU unwinds to the caller of the change, and the address space stays usable: no lock
    /// or range is left taken. The change is made or not, as the panic came after or before it:
    /// * `munmap`, `mprotect`: the range has its old permissions again, and is mapped. Its contents are gone if the
    ///   change was made, and it has no registration for user faults. A second call does the rest.
    /// * `mremap`: the range has moved if the change was made. If not, it is at its old place, where a part that was cut
    ///   off is gone.
    /// * `take_soft_dirty`: the next call returns the whole range.
    /// * Other changes are made in part. Some frames may stay in use until the arena is dropped, if
    ///   [`Pages`] panics. `exit` counts as done.
    ///
    /// Frames that the change has taken away are freed all the same: before the panic leaves `around`, the secondary MMU
    /// must have stopped its accesses to the range. A panic inside a background thread of this crate ends that thread.
    pub fn register<M: SecondaryMmu + 'static>(&self, mmu: &Arc<M>) {
        for state in &mut self.state.write() {
            state.listeners.add(weak(mmu));
        }
    }

    /// Invalidates everything in `mmu` ([`Reason::Exit`] over all addresses), and notifies it no more. Returns
    /// false if it was not registered. Waits for changes in progress; may sleep.
    ///
    /// The caller must have stopped its vCPUs: mappings that they add afterwards would never be taken away.
    ///
    /// ```
    /// # use slat::{table::formats::Npt4, *};
    /// # use slat_mm::*;
    /// # use std::sync::Arc;
    /// # let mut idle = Idle::take().unwrap();
    /// # let arena = Arena::builder().limit(64 << 20).build()?;
    /// let space = AddressSpace::builder(&arena).build()?;
    /// let vm = Arc::new(Vm::<Npt4, _>::builder(HostView::new(&space)).build()?);
    /// space.register(&vm);
    /// assert!(space.unregister(&mut idle, &vm));
    /// assert!(!space.unregister(&mut idle, &vm), "the VM was unregistered before");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unregister<M: SecondaryMmu + 'static>(&self, idle: &mut Idle, mmu: &Arc<M>) -> bool {
        let mut states = self.state.write();
        let known = states.iter_mut().fold(false, |known, state| state.listeners.remove(&weak(mmu)) | known);
        if known {
            self.counters.add_notified(Reason::Exit);
            // The event may block, so `around` cannot refuse.
            let _ = mmu.around(idle, Event::new(EVERYWHERE, Reason::Exit), &mut |_, _| {});
        }
        known
    }

    /// Whether any page of the range was accessed through a secondary MMU since its Accessed bit was cleared.
    /// Clears the bits in all secondary MMUs if `young` says so. `Young::Test` stops at the first yes.
    pub fn young(&self, idle: &mut Idle, hvas: Span<Hva>, young: Young) -> bool {
        self.state.read().listeners.young(idle, hvas, young)
    }

    /// Runs `change` inside a notification of every secondary MMU. `state` is borrowed from the caller's guard:
    /// see the order of the locks.
    pub(crate) fn around(
        &self,
        state: &State,
        idle: &mut Idle,
        pages: Span<Gfn>,
        why: Reason,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) {
        self.counters.add_notified(why);
        // The event may block, so the change is always made.
        let _ = state.listeners.around(idle, Event::new(hvas_of(pages), why), change);
    }

    /// Like `around`, but without running `change` if a listener would have to wait.
    pub(crate) fn try_around(
        &self,
        state: &State,
        idle: &mut Idle,
        pages: Span<Gfn>,
        why: Reason,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        let event = Event { may_block: false, ..Event::new(hvas_of(pages), why) };
        state.listeners.around(idle, event, change).inspect(|()| self.counters.add_notified(why))
    }
}

fn weak<M: SecondaryMmu + 'static>(mmu: &Arc<M>) -> Weak<dyn SecondaryMmu> {
    let weak: Weak<M> = Arc::downgrade(mmu);
    weak
}
