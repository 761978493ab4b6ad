//! Who is told of changes: any number of secondary MMUs, each told of each change.
//!
//! ```text
//! first.around ─── begin
//!   second.around ── begin
//!     the change, once; what it tells page by page goes to both
//!   ◀─────────────── end
//! ◀──────────────── end
//! ```
//! The calls are nested, so whoever has begun ends, whatever those inside answer. A change that may not wait is called
//! off by the first who would have to ([`Again`]): those around it have begun for nothing, and end. A change that may wait
//! is made: one who refuses it all the same, against its contract, is passed over.
//!
//! **Coming and going** is possible at any time; it waits for changes in progress, since one who missed the beginning of
//! a change could copy what it is about to take away. Who goes is told [`Why::Exit`] over all addresses, which is the
//! last thing it hears. Inside [`around`](SecondaryMmu::around) nobody can come or go: the change holds the same lock.

use crate::pte::hvas_of;
use crate::space::{AddressSpace, State};
use crate::vma::EVERYWHERE;
use slat::notify::{Both, Nobody};
use slat::{Again, Event, Gfn, Hva, Idle, Pages, SecondaryMmu, Span, Why, Young};
use std::sync::{Arc, Weak};

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Listeners(Vec<Weak<dyn SecondaryMmu>>);

impl Listeners {
    fn add(&mut self, mmu: Weak<dyn SecondaryMmu>) {
        self.remove(&mmu);
        self.0.push(mmu);
    }

    /// Whether it was there. Those who were dropped go along.
    fn remove(&mut self, mmu: &Weak<dyn SecondaryMmu>) -> bool {
        let is_it = |other: &Weak<dyn SecondaryMmu>| std::ptr::addr_eq(other.as_ptr(), mmu.as_ptr());
        let known = self.0.iter().any(is_it);
        self.0.retain(|other| !is_it(other) && other.strong_count() > 0);
        known
    }

    /// Each of them that is still there.
    pub(crate) fn each(&self) -> impl Iterator<Item = Arc<dyn SecondaryMmu>> + '_ {
        self.0.iter().filter_map(Weak::upgrade)
    }

    /// Whether all of them take a change page by page.
    pub(crate) fn heed_pages(&self) -> bool {
        self.each().all(|mmu| mmu.heeds_pages())
    }

    /// Whether any page of the range was used through one of them; whatever else `young` asks for, of all of them. A test
    /// stops at the first that says yes.
    pub(crate) fn young(&self, idle: &mut Idle, hvas: Span<Hva>, young: Young) -> bool {
        let mut found = false;
        for mmu in self.each() {
            found |= mmu.young(idle, hvas, young);
            if found && young == Young::Test {
                break;
            }
        }
        found
    }

    /// Tells them all, one inside the other, and runs `change` in the innermost.
    fn around(
        &self,
        idle: &mut Idle,
        event: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        nest(&self.0, idle, event, &mut Nobody, change)
    }
}

/// `told` is those who were told before.
fn nest(
    listeners: &[Weak<dyn SecondaryMmu>],
    idle: &mut Idle,
    event: Event,
    told: &mut dyn Pages,
    change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
) -> Result<(), Again> {
    let Some((first, rest)) = listeners.split_first() else {
        change(idle, told);
        return Ok(());
    };
    let Some(mmu) = first.upgrade() else { return nest(rest, idle, event, told, change) };
    let mut inner = None;
    let _ = mmu.around(idle, event, &mut |idle, pages| {
        inner = Some(nest(rest, idle, event, &mut Both(told, pages), change));
    });
    match inner {
        Some(inner) => inner,
        None if event.may_block => nest(rest, idle, event, told, change),
        None => Err(Again),
    }
}

impl AddressSpace {
    /// From now on `mmu` is told of every change before it happens, until it is [unregistered](Self::unregister) or
    /// dropped. Waits for changes in progress. Register a [`Vm`](slat::Vm) before its first fault.
    ///
    /// Inside [`around`](SecondaryMmu::around) a secondary MMU may call [`lookup`](Self::lookup) and nothing
    /// else of this address space: the rest takes locks that the change holds. So it cannot register or unregister
    /// anybody there, itself included.
    pub fn register<M: SecondaryMmu + 'static>(&self, mmu: &Arc<M>) {
        self.state.write().listeners.add(weak(mmu));
    }

    /// Tells `mmu` to let go of everything ([`Why::Exit`], over all addresses), and then nothing any more. False
    /// where it was not registered. Waits for changes in progress; may sleep.
    ///
    /// Its vCPUs have stopped by then: what they map afterwards nobody would take away from them.
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
        let mut state = self.state.write();
        let known = state.listeners.remove(&weak(mmu));
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
