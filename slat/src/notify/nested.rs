//! What an invalidation does to shadows of L1's tables ([`crate::nested`]).
//!
//! ```text
//! announced     each L1 frame of the range: its hints; what stands where they say becomes a hole; a leaf that reaches out of the
//!               range is split first
//!               any hint at all?  L2's tag is owed a flush
//! flush
//! paid          the hints of the range go, but for those of large pages that reach out of it; faults on its frames still wait
//! ```
//! Whatever the reason, leaves of L2 go: the next access asks T and the host. A VM that never ran a nested guest pays one test.

use super::begun::{Begun, Range, Scope};
use crate::addr::{Gfn, Span};
use crate::host::Host;
use crate::shadows::{Pages, Reach, Shadows};
use crate::slots::behind::Behind;
use crate::space::Space;
use crate::sync::idle::Idle;
use crate::table::format::Format;
use crate::tlb::debt::Owed;
use crate::why::Why;

/// Frames that are looked at in one section.
const STRETCH: u64 = 4096;

impl<F: Format, H: Host> Begun<'_, F, H> {
    /// Reaches what was made of the frames. With `idle` it may ask for table pages.
    #[inline(always)]
    pub(super) fn reach_nested(&self, idle: Option<&mut Idle>, scope: Scope<'_>, owed: &mut Owed) {
        if self.vm.runs_nested() {
            self.reach_all_spaces(idle, scope, owed);
        }
    }

    #[cold]
    #[inline(never)]
    fn reach_all_spaces(&self, idle: Option<&mut Idle>, scope: Scope<'_>, owed: &mut Owed) {
        let reach = |owed: &mut Owed, defers| {
            let mut is_short = false;
            for space in &self.vm.spaces {
                if let Some(shadows) = space.nested.get() {
                    is_short |= self.reach_in(space, shadows, scope, owed, defers);
                }
            }
            is_short
        };
        // Once more for leaves that it left for want of table pages.
        if reach(owed, true) {
            match idle {
                Some(idle) => self.fill_reserve(idle),
                None => self.refill_reserve(),
            };
            reach(owed, false);
        }
    }

    /// Whether leaves were left for want of table pages, which may be where it `defers`.
    fn reach_in(
        &self,
        space: &Space<F>,
        shadows: &Shadows<F>,
        scope: Scope<'_>,
        owed: &mut Owed,
        defers: bool,
    ) -> bool {
        let (host, active) = (&self.vm.host, &self.vm.active);
        let left_out = self.vm.policy.shadows_sabotaged || seeded!(ShadowsForgotten);
        let (mut any, mut is_short) = (false, false);
        let has_seat = left_out
            || self.reserve.with(|cache| {
                let mut pages = Pages { defers, ..Pages::of(cache) };
                let has_seat = self.for_frames(space, scope, |gfns, all| {
                    any |= shadows.reach(host, active, (gfns, all), Reach::Zap, &mut pages);
                });
                is_short = pages.is_short;
                has_seat
            });
        // L1's tables may have lain in the slot. Or there is no seat to look slots up on: whatever stands goes.
        if !has_seat || self.why == Why::Slot && !seeded!(SlotMovedUnderTables) {
            shadows.reach_all(host, active, Reach::Zap);
            any = true;
        }
        if any && !seeded!(L1TagOnly) {
            owed.owe_nested();
        }
        // Else frames of the range have not been looked at.
        if any && matches!(scope, Scope::Whole) {
            self.reached.set(true);
        }
        is_short
    }

    /// What was owed is paid: hints of the whole range are of no use any more.
    #[cold]
    pub(super) fn forget_nested(&self) {
        self.reached.set(false);
        for space in &self.vm.spaces {
            if let Some(shadows) = space.nested.get() {
                // Where there is no seat they stay, and cost a needless flush one day.
                self.for_frames(space, Scope::Whole, |gfns, all| {
                    shadows.reverse.remove(&self.vm.host, gfns, all);
                });
            }
        }
    }

    /// Calls `visit` with frames of `space` that are invalidated, each time inside a section in which a slot that has them stays, and with the
    /// frames around them of which that is true. False where there is no seat for that.
    fn for_frames(
        &self,
        space: &Space<F>,
        scope: Scope<'_>,
        mut visit: impl FnMut(Span<Gfn>, Span<Gfn>),
    ) -> bool {
        let hvas = match (self.range, scope) {
            (Range::Gfns(only, _), _) if only != space.id => return true,
            (_, Scope::Parts(parts)) => {
                for &part in parts {
                    visit(part, part);
                }
                return true;
            }
            (Range::Gfns(_, gfns), _) => {
                visit(gfns, gfns);
                return true;
            }
            (Range::Hvas(hvas), Scope::Told(told)) => hvas.clamp(&told),
            (Range::Hvas(hvas), Scope::Whole) => hvas,
        };
        let Some(seat) = self.vm.try_borrow_seat() else { return false };
        let (mut left, mut seen, mut all) = (Behind::new(hvas), Gfn(u64::MAX), Span::default());
        while !left.is_nothing() {
            // A transaction that gives these frames other pages ends after this section. Until then faults on them wait for it.
            let reading = space.memslots.read(&self.vm.reads, seat.seat());
            let Some(part) = space.memslots.behind_in(&reading, &left) else { break };
            let goal = part.gfns.end.min(part.gfns.start + STRETCH);
            let first = if seen == part.gfns.start { all.start } else { part.gfns.start };
            all = Span::new(first, part.gfns.end);
            seen = goal;
            visit(Span::new(part.gfns.start, goal), all);
            left = left.after(&part, goal);
        }
        true
    }
}
