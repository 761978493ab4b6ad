//! A VM as a secondary MMU.

use super::invalidation::{Invalidation, Range};
use super::secondary::{Again, Event, Pages, SecondaryMmu, Young};
use super::why::Why;
use crate::addr::{Hva, Span};
use crate::age::AccessedPages;
use crate::host::{Host, HostPage};
use crate::sync::gate::MmuLock;
use crate::sync::idle::Idle;
use crate::table::format::Format;
use crate::tlb::debt::Owed;
use crate::vm::Vm;

impl<F: Format, H: Host> Vm<F, H> {
    /// The reason as this VM takes it: where it was built to ignore reasons, each is an unmap.
    pub(super) fn heard(&self, range: Range, why: Why) -> Why {
        let ignored = !self.policy.contexts && matches!(range, Range::Hvas(_));
        if ignored { Why::Unmap } else { why }
    }
}

impl<F: Format, H: Host> SecondaryMmu for Vm<F, H> {
    fn around(
        &self,
        idle: &mut Idle,
        event: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        let range = Range::Hvas(event.hvas);
        let invalidation = if event.may_block {
            let mut invalidation = Invalidation::begin(self, range, event.why);
            invalidation.apply(idle).settle();
            invalidation
        } else {
            // The lock of a baseline policy is waited for asleep.
            if self.lock.policy() != MmuLock::None {
                return Err(Again);
            }
            let seat = self.try_borrow_seat().ok_or(Again)?;
            let mut invalidation = Invalidation::try_begin(self, range, event.why).ok_or(Again)?;
            invalidation.apply_without_waiting(idle, seat.seat());
            invalidation
        };
        let mut told = Told { invalidation, owed: Owed::default(), may_block: event.may_block };
        change(idle, &mut told);
        told.flush(idle);
        Ok(())
    }

    fn heeds_pages(&self) -> bool {
        self.policy.contexts
    }

    fn young(&self, idle: &mut Idle, hvas: Span<Hva>, young: Young) -> bool {
        self.young_behind(idle, hvas, young)
    }

    fn ages(&self) -> bool {
        true
    }

    fn age(&self, idle: &mut Idle, hvas: Span<Hva>, seen: &mut dyn FnMut(&AccessedPages<Hva>)) {
        self.age_behind(idle, hvas, seen);
    }

    fn forget(&self, idle: &mut Idle, hvas: Span<Hva>) {
        self.forget_behind(idle, hvas);
    }
}

/// An open invalidation that is told page by page, and what it owes so far.
struct Told<'vm, F: Format, H: Host> {
    invalidation: Invalidation<'vm, F, H>,
    owed: Owed,
    may_block: bool,
}

impl<F: Format, H: Host> Pages for Told<'_, F, H> {
    fn changed(&mut self, idle: &mut Idle, hvas: Span<Hva>, to: Option<HostPage>) {
        self.invalidation.changed_into(idle, hvas, to, &mut self.owed);
    }

    fn flush(&mut self, idle: &mut Idle) {
        let owed = core::mem::take(&mut self.owed);
        if !owed.is_nothing() {
            let debt = self.invalidation.owing(idle, owed);
            let debt = if self.may_block { debt } else { debt.without_grace() };
            debt.settle();
        }
    }

    fn settle(&mut self, idle: &mut Idle, hvas: Span<Hva>) {
        if seeded!(CopiedUnsettled) {
            return;
        }
        self.invalidation.adopt_into(idle, hvas, &mut self.owed);
        self.flush(idle);
    }
}

/// A change that panics leaves nothing unpaid behind.
impl<F: Format, H: Host> Drop for Told<'_, F, H> {
    fn drop(&mut self) {
        let owed = core::mem::take(&mut self.owed);
        if !owed.is_nothing() {
            self.invalidation.owing_now(owed);
        }
    }
}
