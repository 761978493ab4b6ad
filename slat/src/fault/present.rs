//! A fault on a present leaf: another vCPU mapped it meanwhile, or a permission is missing.
//!
//! | leaf | access | action |
//! |---|---|---|
//! | allows it | any | spurious: the TLB was stale |
//! | host allowed writes, W is clear | write | withdrawn write: set W by one CAS, without stamp or host; log it if the slot logs |
//! | of a watched frame | write | nothing: the store is emulated ([`crate::writes`]) |
//! | large, and the slot logs or a frame of it is watched | write | split it to small leaves first; when logging by D bits all are writable if the host allowed it |
//! | large, and large pages do not execute | fetch | split it to small leaves, which execute |
//! | slot does not execute | fetch | MMIO |
//! | host had it read-only | write | ask the host; if the same page is writable now, upgrade in place (rule 10) |
//!
//! The upgrade **freezes the entry first**. Between the load of a leaf and the store of the leaf with W, the host may
//! zap the page, reuse it, and map it again: the same word, under another right. No CAS detects that. This vCPU owns a
//! frozen entry. A later invalidation replaces it, and the thaw fails. The vCPU scans the active invalidations *after*
//! the freeze, and so finds an earlier one. The host was asked before the freeze. If anything was announced to the region
//! since, the vCPU asks again, now, what the host can answer without sleeping.

use super::pursuit::{Answer, Pursuit, Stop, Wanted, allows};
use super::{By, Done, Emulate, Fault, Outcome};
use crate::sync::{Count, Shared};
use crate::table::{At, Freeze, Kind};
use crate::{Access, Format, Gfn, Host, HostPage, Level, NoMemory, Perms, Span, Vcpu, Walk, Word};

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// Handles the fault by the table above.
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
            // Every leaf allows loads. If the slot allows this fetch, the host did not when the page was mapped.
            let slot = self.memo.slot(walk, at, fault.gpa.gfn());
            let refused = slot.is_some_and(|slot| !allows(&slot, fault.access));
            return Ok(if refused { self.emulated(Emulate::ReadOnly) } else { Outcome::Ask });
        }
        if at.level > Level::K4 && self.logs(walk, at, fault.gpa.gfn()) {
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
            return Ok(self.regain(walk, at, fault, || at.entry.cas(at.word, given).is_ok()));
        }
        // `set_writable` above needs no such check: a watched leaf is not marked as host-writable.
        if self.space.watched.any(Span::sized(fault.gpa.gfn().base(at.level), at.level.pages())) {
            return self.watched(walk, at, fault);
        }
        Ok(self.upgrade(walk, at, fault))
    }

    /// Handles a store to a leaf with a watched frame. If the store is to another frame, splits the leaf first.
    #[cold]
    fn watched(
        &mut self,
        walk: &Walk<'_, F, H, Shared>,
        at: At<'_>,
        fault: Fault,
    ) -> Result<Outcome, NoMemory> {
        if self.space.watched.has(fault.gpa.gfn()) {
            return Ok(Outcome::Done(Done::Emulate(Emulate::Tracked)));
        }
        self.split_down(walk, at, fault.gpa.gfn(), false)?;
        Ok(Outcome::Retry)
    }

    /// Splits the leaf down to small ones, writable if `writable` is set. Returns the leaf of `gfn`, or `None` if
    /// another thread removed it meanwhile.
    fn split_down<'w>(
        &mut self,
        walk: &'w Walk<'_, F, H, Shared>,
        mut at: At<'w>,
        gfn: Gfn,
        writable: bool,
    ) -> Result<Option<At<'w>>, NoMemory> {
        loop {
            at = match at.word.kind::<F>(at.level) {
                Kind::Table(_) => walk.step_down(gfn, at),
                Kind::Leaf if at.level == Level::K4 => return Ok(Some(at)),
                Kind::Leaf => walk.split_leaf(&mut self.cache, gfn, at, writable && at.level == Level::M2)?,
                _ => return Ok(None),
            };
        }
    }

    /// Whether stores to `gfn` are logged, for the section of `walk`.
    pub(super) fn logs(&mut self, walk: &Walk<'_, F, H, Shared>, at: At<'_>, gfn: Gfn) -> bool {
        let slot = self.memo.slot(walk, at, gfn);
        slot.is_some_and(|slot| slot.log_dirty)
    }

    /// Upgrades the leaf if the host has the page writable without sleeping. Looks before it freezes: most such pages must
    /// be asked for, outside any section.
    #[inline(never)]
    fn upgrade(&mut self, walk: &Walk<'_, F, H, Shared>, at: At<'_>, fault: Fault) -> Outcome {
        // If an invalidation is about to change the page, the fault has to wait anyway; and a frozen entry would become
        // a hole, where the leaf could have stayed.
        let pursuit = match self.pursue_leaf(walk, at, fault) {
            Ok(pursuit) => pursuit,
            Err(outcome) => return outcome,
        };
        let answer = pursuit.look::<F, _>(&walk.vm.host);
        match answer.filter(|answer| self.upgraded(answer, at).is_some()) {
            Some(answer) => self.upgrade_to(walk, at, fault, answer),
            None => Outcome::Ask,
        }
    }

    /// Upgrades the leaf to the page of `answer`, if that is about all of it.
    pub(super) fn upgrade_to(
        &mut self,
        walk: &Walk<'_, F, H, Shared>,
        at: At<'_>,
        fault: Fault,
        answer: Answer,
    ) -> Outcome {
        let frozen = Word::frozen(u64::from(self.id.0));
        // An invalidation that replaces the frozen entry cannot see the old leaf, so its Dirty bit is saved here.
        walk.keep_dirty((at.word, frozen), at.level, fault.gpa.gfn());
        let Some(frozen) = Freeze::new(at.entry, at.word, frozen) else { return Outcome::Retry };
        let (thawed, outcome) = self.decide(walk, at, fault, answer);
        if outcome == Outcome::Done(Done::Fixed) {
            return self.regain(walk, at, fault, || frozen.thaw(thawed));
        }
        if frozen.thaw(thawed) { outcome } else { Outcome::Retry }
    }

    /// The steps before the host is asked whether the leaf may be written, of which no invalidation covers any part.
    fn pursue_leaf(
        &mut self,
        walk: &Walk<'_, F, H, Shared>,
        at: At<'_>,
        fault: Fault,
    ) -> Result<Pursuit, Outcome> {
        let wanted = (walk.vm.active.epoch(), Wanted::new(fault.gpa.gfn(), Access::Write));
        self.pursue(wanted, walk, at, (at.level, at.level)).map_err(|stop| match stop {
            // The memslot went after the leaf was read, and so did the leaf: the next attempt finds neither.
            Stop::NoMemslot => Outcome::Retry,
            stop => self.stopped(stop, By::GUEST),
        })
    }

    /// Decides what to thaw the frozen entry to. Never sleeps.
    fn decide(
        &mut self,
        walk: &Walk<'_, F, H, Shared>,
        at: At<'_>,
        fault: Fault,
        answer: Answer,
    ) -> (Word, Outcome) {
        let (vm, gfn) = (walk.vm, fault.gpa.gfn());
        let pursuit = match self.pursue_leaf(walk, at, fault) {
            Ok(pursuit) => pursuit,
            Err(outcome) => return (at.word, outcome),
        };
        // A watch may have begun since the leaf was read.
        if self.space.watched.any(Span::sized(gfn.base(at.level), at.level.pages())) {
            return (at.word, Outcome::Retry);
        }
        // If an invalidation was announced meanwhile, here or elsewhere in the region, the host may answer otherwise now.
        let page = answer.renewed(&pursuit).and_then(|answer| self.upgraded(&answer, at));
        let page = page.or_else(|| self.upgraded(&pursuit.look::<F, _>(&vm.host)?, at));
        match page {
            Some(page) => (F::leaf(&vm.leaf(page, Access::Write), at.level), Outcome::Done(Done::Fixed)),
            None => (at.word, Outcome::Ask),
        }
    }

    /// The page for leaf `at` in place, if the host's page for a store has the same frame and differs only in the write
    /// permission. Any other change needs a flush.
    pub(super) fn upgraded(&self, answer: &Answer, at: At<'_>) -> Option<HostPage> {
        let (old, page, gfn) = (F::decode(at.word), answer.page(), answer.pursuit().gfn);
        // The frame of these 4 KiB, inside a leaf that may be larger.
        let mine = old.pfn + (gfn.0 - gfn.base(at.level).0);
        let whole = HostPage { level: at.level, ..page };
        let same = page.pfn == mine && page.level >= at.level && page.memory == old.memory;
        let new = self.vm.leaf(whole, Access::Write);
        (same && page.writable && new.perms.without(Perms::WRITE) == old.perms.without(Perms::WRITE))
            .then_some(whole)
    }

    /// Makes leaf `at` writable by `allow`, which says whether it did. Counts it, and logs it if the slot logs.
    #[inline]
    pub(super) fn regain(
        &self,
        walk: &Walk<'_, F, H, Shared>,
        at: At<'_>,
        fault: Fault,
        allow: impl FnOnce() -> bool,
    ) -> Outcome {
        let gfns = Span::sized(fault.gpa.gfn().base(at.level), at.level.pages());
        if !walk.allow_stores(gfns, self.ring, allow) {
            return Outcome::Retry;
        }
        walk.seat.tally.add(Count::Permission);
        Outcome::Done(Done::Fixed)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
