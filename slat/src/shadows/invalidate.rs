//! Invalidations and shadows of L1's tables ([`crate::nested`]).
//!
//! ```text
//! announced     for each L1 frame of the range: zap the shadow entries that its hints name, after splitting a leaf that
//!               reaches out of the range
//!               any hint at all?  a flush of L2's tag is owed
//! flush
//! paid          drop the hints of the range, except those of large pages that reach out of it; faults on its frames still wait
//! ```
//! Hints are visited in [`Stretches`], each in a section of its own. Leaves of L2 are zapped for every reason. A VM that never ran a nested guest pays one test.

use super::{Pages, Reach, Shadows, Stretches};
use crate::addr::{Gfn, Span};
use crate::host::Host;
use crate::notify::begun::{Begun, Range, Scope};
use crate::slots::behind::Behind;
use crate::space::Space;
use crate::sync::idle::Idle;
use crate::sync::readside::BorrowedWithoutIdle;
use crate::table::format::Format;
use crate::tlb::debt::Owed;
use crate::why::Why;

impl<F: Format, H: Host> Begun<'_, F, H> {
    /// Zaps the shadow entries of the frames in `scope`. With `idle` it may ask for table pages.
    #[cold]
    #[inline(never)]
    pub(super) fn reach_all_spaces(&self, idle: Option<&mut Idle>, scope: Scope<'_>, owed: &mut Owed) {
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

    /// Zaps the shadow entries of one space. Returns whether it left leaves for want of pages, if it `defers`.
    fn reach_in(
        &self,
        space: &Space<F>,
        shadows: &Shadows<F>,
        scope: Scope<'_>,
        owed: &mut Owed,
        defers: bool,
    ) -> bool {
        let (host, active) = (&self.vm.host, &self.vm.active);
        let (mut any, mut is_short) = (false, false);
        let has_seat = self.reserve.with(|cache| {
            let mut pages = Pages { defers, ..Pages::of(cache) };
            let has_seat = self.for_frames(space, scope, |left, all| {
                any |= shadows.reach(host, active, (left, all), Reach::Zap, &mut pages);
            });
            is_short = pages.is_short;
            has_seat
        });
        // L1's tables may lie in the slot. Without a seat, slots cannot be looked up: all shadow entries are zapped.
        if !has_seat || self.why == Why::Slot {
            shadows.reach_all(host, active, Reach::Zap);
            any = true;
        }
        if any {
            owed.owe_nested();
        }
        // Otherwise frames of the range have not been looked at.
        if any && matches!(scope, Scope::Whole) {
            self.reached.set(true);
        }
        is_short
    }

    /// Drops the hints of the whole range: the flush is paid.
    #[cold]
    pub(super) fn forget_nested(&self) {
        self.reached.set(false);
        for space in &self.vm.spaces {
            if let Some(shadows) = space.nested.get() {
                // Without a seat the hints stay, and may cost a needless flush later.
                self.for_frames(space, Scope::Whole, |left, all| {
                    shadows.reverse.remove(&self.vm.host, left, all);
                });
            }
        }
    }

    /// Calls `visit` with invalidated frames of `space`, of which it visits one stretch. Each call is inside a section in
    /// which the frames' slot stays. The second argument is the frames around them for which that holds too. Returns false
    /// without a seat.
    fn for_frames(
        &self,
        space: &Space<F>,
        scope: Scope<'_>,
        mut visit: impl FnMut(&mut Stretches, Span<Gfn>),
    ) -> bool {
        let mut whole = |gfns| {
            let mut left = Stretches::new(gfns);
            while !left.is_over() {
                visit(&mut left, gfns);
            }
        };
        let hvas = match (self.range, scope) {
            (Range::Gfns(only, _), _) if only != space.id => return true,
            (_, Scope::Parts(parts)) => {
                parts.iter().copied().for_each(whole);
                return true;
            }
            (Range::Gfns(_, gfns), _) => {
                whole(gfns);
                return true;
            }
            (Range::Hvas(hvas), Scope::Changed(told)) => hvas.clamp(&told),
            (Range::Hvas(hvas), Scope::Whole) => hvas,
        };
        // An invalidation may end without the token.
        let Some(seat) = self.vm.try_borrow_seat().map(BorrowedWithoutIdle::new) else { return false };
        let (mut left, mut all, mut stretch) = (Behind::new(hvas), Span::default(), Stretches::default());
        let mut goal = Gfn(u64::MAX);
        while !left.is_nothing() {
            // A transaction on these frames ends after this section. Until then faults on them wait for it.
            let reading = space.memslots.read(&self.vm.reads, &seat);
            let Some(part) = space.memslots.behind(reading.published(), &left) else { break };
            let first = if goal == part.gfns.start { all.start } else { part.gfns.start };
            all = Span::new(first, part.gfns.end);
            stretch = stretch.within(part.gfns);
            visit(&mut stretch, all);
            goal = stretch.goal();
            left = left.after(&part, goal);
        }
        true
    }
}
