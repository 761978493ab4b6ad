//! An invalidation between begin and end: its range, reason, number and spare table pages.

use super::active::Ticket;
use super::plan::takes_back;
use super::reserve::Reserve;
use crate::addr::{Gfn, Hva, Level, Span};
use crate::hooks::{Nested, NestedHooks};
use crate::host::Host;
use crate::slots::SpaceId;
use crate::space::Space;
use crate::sync::idle::Idle;
use crate::sync::mode::Mode;
use crate::sync::readside::Seat;
use crate::table::entry::Word;
use crate::table::format::Format;
use crate::tlb::Cause;
use crate::tlb::debt::{Owed, Pay};
use crate::vm::Vm;
use crate::walk::Walk;
use crate::why::Why;
use core::cell::Cell;

/// Spare pages when an edit begins. A range cuts at most two leaves of 1 GiB, then one of 2 MiB in each.
const WANTED: u64 = 4;
/// Maximum for an invalidation that is told page by page: each page may lie in another large leaf.
const MOST: u64 = 64;

/// An invalidation between begin and end, without the record of its debts.
#[derive(Debug)]
pub(crate) struct Begun<'vm, F: Format, H: Host> {
    pub(crate) vm: &'vm Vm<F, H>,
    pub(super) ticket: Ticket<'vm>,
    pub(crate) range: Range,
    pub(crate) why: Why,
    pub(crate) reserve: Reserve,
    /// Whether shadows were reached in all of the range, so that its hints can be dropped after the flush.
    pub(crate) reached: Cell<bool>,
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
    /// These frames of the range.
    Parts(&'a [Span<Gfn>]),
    /// The pages that the host told as changed.
    Changed(Span<Hva>),
}

impl Range {
    pub(super) fn published(self) -> (Span<Gfn>, Span<Hva>) {
        match self {
            Self::Gfns(_, gfns) => (gfns, Span::default()),
            Self::Hvas(hvas) => (Span::default(), hvas),
        }
    }
}

impl<F: Format, H: Host> Pay for Begun<'_, F, H> {
    fn pay(&self, owed: Owed, cause: Cause, may_collect: bool) {
        self.vm.pay(owed, cause, may_collect);
    }

    fn paid(&self) {
        self.ticket.flushed();
        if self.reached.get() {
            Nested::forget(self);
        }
    }
}

impl<F: Format, H: Host> Begun<'_, F, H> {
    pub(super) fn hole(&self) -> Word {
        self.ticket.hole()
    }

    pub(super) fn walk<'g, M: Mode>(
        &'g self,
        space: &'g Space<F>,
        idle: &'g mut Idle,
        seat: Option<&'g Seat>,
    ) -> Walk<'g, F, H, M> {
        match seat {
            Some(seat) => Walk::on_seat(self.vm, space, idle, seat),
            None => Walk::on_any_seat(self.vm, space, idle),
        }
    }

    /// Takes frames back from their holders ([`crate::slots::holds`]) and from nested guests.
    #[inline(always)]
    pub(super) fn take_back(&self, idle: Option<&mut Idle>, scope: Scope<'_>, owed: &mut Owed) {
        Nested::reach(self, idle, scope, owed);
        if !self.vm.holds.is_empty() {
            self.take_held(scope, owed);
        }
    }

    #[cold]
    fn take_held(&self, scope: Scope<'_>, owed: &mut Owed) {
        let (hvas, space) = match (self.range, scope) {
            (Range::Hvas(_), Scope::Changed(hvas)) | (Range::Hvas(hvas), _) => (Some(hvas), None),
            (Range::Gfns(space, _), _) => (None, Some(space)),
        };
        let taken = self.vm.holds.take_back(hvas, |held, hva| {
            let covers = match (hvas, scope, self.range) {
                (Some(hvas), ..) => hvas.contains(hva),
                (None, Scope::Parts(parts), _) => parts.iter().any(|part| part.contains(held.gfn)),
                (None, _, Range::Gfns(_, gfns)) => gfns.contains(held.gfn),
                (None, _, Range::Hvas(_)) => false,
            };
            covers && space.is_none_or(|space| space == held.space) && takes_back(self.why, held.write)
        });
        if taken.any {
            owed.owe_held(taken.hardware);
        }
    }

    /// See [`Reserve::fill`].
    #[cold]
    pub(crate) fn fill_reserve(&self, _idle: &mut Idle) -> bool {
        self.reserve.fill(self.vm, self.wanted())
    }

    /// See [`Reserve::refill`].
    #[cold]
    pub(crate) fn refill_reserve(&self) -> bool {
        self.reserve.refill(self.vm, self.wanted())
    }

    fn wanted(&self) -> usize {
        let pieces = match self.range {
            Range::Hvas(hvas) if self.why.page_by_page() => hvas.len() >> Level::M2.shift(),
            _ => 0,
        };
        pieces.clamp(WANTED, MOST) as usize
    }
}
