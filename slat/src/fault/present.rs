//! A fault on a leaf that is there: another vCPU mapped it meanwhile, or a permission is missing.
//!
//! | leaf | access | what happens |
//! |---|---|---|
//! | allows it | any | spurious: the TLB was behind |
//! | the host allowed writes, W is clear | write | tracked write: give W back by one CAS, no stamp, no host; logged where the slot logs |
//! | of a watched frame | write | nothing: the store is emulated ([`crate::writes`]) |
//! | large, and the slot logs, or a frame of it is watched | write | split down to small ones first; by D bits those are all writable where the host allowed it |
//! | large, and large pages do not execute | fetch | split down to small ones, which do |
//! | the slot does not execute | fetch | MMIO |
//! | the host had it read-only | write | ask the host; the same page, writable now: upgrade in place (rule 10) |
//!
//! The upgrade **freezes first**. Between reading a leaf and writing it back with W, the page may be zapped,
//! given away and mapped again: the same word, another right to it. No CAS sees that. A frozen entry is this
//! vCPU's alone: an invalidation afterwards replaces it and the thaw fails; an invalidation before is seen by
//! the look at the active ones that is taken *after* the freeze.

use super::leaf::allows;
use super::{Done, Fault, Outcome};
use crate::addr::{Gfn, Level, Span};
use crate::dirty::ring::Ring;
use crate::host::{Host, HostPage};
use crate::notify::active::Page;
use crate::slots::Slot;
use crate::sync::mode::Shared;
use crate::sync::tally::Count;
use crate::table::entry::Word;
use crate::table::format::{Access, Format, Perms};
use crate::table::freeze::Freeze;
use crate::table::pool::NoMemory;
use crate::table::radix::At;
use crate::vcpu::Vcpu;
use crate::walk::Walk;

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// See the module's header.
    #[cold]
    pub(super) fn present<'w>(
        &mut self,
        walk: &'w Walk<'_, F, H, Shared>,
        at: At<'w>,
        fault: Fault,
    ) -> Result<Outcome, NoMemory> {
        if F::read_leaf(at.word).perms.allows(fault.access) {
            walk.seat.tally.add(Count::Spurious);
            return Ok(Outcome::Done(Done::Spurious));
        }
        if fault.access == Access::Fetch && at.level > Level::K4 && walk.vm.policy.nx_huge_pages {
            if self.split_down(walk, at, fault.gpa.gfn(), false)?.is_none() {
                return Ok(Outcome::Retry);
            }
            walk.seat.tally.add(Count::Permission);
            return Ok(Outcome::Done(Done::Fixed));
        }
        if fault.access != Access::Write {
            // Every leaf of ours allows loads. Where the slot allows a fetch, the host did not when the page was mapped.
            let slot = self.memo.slot(walk.vm, walk.space, walk.seat, fault.gpa.gfn(), None);
            let refused = slot.is_some_and(|slot| !allows(&slot, fault.access));
            return Ok(if refused { self.mmio() } else { Outcome::Ask });
        }
        if at.level > Level::K4 && self.logs(walk, fault.gpa.gfn()) {
            let writable = walk.vm.logs_by_bits() && F::host_writable(at.word);
            let small = self.split_down(walk, at, fault.gpa.gfn(), writable)?;
            if small.is_none() || !writable {
                return Ok(Outcome::Retry);
            }
            walk.seat.tally.add(Count::Permission);
            return Ok(Outcome::Done(Done::Fixed));
        }
        if F::host_writable(at.word) {
            let given = Word(F::set_writable(at.word, true).0 | F::touch(Access::Write));
            return Ok(match at.entry.cas(at.word, given) {
                Ok(()) => fixed(walk, at, (fault, self.ring)),
                Err(_) => Outcome::Retry,
            });
        }
        // A watched leaf does not say that the host allowed writes: what is above need not ask.
        if self.space.watched.any(Span::sized(fault.gpa.gfn().base(at.level), at.level.pages())) {
            return self.watched(walk, at, fault);
        }
        Ok(self.upgrade(walk, at, fault))
    }

    /// A store to a leaf of which any frame is watched: where it is another one, the leaf is split first.
    #[cold]
    fn watched(
        &mut self,
        walk: &Walk<'_, F, H, Shared>,
        at: At<'_>,
        fault: Fault,
    ) -> Result<Outcome, NoMemory> {
        if self.space.watched.has(fault.gpa.gfn()) {
            return Ok(Outcome::Done(Done::WriteTracked));
        }
        self.split_down(walk, at, fault.gpa.gfn(), false)?;
        Ok(Outcome::Retry)
    }

    /// Splits the leaf down to small ones, which may be written if `writable` says so, and returns the one of `gfn`, unless
    /// another thread takes it meanwhile.
    fn split_down<'w>(
        &mut self,
        walk: &'w Walk<'_, F, H, Shared>,
        mut at: At<'w>,
        gfn: Gfn,
        writable: bool,
    ) -> Result<Option<At<'w>>, NoMemory> {
        while at.level > Level::K4 {
            if !F::is_present(at.word) {
                return Ok(None);
            }
            at = if F::is_table(at.word, at.level) {
                walk.step_down(gfn, at)
            } else {
                walk.split_leaf(&mut self.cache, gfn, at, writable && at.level == Level::M2)?
            };
        }
        Ok(F::is_present(at.word).then_some(at))
    }

    /// Whether stores to `gfn` are logged, for the section of `walk`.
    pub(super) fn logs(&mut self, walk: &Walk<'_, F, H, Shared>, gfn: Gfn) -> bool {
        let slot = self.memo.slot(walk.vm, walk.space, walk.seat, gfn, None);
        slot.is_some_and(|slot| slot.log_dirty)
    }

    fn upgrade(&mut self, walk: &Walk<'_, F, H, Shared>, at: At<'_>, fault: Fault) -> Outcome {
        // Where an invalidation is about to change the page, the fault has to wait anyway; and a frozen entry would become a hole, where
        // a leaf could have stayed.
        if let Err(outcome) = self.slot_alone(walk, at, fault.gpa.gfn()) {
            return outcome;
        }
        let frozen = Word::frozen(u64::from(self.id.0));
        // An invalidation that replaces the frozen entry does not know what it was.
        walk.keep_dirty((at.word, frozen), at.level, fault.gpa.gfn());
        let Some(frozen) = Freeze::new(at.entry, at.word, frozen) else { return Outcome::Retry };
        let (thawed, outcome) = self.decide(walk, at, fault);
        match (frozen.thaw(thawed), outcome) {
            (true, Outcome::Done(Done::Fixed)) => fixed(walk, at, (fault, self.ring)),
            (true, outcome) => outcome,
            (false, _) => Outcome::Retry,
        }
    }

    /// The slot, where stores may come through it, and no invalidation is active over any part of what the entry maps.
    fn slot_alone(&mut self, walk: &Walk<'_, F, H, Shared>, at: At<'_>, gfn: Gfn) -> Result<Slot, Outcome> {
        let vm = walk.vm;
        let epoch = vm.active.epoch();
        let slot = self.memo.slot(vm, walk.space, walk.seat, gfn, None).ok_or(Outcome::Retry)?;
        if slot.readonly {
            return Err(self.mmio());
        }
        let gfns = Span::sized(gfn.base(at.level), at.level.pages());
        // A leaf that reaches out of the slot is another slot's, which gave way after the leaf was read.
        if !slot.gfns.covers(&gfns) && !seeded!(LeafUncompared) {
            return Err(Outcome::Retry);
        }
        if !seeded!(UpgradeUnstamped) {
            let page = Page { gfn: gfns.start, hva: slot.hva_of(gfns.start), level: at.level };
            let _ = vm.active.stamp(epoch, page, at.level, Word::OLDEST)?;
        }
        Ok(slot)
    }

    /// With the entry frozen: what to thaw it to. Sleeps nowhere.
    fn decide(&mut self, walk: &Walk<'_, F, H, Shared>, at: At<'_>, fault: Fault) -> (Word, Outcome) {
        let (vm, gfn) = (walk.vm, fault.gpa.gfn());
        let slot = match self.slot_alone(walk, at, gfn) {
            Ok(slot) => slot,
            Err(outcome) => return (at.word, outcome),
        };
        // A watch that has begun since the leaf was read.
        let watched = self.space.watched.any(Span::sized(gfn.base(at.level), at.level.pages()));
        if watched && !seeded!(WatchUnasked) {
            return (at.word, Outcome::Retry);
        }
        let upgraded = |page| self.upgraded(&slot, at, gfn, page);
        match vm.host.lookup(slot.hva_of(gfn), Access::Write).and_then(upgraded) {
            Some(page) => (F::leaf(&vm.leaf(page, Access::Write), at.level), Outcome::Done(Done::Fixed)),
            None => (at.word, Outcome::Ask),
        }
    }

    /// What the leaf `at` may be in place where the host offers `page` for a store: the same frame, to be used as it was but for the
    /// store. Whatever else changes needs a flush.
    pub(super) fn upgraded(&self, slot: &Slot, at: At<'_>, gfn: Gfn, page: HostPage) -> Option<HostPage> {
        let old = F::decode(at.word);
        // The frame of this very 4 KiB, inside a leaf that may be larger.
        let mine = old.pfn + (gfn.0 - gfn.base(at.level).0);
        let page = page.through(slot);
        let whole = HostPage { level: at.level, ..page };
        let same = page.pfn == mine
            && page.level >= at.level
            && (page.memory == old.memory || seeded!(TypeUpgraded));
        let new = self.vm.leaf(whole, Access::Write);
        (same && page.writable && new.perms.without(Perms::WRITE) == old.perms.without(Perms::WRITE))
            .then_some(whole)
    }
}

/// A leaf may be written again: that is logged where the slot logs.
pub(super) fn fixed<F: Format, H: Host>(
    walk: &Walk<'_, F, H, Shared>,
    at: At<'_>,
    (fault, ring): (Fault, Option<&Ring>),
) -> Outcome {
    walk.seat.tally.add(Count::Permission);
    if !walk.vm.logs_by_bits() && !seeded!(RegainUnmarked) {
        let gfn = fault.gpa.gfn();
        // ORDER(bitmap): after the permission, which the harvest that takes the mark has to see.
        if at.level == Level::K4 {
            walk.space.log_store(&walk.vm.reads, walk.seat, gfn, ring);
        } else {
            // As no leaf is where writes are logged; but the log may have begun since it was looked at.
            let gfns = Span::sized(gfn.base(at.level), at.level.pages());
            walk.space.memslots.log_writes(&walk.vm.reads, walk.seat, gfns);
        }
    }
    Outcome::Done(Done::Fixed)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
