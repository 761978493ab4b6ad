//! Recovery: replaces a table in place by the one large leaf that the host has there.
//!
//! ```text
//! begin an invalidation of the frames         faults there wait; no vCPU's memory of a table stays valid
//!   link → frozen                             a walk that arrives now retries; one inside the table may continue
//!   epoch; slot; no other active over it?     no invalidation works inside the table, and none will: it would
//!                                             find the frozen entry, and replace it
//!   the host's answer, without sleeping       as large and congruent; otherwise thaw to the link again
//!   frozen → large leaf                       fails if an invalidation replaced it: then nothing is mapped
//! one flush                                   forgets small translations, and links to the dead table
//! end; grace period; take the table apart
//! ```
//! **Why freeze?** An invalidation that works *inside* the table keeps the link. Without the frozen entry it could zap
//! one small page, flush, and let the host give the frame away. The CAS from the link to the large leaf would still
//! succeed and bring the frame back. Such an invalidation finds the frozen entry on its way down. As in an upgrade
//! ([`crate::fault`]), the entry is frozen *first*, and the stamp is taken afterwards.
//!
//! While an entry is frozen, a vCPU without a translation faults and waits for the invalidation to end. Accessed and
//! Dirty of the small pages are not collected: the large leaf is young, and dirty if it is writable.

use crate::notify::begun::{Begun, Range};
use crate::space::Space;
use crate::sync::{Count, Edits, Exclusive, Mode, Shared};
use crate::table::{Freeze, Kind, Node};
use crate::trace::TraceEvent;
use crate::{
    Access, Format, Gfn, GuestSpace, Host, HostPage, Hva, Idle, Leaf, Level, Reason, Span, Vm, Walk, Word,
};

/// Maximum number of frames of one invalidation. Faults on them wait for one flush and for so many tables.
const FRAMES_AT_ONCE: u64 = 64 * Level::M2.pages();

impl<F: Format, H: Host> GuestSpace<'_, F, H> {
    /// Replaces the tables in `gfns` by large leaves where host, slot and policy allow. Call it
    /// after the host has made a huge page of small ones, or to undo splits by fetches
    /// ([`Builder::nx_huge_pages`](crate::Builder::nx_huge_pages)). The engine does it by itself when a dirty log ends.
    /// Returns the number of tables replaced. Asks the host only by [`Host::lookup`]. Waits for vCPUs to answer
    /// flushes.
    pub fn recover(&self, idle: &mut Idle, gfns: Span<Gfn>) -> u64 {
        let (vm, space) = (self.vm, self.space);
        if vm.policy.max_page.min(F::MAX_LEAF) == Level::K4 {
            return 0;
        }
        let gfns = gfns.clamp(&Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)));
        let (mut at, mut recovered) = (gfns.start, 0);
        while let Some((found, level)) = vm.next_candidate(idle, space, Span::new(at, gfns.end)) {
            let end = (found + FRAMES_AT_ONCE.max(level.pages())).min(gfns.end);
            recovered += vm.recover_stretch(idle, space, Span::new(found, end));
            at = end;
        }
        if recovered > 0 {
            vm.collect(idle);
        }
        recovered
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Returns the first table in `gfns` that could be a large leaf at this moment.
    fn next_candidate(&self, idle: &mut Idle, space: &Space<F>, gfns: Span<Gfn>) -> Option<(Gfn, Level)> {
        let mut walk = Walk::<F, H, Shared>::on_any_seat(self, space, idle);
        let mut steps = walk.steps(gfns, Level::M2);
        while let Some((walk, step)) = steps.next() {
            let (level, first) = (step.at.level, step.gfns.start);
            let whole = gfns.covers(&step.gfns) && matches!(step.at.word.kind::<F>(level), Kind::Table(_));
            if whole && self.large_leaf(walk, first, level, |_, _| true).is_some() {
                return Some((first, level));
            }
        }
        None
    }

    fn recover_stretch(&self, idle: &mut Idle, space: &Space<F>, gfns: Span<Gfn>) -> u64 {
        // Its end pays for all tables together, even if the host panics in between.
        let mut change = Begun::begin(self, Range::Gfns(space.id, gfns), Reason::Migrate);
        let mut walk = Walk::<F, H, Exclusive>::on_any_seat(self, space, idle);
        recover_along(&mut walk, &mut change, gfns)
    }

    /// Returns the leaf that slot, policy and host allow instead of a table. Asks the host only if `confirmed` returns
    /// true.
    fn large_leaf<M: Mode>(
        &self,
        walk: &Walk<'_, F, H, M>,
        gfn: Gfn,
        level: Level,
        confirmed: impl FnOnce(Span<Gfn>, Span<Hva>) -> bool,
    ) -> Option<Leaf> {
        let slot = walk.slots().find(gfn)?;
        let (gfns, hvas) = self.large_page(walk.space, &slot, gfn, level)?;
        self.will_map_a_large_page();
        if !confirmed(gfns, hvas) {
            return None;
        }
        let ask = |access| self.host.lookup(hvas.start, access);
        let found = ask(Access::Write).or_else(|| ask(Access::Read))?;
        let page = HostPage { level, ..found.through(&slot) };
        let fits = found.level >= level
            && page.fits::<F>(hvas.start)
            && (page.execute || !self.policy.nx_huge_pages)
            && F::has_memory_type(page.memory);
        let access = if page.writable { Access::Write } else { Access::Read };
        fits.then(|| self.leaf(page, access))
    }
}

/// Recovers the tables in `gfns` under `change`, which covers them and owes the flush. Returns their number.
pub(super) fn recover_along<F: Format, H: Host, M: Edits>(
    walk: &mut Walk<'_, F, H, M>,
    change: &mut Begun<'_, F, H>,
    gfns: Span<Gfn>,
) -> u64 {
    let mut recovered = 0;
    let mut steps = walk.steps(gfns, Level::M2);
    while let Some((walk, step)) = steps.next() {
        let (vm, at) = (walk.vm, step.at);
        let Kind::Table(table) = at.word.kind::<F>(at.level) else { continue };
        if !gfns.covers(&step.gfns) {
            continue;
        }
        let Some(frozen) = Freeze::new(at.entry, at.word, Word::frozen_link(table)) else { continue };
        let start = vm.active.epoch();
        let leaf = vm.large_leaf(walk, step.gfns.start, at.level, |gfns, hvas| {
            change.ticket.is_alone(start, gfns, hvas)
        });
        let thawed = leaf.map_or(at.word, |leaf| F::leaf(&leaf, at.level));
        let ours = frozen.thaw(thawed);
        if ours && leaf.is_none() {
            continue;
        }
        if ours {
            recovered += 1;
        }
        // Otherwise an invalidation has made a hole of the entry, and the table is still this thread's to unlink.
        change.owed.owe(step.gfns);
        // SAFETY: linked until this walk froze the link, in its section.
        let table = unsafe { Node::follow(vm.tables(), table) };
        change.owed.unlink(table, at.level.down());
        if ours {
            walk.seat.tally.add(Count::recovered(at.level));
            vm.host.observe(TraceEvent::Recovered { gfn: step.gfns.start, level: at.level });
        }
    }
    recovered
}
