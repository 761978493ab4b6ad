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

use super::{Reach, SplitPages, Stretches};
use crate::notify::begun::{Begun, Extent, Scope};
use crate::slots::behind::Behind;
use crate::space::Space;
use crate::sync::readside::BorrowedWithoutIdle;
use crate::{Format, Gfn, Host, Reason, Span, Vm};

impl<F: Format, H: Host> Begun<'_, F, H> {
    /// Zaps the shadow entries of the frames in `extent`. If it `defers`, leaves for which there is no table page
    /// stay, and the reserve is short.
    #[cold]
    #[inline(never)]
    pub(super) fn reach_all_spaces(&mut self, extent: &Extent<'_>, defers: bool) {
        let vm = self.target.vm.get();
        let (memory, active) = (vm.tables(), &vm.active);
        for space in &vm.spaces {
            let (Some(shadows), mut any) = (space.nested.get(), false) else { continue };
            let mut pages = SplitPages { defers, ..SplitPages::of(&mut self.reserve.pages) };
            let has_seat = for_frames(vm, space, extent, |left, all| {
                any |= shadows.reach(memory, active, (left, all), Reach::Zap, &mut pages);
            });
            self.reserve.is_short |= pages.is_short;
            // L1's tables may lie in the slot. Without a seat, slots cannot be looked up: all shadow entries are zapped.
            if !has_seat || self.target.why == Reason::Slot {
                shadows.reach_all(memory, active, Reach::Zap);
                any = true;
            }
            if any {
                self.owed.owe_nested();
                self.reached = true;
            }
        }
    }

    /// Drops the hints of the whole range: the flush is paid.
    #[cold]
    pub(super) fn forget_nested(&mut self) {
        self.reached = false;
        let (vm, range) = (self.target.vm.get(), self.target.range);
        for space in &vm.spaces {
            if let Some(shadows) = space.nested.get() {
                // Without a seat the hints stay, and may cost a needless flush later.
                for_frames(vm, space, &range.part(&Scope::Whole), |left, all| {
                    shadows.reverse.remove(vm.tables(), left, all);
                });
            }
        }
    }
}

/// Calls `visit` with invalidated frames of `space`, of which it visits one stretch. Each call is inside a section in
/// which the frames' slot stays. The second argument is the frames around them for which that holds too. Returns false
/// without a seat.
fn for_frames<F: Format, H: Host>(
    vm: &Vm<F, H>,
    space: &Space<F>,
    extent: &Extent<'_>,
    mut visit: impl FnMut(&mut Stretches, Span<Gfn>),
) -> bool {
    let whole = |gfns| {
        let mut left = Stretches::new(gfns);
        while !left.is_over() {
            visit(&mut left, gfns);
        }
    };
    let hvas = match extent {
        Extent::Gfns(only, parts) => {
            if *only == space.id {
                parts.iter().copied().for_each(whole);
            }
            return true;
        }
        Extent::Hvas(hvas, _) => *hvas,
    };
    // An invalidation may end without the token.
    let Some(seat) = vm.try_borrow_seat().map(BorrowedWithoutIdle::new) else { return false };
    let (mut left, mut all, mut stretch) = (Behind::new(hvas), Span::default(), Stretches::default());
    let mut goal = Gfn(u64::MAX);
    while !left.is_nothing() {
        // A transaction on these frames ends after this section. Until then faults on them wait for it.
        let reading = space.memslots.read(&vm.reads, &seat);
        let Some(part) = space.memslots.behind(reading.within(), &left) else { break };
        let first = if goal == part.gfns.start { all.start } else { part.gfns.start };
        all = Span::new(first, part.gfns.end);
        stretch = stretch.within(part.gfns);
        visit(&mut stretch, all);
        goal = stretch.goal();
        left = left.after(&part, goal);
    }
    true
}
