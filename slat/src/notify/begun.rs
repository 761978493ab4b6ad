//! An invalidation between begin and end: begin, edit, settle, end.
//!
//! | part | contents |
//! |---|---|
//! | [`Target`] | the VM, the range, the reason: does not change, and is copied into walks and hooks |
//! | [`Begun`] | the ticket, the debt, the spare table pages: what edits change |
//! | [`Scope`] | what one edit covers, as its caller says it |
//! | [`Extent`] | the same, as walks and hooks read it |

use super::host_range::walk_behind;
use super::plan::withdraws;
use super::reserve::Reserve;
use crate::active::Ticket;
use crate::callbacks::Finally;
use crate::hooks::{Nested, NestedHooks};
use crate::lent::Lent;
use crate::oracle::Open;
use crate::space::Space;
use crate::sync::prim::full_path;
use crate::sync::{Mode, Seat, Shared};
use crate::tlb::debt::{Owed, Owes, Pay};
use crate::{
    Cause, Format, Gfn, Host, HostPage, Hva, Idle, Level, PAGE_SHIFT, PAGE_SIZE, Reason, SpaceId, Span, Vm,
    Walk,
};
use core::mem::take;

/// Spare pages when an edit begins. A range cuts at most two leaves of 1 GiB, then one of 2 MiB in each.
const SPARE_AT_LEAST: u64 = 4;
/// Maximum for an invalidation that is told page by page: each page may lie in another large leaf.
const SPARE_AT_MOST: u64 = 64;

/// A pass of an invalidation over its range.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pass {
    pub(super) nth: Nth,
    /// Whether no leaf is left in any table of the range.
    pub(super) emptied: bool,
    /// Whether a leaf to be split stays if no table page is spare. The caller then asks for pages and edits again.
    pub(super) defers: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Nth {
    #[default]
    First,
    /// A second pass under the same number. Tables found now were linked after the first pass, and stay.
    Again,
    /// A second pass under a new number.
    Renumbered,
}

/// The subject of an invalidation: the VM, the range and the reason.
#[derive(Debug)]
pub(crate) struct Target<'vm, F: Format, H: Host> {
    pub(crate) vm: Lent<'vm, Vm<F, H>>,
    pub(crate) range: Range,
    pub(crate) why: Reason,
}

/// An invalidation that has begun. Dropping it pays its open debts, and ends it: where a debt was leaked, where the
/// owner unwinds, or where debts are paid here together.
#[derive(Debug)]
pub(crate) struct Begun<'vm, F: Format, H: Host> {
    pub(crate) target: Target<'vm, F, H>,
    /// Ends before the ticket does.
    pub(crate) ghost: Open<'vm>,
    pub(crate) ticket: Ticket<'vm>,
    /// Debts of its edits so far, and of edits that its owner makes under its number. A [`FlushDebt`](crate::FlushDebt)
    /// is a view of this record, so a leaked debt is not lost.
    pub(crate) owed: Owed,
    pub(crate) reserve: Reserve,
    /// Whether shadows were reached. If all of the range has been edited, its hints can be dropped after the flush.
    pub(crate) reached: bool,
    /// The pass that is being made.
    pub(super) pass: Pass,
    /// Whether all of the range has been edited.
    pub(super) is_applied: bool,
}

/// The range that is invalidated: guest frames, or the frames that memslots map of a host range.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Range {
    /// Frames of one address space.
    Gfns(SpaceId, Span<Gfn>),
    /// Host addresses, in every address space.
    Hvas(Span<Hva>),
}

/// The part of the range that an edit covers.
#[derive(Clone, Copy)]
pub(crate) enum Scope<'a> {
    /// All of the range.
    Whole,
    /// These frames of a range of frames.
    Parts(&'a [Span<Gfn>]),
    /// The pages that the host told as changed, and the page that the first of them maps now.
    Told(Span<Hva>, Option<HostPage>),
}

/// A [`Scope`] of a [`Range`].
#[derive(Clone, Copy)]
pub(crate) enum Extent<'a> {
    Gfns(SpaceId, &'a [Span<Gfn>]),
    /// With the host's page at an address, if it told one.
    Hvas(Span<Hva>, Option<(Hva, HostPage)>),
}

impl<F: Format, H: Host> Copy for Target<'_, F, H> {}
impl<F: Format, H: Host> Clone for Target<'_, F, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl Range {
    fn published(self) -> (Span<Gfn>, Span<Hva>) {
        match self {
            Self::Gfns(_, gfns) => (gfns, Span::default()),
            Self::Hvas(hvas) => (Span::default(), hvas),
        }
    }

    /// Returns what `scope` covers of it. Told pages of a range of frames may lie anywhere in it.
    #[inline(always)]
    pub(crate) fn part<'a>(&'a self, scope: &Scope<'a>) -> Extent<'a> {
        match (self, scope) {
            (Self::Gfns(space, _), &Scope::Parts(parts)) => Extent::Gfns(*space, parts),
            (Self::Gfns(space, gfns), _) => Extent::Gfns(*space, core::slice::from_ref(gfns)),
            (Self::Hvas(all), &Scope::Told(hvas, to)) => {
                Extent::Hvas(all.clamp(&hvas), to.map(|page| (hvas.start, page)))
            }
            (Self::Hvas(all), _) => Extent::Hvas(*all, None),
        }
    }
}

/// Whether each page that `told` touches is a page that `all` touches.
fn has_pages_of(all: Span<Hva>, told: Span<Hva>) -> bool {
    let pages = |hvas: Span<Hva>| hvas.start.0 >> PAGE_SHIFT..hvas.end.0.div_ceil(PAGE_SIZE);
    let (all, told) = (pages(all), pages(told));
    told.is_empty() || all.start <= told.start && told.end <= all.end
}

/// Opens a walk on the given seat, or on any.
#[inline(always)]
pub(crate) fn walk<'g, F: Format, H: Host, M: Mode>(
    vm: &'g Vm<F, H>,
    space: &'g Space<F>,
    idle: &'g mut Idle,
    seat: Option<&'g Seat>,
) -> Walk<'g, F, H, M> {
    match seat {
        Some(seat) => Walk::on_seat(vm, space, idle, seat),
        None => Walk::on_any_seat(vm, space, idle),
    }
}

impl<'vm, F: Format, H: Host> Begun<'vm, F, H> {
    /// Begins: publishes exactly the range. May wait for another invalidation to end.
    pub(crate) fn begin(vm: &'vm Vm<F, H>, range: Range, why: Reason) -> Self {
        let (gfns, hvas) = range.published();
        Self::new(vm, vm.active.begin(gfns, hvas), range, why)
    }

    /// Like [`begin`](Self::begin), but returns `None` instead of waiting; also instead of allocating, unless it
    /// `grows`.
    pub(super) fn try_begin(vm: &'vm Vm<F, H>, range: Range, why: Reason, grows: bool) -> Option<Self> {
        let (gfns, hvas) = range.published();
        loop {
            match vm.active.try_begin(gfns, hvas) {
                Some(ticket) => return Some(Self::new(vm, ticket, range, why)),
                None if grows && vm.active.grow() => {}
                None => return None,
            }
        }
    }

    #[inline(always)]
    fn new(vm: &'vm Vm<F, H>, ticket: Ticket<'vm>, range: Range, why: Reason) -> Self {
        full_path();
        Self {
            target: Target { vm: Lent::new(vm), range, why: vm.heard(range, why) },
            ghost: Open::begin(vm, range, why),
            ticket,
            owed: Owed::default(),
            reserve: Reserve::default(),
            reached: false,
            pass: Pass::default(),
            is_applied: false,
        }
    }

    /// Tells that the host's pages at `hvas` map `to` now, or nothing: edits what is mapped there, unless all of the
    /// range has been edited.
    pub(super) fn tell(
        &mut self,
        idle: &mut Idle,
        hvas: Span<Hva>,
        to: Option<HostPage>,
        seat: Option<&Seat>,
    ) {
        self.ghost.told(hvas, to);
        let scope = match self.target.range {
            Range::Hvas(all) => {
                debug_assert!(
                    has_pages_of(all, hvas),
                    "told {hvas:x?} outside of the range {all:x?}: announce all that changes"
                );
                Scope::Told(hvas, to.filter(|page| page.fits::<F>(hvas.start)))
            }
            Range::Gfns(..) => Scope::Whole,
        };
        if !self.is_applied {
            self.edit(idle, &scope, seat);
        }
    }

    /// Rule 7 without an edit: owes the flush of `hvas`, if another invalidation over them has not flushed yet.
    ///
    /// Until that invalidation has flushed, every fault on the frames behind `hvas` waits, so their translations in
    /// TLBs are older. Frames that no memslot maps any more were flushed by the transaction that took the memslot away.
    pub(super) fn adopt(&mut self, idle: &mut Idle, hvas: Span<Hva>, seat: Option<&Seat>) {
        if !self.ticket.unflushed_behind(hvas) {
            return;
        }
        let (vm, extent) = (self.target.vm.get(), Extent::Hvas(hvas, None));
        self.withdraw_held(&extent);
        Nested::reach(self, &extent, false);
        for space in &vm.spaces {
            let mut walk = walk::<F, H, Shared>(vm, space, idle, seat);
            walk_behind(&mut walk, hvas, |_, part| {
                self.owed.owe(part.gfns);
                part.gfns.end
            });
        }
    }

    /// Withdraws frames from their holders ([`crate::slots::holds`]).
    #[inline(always)]
    pub(super) fn withdraw_held(&mut self, extent: &Extent<'_>) {
        if !self.target.vm.holds.is_empty() {
            self.withdraw_some(extent);
        }
    }

    #[cold]
    fn withdraw_some(&mut self, extent: &Extent<'_>) {
        let Target { vm, why, .. } = self.target;
        let hvas = if let Extent::Hvas(hvas, _) = extent { Some(*hvas) } else { None };
        let found = vm.holds.withdraw(hvas, |held, hva| {
            let covers = match extent {
                Extent::Hvas(hvas, _) => hvas.contains(hva),
                Extent::Gfns(space, parts) => {
                    *space == held.space && parts.iter().any(|part| part.contains(held.gfn))
                }
            };
            covers && withdraws(why, held.write)
        });
        if found.any {
            self.owed.owe_held(found.hardware);
        }
    }

    /// Fills the reserve; see [`Reserve::fill`].
    #[cold]
    pub(super) fn restock(&mut self, asks: bool) -> bool {
        let pieces = match self.target.range {
            Range::Hvas(hvas) if self.target.why.page_by_page() => hvas.len() >> Level::M2.shift(),
            _ => 0,
        };
        self.reserve.fill(&self.target.vm, pieces.clamp(SPARE_AT_LEAST, SPARE_AT_MOST) as usize, asks)
    }

    /// Pays what is owed. Waits for a grace period only if it `may_collect`: the thread is then in no walk, and may
    /// block.
    #[inline(always)]
    pub(crate) fn settle(&mut self, may_collect: bool) {
        if self.owed.is_nothing() { self.paid() } else { self.pay(may_collect) }
    }

    fn pay(&mut self, may_collect: bool) {
        let Target { vm, why, .. } = self.target;
        let owed = take(&mut self.owed);
        // Also if a callback panics: the payer lets panics out only after the flush.
        let _paid = Finally::with(self, |this| this.paid());
        vm.pay(owed, Cause::Change(why), may_collect);
    }

    fn paid(&mut self) {
        self.ticket.flushed();
        self.ghost.settled(self.target.vm.get());
        if self.reached && self.is_applied {
            Nested::forget(self);
        }
    }

    /// Gives spare pages back, and pays open debts. Waits for no grace period, since the thread may be in a walk.
    #[cold]
    #[inline(never)]
    fn clear_up(&mut self) {
        self.reserve.drain(&self.target.vm);
        if !self.owed.is_nothing() {
            self.settle(false);
        }
    }
}

impl<F: Format, H: Host> Owes for Begun<'_, F, H> {
    fn owed(&self) -> &Owed {
        &self.owed
    }

    fn settle(&mut self) {
        self.settle(true);
    }
}

/// The end: the ticket ends after this.
impl<F: Format, H: Host> Drop for Begun<'_, F, H> {
    #[inline(always)]
    fn drop(&mut self) {
        // Mostly there are neither spare pages nor debts.
        if self.reserve.pages.len() > 0 || !self.owed.is_nothing() {
            self.clear_up();
        }
    }
}
