//! `Invalidation`: a guard around a change in the primary MMU.
//!
//! ```text
//! vm.change(&mut idle, range, why, |idle| {     begin: faults on the range wait; walk, then one flush
//!     …the host changes its own entries…        no vCPU uses the range any more
//! });                                           end: faults on the range continue and see the new state
//! ```
//! The same in steps, for a host whose change is no closure:
//!
//! ```text
//! let change = vm.invalidate(range, why)        begin
//!     .apply(&mut idle)                         walk
//!     .settle();                                flush
//! …the host changes its own entries…
//! drop(change);                                 end
//! ```
//! The guard passes from step to step by value. If it is bound to no name, it ends before the host has changed
//! anything; the compiler says so where `unused_must_use` is denied, and warns elsewhere:
//!
//! ```compile_fail
//! #![deny(unused_must_use)]
//! # use slat::*;
//! # fn f<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
//! vm.invalidate(Span::new(Hva(0), Hva(4096)), Why::Unmap).apply(idle).settle();
//! // …the host changes its own entries, but the invalidation has ended…
//! # }
//! ```
//! The guard cannot end while its debt is open. The compiler refuses to drop it before the debt:
//!
//! ```compile_fail,E0382
//! # use slat::*;
//! # fn f<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
//! let change = vm.invalidate(Span::new(Hva(0), Hva(4096)), Why::Unmap);
//! let applied = change.apply(idle);
//! drop(change);
//! applied.settle();
//! # }
//! ```
//! The invalidation records a debt of [`changed`](Invalidation::changed) that is leaked (`core::mem::forget`), and pays it
//! with the next debt or when it ends. A host whose begin and end are two calls [detaches](super::detached) the guard in
//! between.
//!
//! A leaked invalidation never ends. Faults on its range wait for ever. Its place in the active set, and the tables
//! whose flush it owes, are freed only when the VM is dropped. The host must not change the range. Invalidations that
//! meet its holes pay its flush each time.
//!
//! No invalidation stops all vCPUs, waits for a fault, or makes a fault elsewhere retry ([`super::active`] says why).

use super::active::Ticket;
use super::begun::{Begun, Range, Scope};
use super::edit::Known;
use super::host_range::{PageBehind, walk_behind};
use super::reserve::Reserve;
use super::secondary::Again;
use crate::addr::{Gfn, Hva, Span};
use crate::fault::pursuit::Start;
use crate::host::{Host, HostPage};
use crate::slots::SpaceId;
use crate::sync::idle::Idle;
use crate::sync::mode::{Exclusive, Shared};
use crate::sync::prim::full_path;
use crate::sync::readside::Seat;
use crate::table::entry::Version;
use crate::table::format::Format;
use crate::tlb::debt::Owed;
use crate::tlb::{Cause, FlushDebt};
use crate::vm::Vm;
use crate::why::Why;
use core::cell::Cell;
use core::mem::ManuallyDrop;

/// A guard around a change in the primary MMU; see the module's header.
///
/// Dropping a guard that was never applied cancels it: the host then changes nothing. Dropping one whose debt is open
/// pays that debt, and so waits for vCPUs in the guest: the dropping thread must not be in the guest itself.
///
/// ```
/// use slat::{*, table::formats::Npt4};
///
/// /// A host whose frame is always the address.
/// struct Identity;
/// unsafe impl TableMemory for Identity {} // table pages from the global allocator
/// impl Host for Identity {
///     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
///         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
///     }
/// }
///
/// let mut idle = Idle::take().unwrap();
/// let vm = Vm::<Npt4, _>::builder(Identity).build()?;
/// vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
/// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// vcpu.prefault(&mut idle, Span::sized(Gfn(0), 2))?;
/// let first = Span::sized(Hva(1 << 30), 4096);
/// let change = vm.invalidate(first, Why::Migrate); // faults on the page wait from here
/// let change = change.apply(&mut idle).settle(); // no vCPU uses the page any more
/// // … here the host copies the page to another frame and changes its own table …
/// drop(change); // faults continue, and ask the host again
/// assert_eq!(vm.translate(&mut idle, Gfn(0)), None);
/// assert!(vm.translate(&mut idle, Gfn(1)).is_some(), "not in the range");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the range is protected only while this lives"]
pub struct Invalidation<'vm, F: Format, H: Host> {
    pub(super) begun: Begun<'vm, F, H>,
    /// Debts of its edits so far, and of edits that its owner makes under its number. A [`FlushDebt`] is a view of this
    /// record, so a leaked debt is not lost.
    pub(crate) owed: Owed,
    /// Whether all of the range has been edited.
    is_applied: bool,
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Invalidates `hvas`, then runs `change`, in which the host changes its own table there, and ends the
    /// invalidation. Faults on the range wait meanwhile; when `change` runs, no vCPU uses the range any more. May sleep,
    /// and waits for vCPUs in the guest.
    ///
    /// This is [`invalidate`](Self::invalidate), [`apply`](Invalidation::apply) and
    /// [`settle`](super::Applied::settle). A host with several listeners, or with reasons that are told page by page, uses
    /// [`SecondaryMmu::around`](super::SecondaryMmu::around) instead.
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # use std::{collections::BTreeMap, sync::Mutex};
    /// # struct Table(Mutex<BTreeMap<Hva, Pfn>>);
    /// # unsafe impl TableMemory for Table {}
    /// # impl Host for Table {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         let pfn = *self.0.lock().unwrap().get(&hva).ok_or(HostError::Fault)?;
    /// #         Ok(HostPage { pfn, ..HostPage::PLAIN })
    /// #     }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Table(Mutex::new([(Hva(0x4000_0000), Pfn(7))].into()))).build()?;
    /// # vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// vcpu.prefault(&mut idle, Span::sized(Gfn(0), 1))?;
    /// let page = Span::sized(Hva(0x4000_0000), PAGE_SIZE);
    /// let freed = vm.change(&mut idle, page, Why::Unmap, |_| vm.host().0.lock().unwrap().remove(&page.start));
    /// assert_eq!((freed, vm.translate(&mut idle, Gfn(0))), (Some(Pfn(7)), None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn change<R>(
        &self,
        idle: &mut Idle,
        hvas: Span<Hva>,
        why: Why,
        change: impl FnOnce(&mut Idle) -> R,
    ) -> R {
        // In place: each move of an invalidation copies some 220 bytes.
        let mut invalidation = self.invalidate(hvas, why);
        invalidation.edit_all(idle, None);
        invalidation.open_debt().settle();
        let changed = change(idle);
        drop(invalidation);
        changed
    }

    /// Begins an [`Invalidation`]: the host is about to change `hvas`. Faults on the range wait from here until the
    /// guard is dropped.
    ///
    /// A thread may nest any number of them. Up to 4,032 are in flight at once in a VM; the next one waits for one to
    /// end. The 65th and later ones may allocate (16 KiB at first), and wait if there is no memory. While more than 64
    /// are in flight, edits, and faults that they are announced to, scan up to as many places as were ever in use.
    ///
    /// An invalidation of at most 16 regions (aligned 2 MiB pieces of host addresses) costs faults in other regions
    /// nothing. A wider one costs each concurrent fault one more attempt when it begins, and one when it ends. So does
    /// one that must zap a large page which reaches out of its range, for want of a table page.
    pub fn invalidate(&self, hvas: Span<Hva>, why: Why) -> Invalidation<'_, F, H> {
        Invalidation::begin(self, Range::Hvas(hvas), why)
    }

    /// Like [`invalidate`](Self::invalidate), but returns [`Again`] instead of waiting.
    ///
    /// `Nothing` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
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

    /// Like [`invalidate`](Self::invalidate), for guest frames of address space 0, whatever backs them.
    pub fn invalidate_gfns(&self, gfns: Span<Gfn>, why: Why) -> Invalidation<'_, F, H> {
        self.invalidate_in(SpaceId(0), gfns, why)
    }

    pub(crate) fn invalidate_in(&self, space: SpaceId, gfns: Span<Gfn>, why: Why) -> Invalidation<'_, F, H> {
        Invalidation::begin(self, Range::Gfns(space, gfns), why)
    }

    /// Zaps one leaf so that something else can be mapped. For a host that cannot say without sleeping that it has made
    /// the page writable in place.
    #[cold]
    pub(crate) fn take_away(&self, idle: &mut Idle, space: SpaceId, gfns: Span<Gfn>) {
        drop(self.invalidate_in(space, gfns, Why::Clear).apply(idle).settle());
    }
}

impl<'vm, F: Format, H: Host> Invalidation<'vm, F, H> {
    /// Begins: publishes exactly the range.
    pub(crate) fn begin(vm: &'vm Vm<F, H>, range: Range, why: Why) -> Self {
        let (gfns, hvas) = range.published();
        Self::begun(vm, vm.active.begin(gfns, hvas), range, why)
    }

    /// Like [`begin`](Self::begin), but returns `None` instead of waiting for another to end, or for memory.
    pub(crate) fn begin_now(vm: &'vm Vm<F, H>, range: Range, why: Why) -> Option<Self> {
        let (gfns, hvas) = range.published();
        Some(Self::begun(vm, vm.active.begin_now(gfns, hvas)?, range, why))
    }

    /// Like [`begin_now`](Self::begin_now), but also returns `None` where that would allocate.
    pub(super) fn try_begin(vm: &'vm Vm<F, H>, range: Range, why: Why) -> Option<Self> {
        let (gfns, hvas) = range.published();
        Some(Self::begun(vm, vm.active.try_begin(gfns, hvas)?, range, why))
    }

    fn begun(vm: &'vm Vm<F, H>, ticket: Ticket<'vm>, range: Range, why: Why) -> Self {
        full_path();
        let (why, reserve, reached) = (vm.heard(range, why), Reserve::default(), Cell::new(false));
        let begun = Begun { vm, ticket, range, why, reserve, reached };
        Self { begun, owed: Owed::default(), is_applied: false }
    }

    /// Tells that the host's pages at `hvas`, in the range, map `to` now, or nothing: edits what is mapped there, and
    /// returns the debt. For reasons that are reported [page by page](Why::page_by_page), before or instead of
    /// [`apply`](Self::apply); after it this does nothing. `to` names the frame of the first page of `hvas`; if it is
    /// larger than 4 KiB, the following pages have the following frames. Frames beyond that one page are zapped, and all
    /// are if `to` [does not fit](crate::HostError::BadFrame). The host must not change its entry meanwhile, nor reuse
    /// the old frames before settling. An invalidation of guest frames edits all of its range.
    pub fn changed<'i>(
        &'i mut self,
        idle: &'i mut Idle,
        hvas: Span<Hva>,
        to: Option<HostPage>,
    ) -> FlushDebt<'i> {
        self.changed_on(idle, hvas, to, None);
        self.debt(idle)
    }

    /// Like [`changed`](Self::changed), on the given seat or on any, with the debt added to what is owed.
    pub(super) fn changed_on(
        &mut self,
        idle: &mut Idle,
        hvas: Span<Hva>,
        to: Option<HostPage>,
        seat: Option<&Seat>,
    ) {
        if self.is_applied {
            return;
        }
        let Range::Hvas(published) = self.begun.range else { return self.edit_all(idle, seat) };
        let to = to.filter(|page| page.fits::<F>(hvas.start));
        let Self { begun, owed, .. } = self;
        begun.ticket.owes_again();
        begun.take_back(None, Scope::Changed(published.clamp(&hvas)), owed);
        let pass = |idle: &mut Idle, known: Known<'_>| {
            for space in &begun.vm.spaces {
                let mut walk = begun.walk::<Exclusive>(space, idle, seat);
                walk_behind(&mut walk, published.clamp(&hvas), |steps, part| {
                    let now = to.and_then(|page| PageBehind::part(part, hvas, page));
                    begun.edit_along(steps, part.gfns, known.with(now.as_ref()), owed)
                });
            }
        };
        begun.in_passes(idle, seat.is_none(), pass, |_| begun.refill_reserve());
    }

    /// The begin of an event: edits the range, unless its pages will be told one by one; returns the debt.
    pub(crate) fn begin_event<'i>(&'i mut self, idle: &'i mut Idle, seat: Option<&Seat>) -> FlushDebt<'i> {
        if !self.begun.why.page_by_page() {
            self.edit_all(idle, seat);
        } else if seat.is_none() {
            self.begun.fill_reserve(idle);
        }
        self.debt(idle)
    }

    /// Edits all of the range, on the given seat or on any, with the debt added to what is owed.
    pub(crate) fn edit_all(&mut self, idle: &mut Idle, seat: Option<&Seat>) {
        self.begun.edit(idle, None, seat, &mut self.owed);
        self.begun.take_back(seat.is_none().then_some(idle), Scope::Whole, &mut self.owed);
        self.is_applied = true;
    }

    /// Rule 7 without an edit: owes the flush of `hvas`, if another invalidation over them has not flushed yet.
    ///
    /// Until that invalidation has flushed, every fault on the frames behind `hvas` waits, so their translations in
    /// TLBs are older. Frames that no memslot maps any more were flushed by the transaction that took the memslot away.
    pub(super) fn adopt_on(&mut self, idle: &mut Idle, hvas: Span<Hva>, seat: Option<&Seat>) {
        let Self { begun, owed, .. } = self;
        if !begun.ticket.unflushed_behind(hvas) {
            return;
        }
        begun.take_back(None, Scope::Changed(hvas), owed);
        for space in &begun.vm.spaces {
            let mut walk = begun.walk::<Shared>(space, idle, seat);
            walk_behind(&mut walk, hvas, |_, part| {
                owed.owe(part.gfns);
                part.gfns.end
            });
        }
    }

    /// Edits `parts`, which lie in the published range, under this invalidation's number, instead of the whole range.
    pub(crate) fn apply_to<'i>(&'i mut self, idle: &'i mut Idle, parts: &[Span<Gfn>]) -> FlushDebt<'i> {
        self.begun.edit(idle, Some(parts), None, &mut self.owed);
        self.begun.take_back(Some(idle), Scope::Parts(parts), &mut self.owed);
        self.debt(idle)
    }

    /// Its number.
    pub(crate) fn version(&self) -> Version {
        self.begun.ticket.version()
    }

    /// Returns the debt so far.
    pub(crate) fn debt<'i>(&'i mut self, _idle: &'i mut Idle) -> FlushDebt<'i> {
        self.open_debt()
    }

    /// After a freeze: whether no other invalidation is active over any of it, and the slots are those of `epoch`.
    pub(crate) fn is_alone(&self, start: Start, gfns: Span<Gfn>, hvas: Span<Hva>) -> bool {
        self.begun.ticket.is_alone(start, gfns, hvas)
    }

    /// Takes it apart into its record and its debts, without ending it.
    pub(super) fn into_parts(self) -> (Begun<'vm, F, H>, Owed) {
        let mut this = ManuallyDrop::new(self);
        let owed = core::mem::take(&mut this.owed);
        // SAFETY: read once: `this` is not dropped, and not used again.
        (unsafe { core::ptr::read(&raw const this.begun) }, owed)
    }

    pub(super) fn from_parts(begun: Begun<'vm, F, H>, owed: Owed) -> Self {
        Self { begun, owed, is_applied: false }
    }

    pub(super) fn open_debt(&mut self) -> FlushDebt<'_> {
        FlushDebt::of(&self.begun, &mut self.owed, Cause::Change(self.begun.why))
    }
}

/// Ends the invalidation and pays its open debts: where a debt was leaked, where the owner unwinds, or where debts are
/// paid here together. It waits for no grace period, since the thread may be in a walk.
impl<F: Format, H: Host> Drop for Invalidation<'_, F, H> {
    fn drop(&mut self) {
        self.begun.reserve.drain(self.begun.vm);
        if !self.owed.is_nothing() {
            self.open_debt().without_grace().settle();
        }
    }
}
