//! Held frames: guest memory that the VMM or hardware uses by frame number, not through the tables.
//!
//! Examples are a para-virtual clock page, a posted-interrupt descriptor, a virtual-APIC page, a page of descriptors,
//! and the pages that a nested guest's control block names. The host may still move such a page. A held frame is
//! **valid or refused, never stale**, as with KVM's `gfn_to_pfn_cache`.
//!
//! ```text
//! hold, refresh   slot ─▶ host ─▶ frame     calls `Host::resolve`, as a fault does; may sleep
//! read, write     a use of the frame        None if an invalidation has taken the frame: refresh first
//! current         the frame for hardware    the same, between `Vcpu::enter` and `Ready::go`
//! ```
//! **The changes that take a frame back** are those that would take a leaf of the same frame:
//! * an invalidation of its page or its frame, by address or page by page;
//! * a memslot transaction that removes or moves the frame's memory, or makes it read-only, private or shared;
//! * if the frame is held to write: write protection by the host ([`Reason::Protect`](crate::Reason::Protect) and the like),
//!   and the begin of [write tracking](GuestSpace::track_writes).
//!
//! An invalidation that is cancelled takes nothing. The engine may also refuse a frame needlessly, when it zaps tables
//! for its own reasons. Dirty logs, aging and [`Vm::zap_all`](crate::Vm::zap_all) take nothing.
//!
//! **The debt.** Settling such an invalidation waits for all uses that had begun. For frames that
//! [hardware](HeldForHardware) uses, it also waits until each vCPU that was in the guest has left it or answered, even
//! if no leaf maps the frame, and even if hardware broadcasts flushes. After the invalidation nothing uses the old
//! page.
//!
//! **Sleep.** [`GuestSpace::hold`] and [`Held::refresh`]: the host may sleep, and they wait for an invalidation that
//! covers the frame. A use must not sleep: its thread has lent its [`Idle`], and invalidations of the frame wait for
//! it. It must not wait for the host either, as an access to the page's host address may. Access the frame through a
//! separate mapping, and briefly.
//!
//! **Costs.** A use: a store and a load of its own cache line, and the store that ends it. An invalidation in a VM that
//! holds nothing: one load. A fault: nothing.
//!
//! `slots/holds.rs` is the side that invalidations see; it says why one of the two sides always sees the other.

use crate::active::Listed;
use crate::callbacks::Finally;
use crate::fault::pursuit::{Again, Pursuer, Pursuit, Sought, Stop, Wanted};
use crate::slots::holds::{HeldAs, HoldCell, Holds};
use crate::{Access, Format, Gfn, GuestSpace, Host, HostError, Hva, Idle, Level, Pfn, Token, Word};
use core::marker::PhantomData;

mod hardware;

pub use hardware::HeldForHardware;

/// A guest frame that is held, to read or to write. See the module's header, and [`GuestSpace::hold`].
///
/// One thread uses it at a time; several threads hold a frame each by itself. Dropping it waits for nothing.
pub struct Held<'vm, F: Format, H: Host> {
    slots: GuestSpace<'vm, F, H>,
    cell: &'vm HoldCell,
    gfn: Gfn,
    access: Access,
    /// The host's frame, while the cell is valid.
    pfn: Pfn,
    /// The address that the frame had when the host was asked for it; of shared memory, even if the frame was private.
    place: Hva,
    /// A use that writes has begun, and has not marked the page yet. Still set if the use was leaked.
    unmarked: bool,
}

/// A use of a held frame. An invalidation that takes the frame back waits until this is dropped: keep it for a few
/// accesses. A leaked use goes on until the next use or [refresh](Held::refresh) of its [`Held`], or until that is
/// dropped. It ends there as if it were dropped: one that wrote marks the page dirty.
#[must_use = "the frame may be used only while this lives"]
pub struct HeldUse<'h, F: Format, H: Host> {
    slots: &'h GuestSpace<'h, F, H>,
    cell: &'h HoldCell,
    gfn: Gfn,
    pfn: Pfn,
    /// [`Held::place`].
    place: Hva,
    /// [`Held::unmarked`].
    unmarked: &'h mut bool,
    /// Borrowed: the thread may not sleep, nor settle an invalidation.
    _idle: PhantomData<&'h mut Idle>,
}

/// Why a frame cannot be held now. Nothing is held; a frame that was held stays refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HoldError {
    /// No memslot has the frame.
    NoMemslot,
    /// Write access to a read-only memslot.
    ReadOnly,
    /// Write access while [stores to the frame are tracked](GuestSpace::track_writes), of which no listener would learn.
    /// Make each store by [`GuestSpace::emulate_store`], or hold the frame after the last tracker is dropped.
    Tracked,
    /// The page is not there yet ([`HostError::Pending`]); the host calls it by this token. Try again when it is there.
    Pending(Token),
    /// The host has no page for it.
    Host(HostError),
    /// No memory to hold one more frame.
    NoMemory,
}

errors! { HoldError:
    Self::NoMemslot => "no memslot has the frame: create one first";
    Self::ReadOnly => "the memslot is read-only: hold the frame to read";
    Self::Tracked => "stores to the frame are tracked: emulate them, or hold it to read";
    Self::Pending(token) => "the host has the page later, as token {:#x}: hold it then", token.0;
    Self::Host(error) => "{error}";
    Self::NoMemory => "no memory to hold one more frame";
}

impl<'vm, F: Format, H: Host> GuestSpace<'vm, F, H> {
    /// Holds `gfn` of this address space: finds its memslot and asks the host for the page, for `access`. A frame held
    /// to write may be read, too. This maps nothing; the guest may fault on the frame or not.
    ///
    /// Sleeps if the host does, and waits for an invalidation that covers the frame. Allocates a cell of 128 bytes,
    /// which the VM keeps. The module's header says what takes the frame back, and what waits for its uses.
    ///
    /// ```
    /// use slat::{*, table::formats::Npt4};
    ///
    /// /// A host whose frame is always the address.
    /// struct Identity;
    /// impl Host for Identity {
    ///     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    ///         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    ///     }
    /// }
    ///
    /// let mut idle = Idle::take().unwrap();
    /// let vm = Vm::<Npt4, _>::builder(Identity).build()?;
    /// vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30)).log_dirty()))?;
    /// let mut written = Vec::new();
    /// let mut write_time_to = |pfn: Pfn| written.push(pfn);
    /// // The guest has said that frame 5 is its clock page (MSR_KVM_SYSTEM_TIME).
    /// let mut clock = vm.memory().hold(&mut idle, Gfn(5), Access::Write)?;
    ///
    /// // Before each entry:
    /// loop {
    ///     if let Some(page) = clock.write(&mut idle) {
    ///         write_time_to(page.pfn()); // by the hypervisor's own mapping of that frame
    ///         break; // marked dirty; an invalidation that waits for the use continues
    ///     }
    ///     clock.refresh(&mut idle)?; // the host has moved the page since
    /// }
    /// assert!(vm.memory().is_dirty(Gfn(5)));
    ///
    /// let change = vm.memory().invalidate(Span::sized(Gfn(5), 1), Why::Migrate).apply(&mut idle).settle();
    /// // … here the host changes its own table …
    /// drop(change);
    /// assert!(clock.write(&mut idle).is_none(), "refused, until it is refreshed");
    /// assert_eq!(written, [Pfn(0x4_0005)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hold(&self, idle: &mut Idle, gfn: Gfn, access: Access) -> Result<Held<'vm, F, H>, HoldError> {
        self.hold_as(idle, gfn, access, false)
    }

    fn hold_as(
        &self,
        idle: &mut Idle,
        gfn: Gfn,
        access: Access,
        hardware: bool,
    ) -> Result<Held<'vm, F, H>, HoldError> {
        let held = HeldAs { space: self.space.id, gfn, write: access == Access::Write, hardware };
        let cell = self.vm.holds.claim(held).ok_or(HoldError::NoMemory)?;
        let slots = GuestSpace { vm: self.vm, space: self.space };
        let mut held = Held { slots, cell, gfn, access, pfn: Pfn(0), place: Hva(0), unmarked: false };
        held.refresh(idle)?;
        Ok(held)
    }
}

impl<F: Format, H: Host> Held<'_, F, H> {
    /// The guest frame.
    pub fn gfn(&self) -> Gfn {
        self.gfn
    }

    /// Whether the frame is valid now. It may be taken back at once: only a use protects it.
    pub fn is_valid(&self) -> bool {
        self.cell.is_valid()
    }

    /// Begins a use that reads. `None` if the frame has been taken back: call [`refresh`](Self::refresh).
    #[inline]
    pub fn read<'h>(&'h mut self, _idle: &'h mut Idle) -> Option<HeldUse<'h, F, H>> {
        self.used(false)
    }

    /// Begins a use that writes. When it ends, the frame is marked dirty if its memslot logs. `None` if the frame has
    /// been taken back, as it is while stores to it [are tracked](crate::GuestSpace::track_writes).
    ///
    /// # Panics
    /// If the frame is not held to write.
    #[inline]
    pub fn write<'h>(&'h mut self, _idle: &'h mut Idle) -> Option<HeldUse<'h, F, H>> {
        assert!(self.access == Access::Write, "{:?} is held for {:?}, not to write", self.gfn, self.access);
        self.used(true)
    }

    #[inline(always)]
    fn used(&mut self, writes: bool) -> Option<HeldUse<'_, F, H>> {
        self.end_leaked();
        let Self { slots, cell, gfn, pfn, place, unmarked, .. } = self;
        let begun = cell.begin(slots.vm.reads.barrier);
        *unmarked = begun && writes;
        let (gfn, pfn, place) = (*gfn, *pfn, *place);
        begun.then_some(HeldUse { slots, cell, gfn, pfn, place, unmarked, _idle: PhantomData })
    }

    /// Ends a use whose guard was leaked.
    #[inline(always)]
    fn end_leaked(&mut self) {
        if self.unmarked {
            self.mark_leaked();
        }
        self.cell.end();
    }

    /// Marks the page for a use that wrote, before the use ends.
    #[cold]
    fn mark_leaked(&mut self) {
        self.unmarked = false;
        self.mark_dirty();
    }

    /// Marks the page dirty if its memslot logs. Call it after hardware has written the frame, or may have, and before
    /// [`refresh`](Self::refresh). The memslot may have moved meanwhile: its log is found where it is now.
    pub fn mark_dirty(&self) {
        mark_held(&self.slots, self.gfn, self.place);
    }

    /// Asks for the frame again if it has been taken back; otherwise does nothing. Sleeps and waits as [`GuestSpace::hold`]
    /// does. After an error the frame stays refused; call it again later.
    ///
    /// No hardware may use the frame meanwhile: the vCPU whose control block names it must be out of the guest.
    pub fn refresh(&mut self, idle: &mut Idle) -> Result<(), HoldError> {
        self.end_leaked();
        if self.cell.is_valid() {
            return Ok(());
        }
        Refreshing { held: self, idle }.pursue()
    }
}

/// A thread that asks for a held frame: see [`crate::fault::pursuit`], with the cell as the entry.
struct Refreshing<'a, 'vm, F: Format, H: Host> {
    held: &'a mut Held<'vm, F, H>,
    idle: &'a mut Idle,
}

impl<F: Format, H: Host> Pursuer for Refreshing<'_, '_, F, H> {
    type Done = ();
    type Error = HoldError;

    fn attempt(&mut self) -> Result<Result<(), Again>, HoldError> {
        let Self { held, idle } = self;
        let GuestSpace { vm, space } = held.slots;
        // Also if the host panics.
        let cell = Finally::with(held.cell, |cell| cell.refused());
        let start = vm.active.epoch();
        let slots = held.slots.snapshot(idle);
        let look = |gfn| {
            let slot = slots.find(gfn)?;
            held.place = slots.get(slot.id).unwrap_or(slot).hva_of(gfn);
            Some(slot)
        };
        let sought = start.find(Wanted::new(held.gfn, held.access), look);
        drop(slots);
        let stamp =
            |sought: Sought| sought.stamp((&vm.active, &space.watched), (Level::K4, Level::K4), Word::OLDEST);
        let ask = |pursuit: Pursuit| pursuit.ask::<F, _>(&vm.host, idle);
        let found = sought.and_then(|sought| asked((&vm.holds, *cell), sought, stamp, ask));
        let why = match found {
            Ok(Ok(answer)) => {
                core::mem::forget(cell);
                held.pfn = answer.page().pfn;
                return Ok(Ok(()));
            }
            Ok(Err(HostError::Pending)) => HoldError::Pending(vm.host.token(held.cell.hva())),
            Ok(Err(error)) => HoldError::Host(error),
            Err(Stop::Covered) => return Ok(Err(Again::Covered)),
            Err(Stop::Moved) => return Ok(Err(Again::Lost)),
            Err(Stop::NoMemslot | Stop::OtherKind { .. }) => HoldError::NoMemslot,
            Err(Stop::Forbidden) if held.access == Access::Write => HoldError::ReadOnly,
            Err(Stop::Forbidden) => HoldError::Host(HostError::Fault),
            Err(Stop::Tracked) => HoldError::Tracked,
        };
        Err(why)
    }

    fn listed(&self) -> Listed {
        self.held.slots.vm.active.listed_over(Some(self.held.cell.hva()))
    }
}

/// Publishes the page's address as that of the cell, takes the stamp, then asks the host, in this order.
fn asked<T, E>(
    (holds, cell): (&Holds, &HoldCell),
    sought: Sought,
    stamp: impl FnOnce(Sought) -> Result<Pursuit, Stop>,
    host: impl FnOnce(Pursuit) -> Result<T, E>,
) -> Result<Result<T, E>, Stop> {
    holds.publish(cell, sought.hva());
    let answer = host(stamp(sought)?);
    if answer.is_ok() && !cell.confirm() {
        return Err(Stop::Moved);
    }
    Ok(answer)
}

fn mark_held<F: Format, H: Host>(GuestSpace { vm, space }: &GuestSpace<'_, F, H>, gfn: Gfn, place: Hva) {
    let seat = vm.borrow_seat_without_idle();
    space.memslots.mark_dirty_at(&vm.reads, &seat, (gfn, place));
}

impl<F: Format, H: Host> Drop for Held<'_, F, H> {
    fn drop(&mut self) {
        self.end_leaked();
        self.slots.vm.holds.give_back(self.cell);
    }
}

/// For any host.
impl<F: Format, H: Host> core::fmt::Debug for Held<'_, F, H> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { cell, gfn, access, pfn, .. } = self;
        let pfn = cell.is_valid().then_some(pfn);
        f.debug_struct("Held")
            .field("gfn", gfn)
            .field("access", access)
            .field("pfn", &pfn)
            .finish_non_exhaustive()
    }
}

impl<F: Format, H: Host> core::fmt::Debug for HeldUse<'_, F, H> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("HeldUse").field("gfn", &self.gfn).field("pfn", &self.pfn).finish_non_exhaustive()
    }
}

impl<F: Format, H: Host> HeldUse<'_, F, H> {
    /// The host's frame, valid until this is dropped.
    #[inline(always)]
    pub fn pfn(&self) -> Pfn {
        self.pfn
    }
}

impl<F: Format, H: Host> Drop for HeldUse<'_, F, H> {
    #[inline]
    fn drop(&mut self) {
        if core::mem::take(self.unmarked) {
            // Before the use ends. A transaction that moves, deletes or cuts off the memslot's frame waits for the use
            // before it publishes, so the frame still has its memslot. Its log may have begun since the use did.
            mark_held(self.slots, self.gfn, self.place);
        }
        self.cell.end();
    }
}

#[cfg(all(test, feature = "std", not(shuttle)))]
mod loom_tests;
#[cfg(all(test, feature = "std", not(any(loom, shuttle))))]
mod tests;
