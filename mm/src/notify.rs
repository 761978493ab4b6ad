//! Telling the secondary MMUs of an address space: of each change before it happens; and asking them what was used.

use crate::pte::hvas_of;
use crate::space::AddressSpace;
use crate::state::State;
use crate::vma::EVERYWHERE;
use slat::{Again, Event, Gfn, Hva, Idle, Pages, SecondaryMmu, Span, Why, Young};
use std::sync::{Arc, Weak};

impl AddressSpace {
    /// From now on `mmu` is told of every change before it happens, until it is [unregistered](Self::unregister) or
    /// dropped. Waits for changes in progress. Register a [`Vm`](slat::Vm) before its first fault.
    ///
    /// Inside [`around`](SecondaryMmu::around) a secondary MMU may call [`lookup`](Self::lookup) and nothing
    /// else of this address space: the rest takes locks that the change holds. So it cannot register or unregister
    /// a secondary MMU there, itself included.
    pub fn register<M: SecondaryMmu + 'static>(&self, mmu: &Arc<M>) {
        for state in &mut self.state.write() {
            state.listeners.add(weak(mmu));
        }
    }

    /// Tells `mmu` to let go of everything ([`Why::Exit`], over all addresses), and then nothing any more. False
    /// where it was not registered. Waits for changes in progress; may sleep.
    ///
    /// The caller has stopped its vCPUs before: what they map afterwards would never be taken away from them.
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
    /// assert!(!space.unregister(&mut idle, &vm), "it has gone");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unregister<M: SecondaryMmu + 'static>(&self, idle: &mut Idle, mmu: &Arc<M>) -> bool {
        let mut states = self.state.write();
        let known = states.iter_mut().fold(false, |known, state| state.listeners.remove(&weak(mmu)) | known);
        if known {
            self.counters.add_notified(Why::Exit);
            // It may block, so there is no other answer.
            let _ = mmu.around(idle, Event::new(EVERYWHERE, Why::Exit), &mut |_, _| {});
        }
        known
    }

    /// Whether any page of the range was used through a secondary MMU since its Accessed bit was cleared; clears the
    /// bits of all of them, where `young` says so. A test stops at the first that says yes.
    pub fn young(&self, idle: &mut Idle, hvas: Span<Hva>, young: Young) -> bool {
        self.state.read().listeners.young(idle, hvas, young)
    }

    /// Tells every secondary MMU, runs `change` inside, and lets them go on. `state` is borrowed from the
    /// caller's guard: see the order of the locks.
    pub(crate) fn around(
        &self,
        state: &State,
        idle: &mut Idle,
        pages: Span<Gfn>,
        why: Why,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) {
        self.counters.add_notified(why);
        // It may block, so it is made.
        let _ = state.listeners.around(idle, Event::new(hvas_of(pages), why), change);
    }

    /// The same, unless a listener would have to wait: then `change` is not run.
    pub(crate) fn try_around(
        &self,
        state: &State,
        idle: &mut Idle,
        pages: Span<Gfn>,
        why: Why,
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
