//! What an invalidation does to shadows of L1's tables ([`crate::nested`]).
//!
//! ```text
//! announced     each L1 frame of the range: its hints; what stands where they say becomes a hole
//!               any hint at all?  L2's tag is owed a flush
//! flush
//! paid          the hints of the range go; faults on its frames still wait
//! ```
//! Whatever the reason, leaves of L2 go: the next access asks T and the host. A VM that never ran a nested guest pays one test.

use super::begun::{Begun, Range};
use crate::addr::{Gfn, Hva, Span};
use crate::host::Host;
use crate::shadows::{Reach, Shadows};
use crate::slots::behind::Behind;
use crate::space::Space;
use crate::table::format::Format;
use crate::tlb::debt::Owed;
use crate::why::Why;

/// Frames that are looked at in one section.
const STRETCH: u64 = 4096;

impl<F: Format, H: Host> Begun<'_, F, H> {
    /// Reaches what was made of `parts`, or of all that was published; or of the pages in `told`.
    #[inline(always)]
    pub(super) fn reach_nested(&self, parts: Option<&[Span<Gfn>]>, told: Option<Span<Hva>>, owed: &mut Owed) {
        if self.vm.runs_nested() {
            self.reach_all_spaces(parts, told, owed);
        }
    }

    #[cold]
    #[inline(never)]
    fn reach_all_spaces(&self, parts: Option<&[Span<Gfn>]>, told: Option<Span<Hva>>, owed: &mut Owed) {
        for space in &self.vm.spaces {
            if let Some(shadows) = space.nested.get() {
                self.reach_in(space, shadows, (parts, told), owed);
            }
        }
    }

    fn reach_in(
        &self,
        space: &Space<F>,
        shadows: &Shadows<F>,
        (parts, told): (Option<&[Span<Gfn>]>, Option<Span<Hva>>),
        owed: &mut Owed,
    ) {
        let (host, active) = (&self.vm.host, &self.vm.active);
        let mut any = false;
        let reach = |gfns| any |= shadows.reach(host, active, gfns, Reach::Zap);
        let has_seat = seeded!(ShadowsForgotten) || self.for_frames(space, parts, told, reach);
        // L1's tables may have lain in the slot. Or there is no seat to look slots up on: whatever stands goes.
        if !has_seat || self.why == Why::Slot && !seeded!(SlotMovedUnderTables) {
            shadows.reach_all(host, active, Reach::Zap);
            any = true;
        }
        if any && !seeded!(L1TagOnly) {
            owed.owe_nested();
        }
        // Frames outside of `parts` or `told` have not been looked at.
        if any && parts.is_none() && told.is_none() {
            self.reached.set(true);
        }
    }

    /// What was owed is paid: hints of the whole range are of no use any more.
    #[cold]
    pub(super) fn forget_nested(&self) {
        self.reached.set(false);
        for space in &self.vm.spaces {
            if let Some(shadows) = space.nested.get() {
                // Where there is no seat they stay, and cost a needless flush one day.
                self.for_frames(space, None, None, |gfns| shadows.forget(&self.vm.host, gfns));
            }
        }
    }

    /// Calls `visit` with frames of `space` that are invalidated, each time inside a section in which a slot that has them stays. False
    /// where there is no seat for that.
    fn for_frames(
        &self,
        space: &Space<F>,
        parts: Option<&[Span<Gfn>]>,
        told: Option<Span<Hva>>,
        mut visit: impl FnMut(Span<Gfn>),
    ) -> bool {
        let hvas = match (self.range, parts) {
            (Range::Gfns(only, _), _) if only != space.id => return true,
            (_, Some(parts)) => {
                parts.iter().copied().for_each(visit);
                return true;
            }
            (Range::Gfns(_, gfns), None) => {
                visit(gfns);
                return true;
            }
            (Range::Hvas(hvas), None) => told.map_or(hvas, |told| hvas.clamp(&told)),
        };
        let Some(seat) = self.vm.try_borrow_seat() else { return false };
        let mut left = Behind::new(hvas);
        while !left.is_nothing() {
            // A transaction that gives these frames other pages ends after this section. Until then faults on them wait for it.
            let reading = space.memslots.read(&self.vm.reads, seat.seat());
            let Some(part) = space.memslots.behind_in(&reading, &left) else { break };
            let goal = part.gfns.end.min(part.gfns.start + STRETCH);
            visit(Span::new(part.gfns.start, goal));
            left = left.after(&part, goal);
        }
        true
    }
}
