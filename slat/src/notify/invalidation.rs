//! `Invalidation`: a guard around a change in the primary MMU.
//!
//! ```text
//! let mut change = vm.invalidate(range, why);   begin: faults on the range wait from here
//! change.apply(&mut idle).settle();             walk, then one flush: no vCPU uses the range any more
//! …the host changes its own entries…
//! drop(change);                                 end: faults on the range go on and see the new state
//! ```
//! It cannot end while its debt is open. The compiler refuses to drop it before the debt:
//!
//! ```compile_fail,E0505
//! # use slat::*;
//! # fn f<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
//! let mut change = vm.invalidate(Span::new(Hva(0), Hva(4096)), Why::Unmap);
//! let debt = change.apply(idle);
//! drop(change);
//! debt.settle();
//! # }
//! ```
//! A debt that is leaked (`core::mem::forget`) stays on the record of its invalidation, which pays it with the next debt or
//! when it ends. A host whose begin and end are two calls [detaches](super::detached) the guard in between.
//! An invalidation that is leaked never ends: faults on its range wait for ever, its place in the active set
//! and the tables that it owes a flush for are not given back before the VM is dropped, and the host must not change the
//! range. Invalidations that meet its holes go on paying its flush.
//!
//! No invalidation stops the world, waits for a fault, or makes a fault elsewhere retry
//! ([`super::active`] has the argument).

use super::active::{Epoch, Ticket};
use super::along::{PageBehind, along};
use super::begun::{Begun, Range, Scope};
use super::edit::Known;
use super::reserve::Reserve;
use super::secondary::Again;
use crate::addr::{Gfn, Hva, Span};
use crate::host::{Host, HostPage};
use crate::slots::SpaceId;
use crate::sync::idle::Idle;
use crate::sync::mode::{Exclusive, Shared};
use crate::sync::readside::Seat;
use crate::table::entry::Version;
use crate::table::format::Format;
use crate::tlb::debt::Owed;
use crate::tlb::{Cause, FlushDebt};
use crate::vm::Vm;
use crate::why::Why;
use core::cell::Cell;
use core::mem::ManuallyDrop;

/// See the module's header. Dropping one that was never applied calls it off: the host then changes nothing. Dropping one
/// whose debt was leaked pays that debt, and so waits for vCPUs in the guest: its thread must not be in the guest itself.
///
/// ```
/// # use slat::{*, table::formats::Npt4};
/// # struct Identity;
/// # unsafe impl TableMemory for Identity {}
/// # impl Host for Identity {
/// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
/// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
/// #     }
/// # }
/// # let mut idle = Idle::take().unwrap();
/// # let vm = Vm::<Npt4, _>::builder(Identity).build()?;
/// # vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
/// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// vcpu.prefault(&mut idle, Span::sized(Gfn(0), 2))?;
/// let first = Span::sized(Hva(1 << 30), 4096);
/// let mut change = vm.invalidate(first, Why::Migrate); // faults on the page wait from here
/// change.apply(&mut idle).settle(); // no vCPU uses the page any more
/// // … here the host copies the page to another frame and changes its own table …
/// drop(change); // faults go on, and ask the host anew
/// assert_eq!(vm.translate(&mut idle, Gfn(0)), None);
/// assert!(vm.translate(&mut idle, Gfn(1)).is_some(), "not in the range");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the range is protected only while this lives"]
pub struct Invalidation<'vm, F: Format, H: Host> {
    pub(super) begun: Begun<'vm, F, H>,
    /// What its edits owe so far, and those that its owner makes under its number. Its debts are views of this record, so a debt that
    /// is leaked is not lost.
    pub(crate) owed: Owed,
}

impl<F: Format, H: Host> Vm<F, H> {
    /// The host is about to change `hvas`: begins an [`Invalidation`], which see. Faults on the range wait from
    /// here until it is dropped.
    ///
    /// A thread may begin any number of them inside each other. Up to 4,032 are in flight at once in a VM; the next one waits for
    /// one to end. Where more than 64 are, this allocates (16 KiB at first), and waits where there is no memory. While more than
    /// 64 are, faults beside one of the others, and edits, look at up to as many places as there were at most.
    ///
    /// A fault elsewhere is not disturbed: one of at most 16 pieces of 2 MiB (aligned, of host addresses) costs faults in other
    /// pieces nothing. A wider one costs each fault that it meets one more attempt when it begins, and when it ends.
    pub fn invalidate(&self, hvas: Span<Hva>, why: Why) -> Invalidation<'_, F, H> {
        Invalidation::begin(self, Range::Hvas(hvas), why)
    }

    /// The same, or [`Again`] where it would have to wait for another one to end, or for memory.
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # struct Nothing;
    /// # unsafe impl slat::table::TableMemory for Nothing {}
    /// # impl Host for Nothing {
    /// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Nothing).build().unwrap();
    /// let page = Span::sized(Hva(0x7000_0000), 4096);
    /// match vm.try_invalidate(page, Why::Unmap) {
    ///     Ok(mut change) => drop(change.apply(&mut idle)),
    ///     Err(Again) => { /* 4,032 are in flight: let some of them end first */ }
    /// }
    /// ```
    pub fn try_invalidate(&self, hvas: Span<Hva>, why: Why) -> Result<Invalidation<'_, F, H>, Again> {
        Invalidation::begin_now(self, Range::Hvas(hvas), why).ok_or(Again)
    }

    /// The same by guest frames of address space 0, whatever they are backed by.
    pub fn invalidate_gfns(&self, gfns: Span<Gfn>, why: Why) -> Invalidation<'_, F, H> {
        self.invalidate_in(SpaceId(0), gfns, why)
    }

    pub(crate) fn invalidate_in(&self, space: SpaceId, gfns: Span<Gfn>, why: Why) -> Invalidation<'_, F, H> {
        Invalidation::begin(self, Range::Gfns(space, gfns), why)
    }

    /// Zaps one leaf so that something else can be mapped: for a host that cannot say without sleeping that it
    /// has made the page writable in place.
    #[cold]
    pub(crate) fn take_away(&self, idle: &mut Idle, space: SpaceId, gfns: Span<Gfn>) {
        let mut change = Invalidation::begin(self, Range::Gfns(space, gfns), Why::Clear);
        change.apply(idle).settle();
    }
}

impl<'vm, F: Format, H: Host> Invalidation<'vm, F, H> {
    /// Begins: publishes exactly the range.
    pub(crate) fn begin(vm: &'vm Vm<F, H>, range: Range, why: Why) -> Self {
        let (gfns, hvas) = range.published();
        Self::begun(vm, vm.active.begin(gfns, hvas), range, why)
    }

    /// The same, or nothing where it would have to wait for another to end, or for memory.
    pub(crate) fn begin_now(vm: &'vm Vm<F, H>, range: Range, why: Why) -> Option<Self> {
        let (gfns, hvas) = range.published();
        Some(Self::begun(vm, vm.active.begin_now(gfns, hvas)?, range, why))
    }

    /// The same, or nothing where it would have to ask for memory, too.
    pub(super) fn try_begin(vm: &'vm Vm<F, H>, range: Range, why: Why) -> Option<Self> {
        let (gfns, hvas) = range.published();
        Some(Self::begun(vm, vm.active.try_begin(gfns, hvas)?, range, why))
    }

    fn begun(vm: &'vm Vm<F, H>, ticket: Ticket<'vm>, range: Range, why: Why) -> Self {
        let (why, reserve, reached) = (vm.heard(range, why), Reserve::default(), Cell::new(false));
        let begun = Begun { vm, ticket, range, why, reserve, reached };
        Self { begun, owed: Owed::default() }
    }

    /// Edits every entry of the range by the plan, takes [held](crate::held) frames back, and returns what that owes. Waits for no
    /// fault; settling waits for vCPUs in the guest, and for uses of held frames that have begun. Whatever follows from the host's change must come after the settling.
    ///
    /// A large page that reaches out of the range is split, and loses the part that is in it. That takes a table page, for
    /// which this may sleep; where there is none, the whole page goes.
    ///
    /// Where the reason is decided [page by page](Why::page_by_page), nothing happens here, but that such table pages are
    /// asked for.
    pub fn apply<'i>(&'i mut self, idle: &'i mut Idle) -> FlushDebt<'i> {
        self.apply_on(idle, None)
    }

    /// The host's pages at `hvas`, in the range, map `to` now, or nothing: where the reason is decided
    /// [page by page](Why::page_by_page), edits what is mapped there, and returns what that owes. `to` names the frame of
    /// the first page of `hvas`; where it is larger than 4 KiB, those that follow have the frames that follow. What lies
    /// beyond that one page is zapped. The host's own entry must not change meanwhile; frames that it mapped must not be
    /// used again before the settling.
    pub fn changed<'i>(
        &'i mut self,
        idle: &'i mut Idle,
        hvas: Span<Hva>,
        to: Option<HostPage>,
    ) -> FlushDebt<'i> {
        self.changed_on(idle, hvas, to, None);
        self.debt(idle)
    }

    /// The same as part of what it owes, on this seat, or on any.
    pub(super) fn changed_on(
        &mut self,
        idle: &mut Idle,
        hvas: Span<Hva>,
        to: Option<HostPage>,
        seat: Option<&Seat>,
    ) {
        let Self { begun, owed } = self;
        let Range::Hvas(published) = begun.range else { return };
        if !begun.why.page_by_page() {
            return;
        }
        begun.ticket.owes_again();
        begun.take_back(None, Scope::Told(published.clamp(&hvas)), owed);
        let mut known = Known::first(seat.is_none());
        loop {
            for space in &begun.vm.spaces {
                let mut walk = begun.walk::<Exclusive>(space, idle, seat);
                along(&mut walk, published.clamp(&hvas), |steps, part| {
                    let now = to.and_then(|page| PageBehind::part(part, hvas, page));
                    begun.edit_along(steps, part.gfns, known.with(now.as_ref()), owed)
                });
            }
            let Some(next) = begun.once_more(known, owed, || begun.refill_reserve()) else { return };
            known = next;
        }
    }

    /// One more of the same range, beside it: what an event that may not block must not need.
    pub(super) fn another(&self) -> Self {
        let Begun { vm, range, why, .. } = self.begun;
        Self::begin(vm, range, why)
    }

    /// [`apply`](Self::apply) on this seat, or on any.
    pub(super) fn apply_on<'i>(&'i mut self, idle: &'i mut Idle, seat: Option<&Seat>) -> FlushDebt<'i> {
        if !self.begun.why.page_by_page() {
            self.begun.edit(idle, None, seat, &mut self.owed);
            self.begun.take_back(seat.is_none().then_some(idle), Scope::Whole, &mut self.owed);
        } else if seat.is_none() {
            self.begun.fill_reserve(idle);
        }
        self.debt(idle)
    }

    /// The same for a reason that is not decided page by page, to be paid with what else it will owe.
    pub(super) fn apply_unpaid(&mut self, idle: &mut Idle) {
        self.begun.edit(idle, None, None, &mut self.owed);
        self.begun.take_back(Some(idle), Scope::Whole, &mut self.owed);
    }

    /// Rule 7 without an edit: owes the flush of `hvas`, if another invalidation over them has not flushed yet.
    ///
    /// That one keeps every fault on the frames behind `hvas` waiting until it has flushed, so their translations in TLBs
    /// are from before it. Frames that no memslot maps any more have been flushed by the transaction that took the memslot away.
    pub(super) fn adopt_on(&mut self, idle: &mut Idle, hvas: Span<Hva>, seat: Option<&Seat>) {
        let Self { begun, owed } = self;
        if !begun.ticket.unflushed_behind(hvas) {
            return;
        }
        begun.take_back(None, Scope::Told(hvas), owed);
        for space in &begun.vm.spaces {
            let mut walk = begun.walk::<Shared>(space, idle, seat);
            along(&mut walk, hvas, |_, part| {
                owed.owe(part.gfns);
                part.gfns.end
            });
        }
    }

    /// Edits these ranges instead, which lie in what was published, under this invalidation's number.
    pub(crate) fn apply_to<'i>(&'i mut self, idle: &'i mut Idle, parts: &[Span<Gfn>]) -> FlushDebt<'i> {
        self.begun.edit(idle, Some(parts), None, &mut self.owed);
        self.begun.take_back(Some(idle), Scope::Parts(parts), &mut self.owed);
        self.debt(idle)
    }

    /// Its number.
    pub(crate) fn version(&self) -> Version {
        self.begun.ticket.version()
    }

    /// What it owes so far, to be paid.
    pub(crate) fn debt<'i>(&'i mut self, _idle: &'i mut Idle) -> FlushDebt<'i> {
        self.open_debt()
    }

    /// Whether no other invalidation is active over any of it, and the slots are those of `epoch`: after a freeze.
    pub(crate) fn is_alone(&self, epoch: Epoch, gfns: Span<Gfn>, hvas: Span<Hva>) -> bool {
        self.begun.ticket.is_alone(epoch, gfns, hvas)
    }

    /// Its record and the rest, without its end.
    pub(super) fn into_parts(self) -> (Begun<'vm, F, H>, Owed) {
        let mut this = ManuallyDrop::new(self);
        let owed = core::mem::take(&mut this.owed);
        // SAFETY: read once: `this` is not dropped, and not used again.
        (unsafe { core::ptr::read(&raw const this.begun) }, owed)
    }

    pub(super) fn from_parts(begun: Begun<'vm, F, H>, owed: Owed) -> Self {
        Self { begun, owed }
    }

    fn open_debt(&mut self) -> FlushDebt<'_> {
        FlushDebt::of(&self.begun, &mut self.owed, Cause::Change(self.begun.why))
    }
}

/// The end. It pays what is still owed: where a debt was leaked, where the owner unwinds, or where its edits are paid
/// together here. A grace period is not waited for, since the thread may be in a walk.
impl<F: Format, H: Host> Drop for Invalidation<'_, F, H> {
    fn drop(&mut self) {
        self.begun.reserve.drain(self.begun.vm);
        if !self.owed.is_nothing() && !seeded!(LeakedUnpaid) {
            self.open_debt().without_grace().settle();
        }
    }
}
