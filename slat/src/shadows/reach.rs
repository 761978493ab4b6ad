//! Edits of all leaves that are made of frames of L1.

use super::{CountedWalk, Reach, Shadow, Shadows, SplitPages, Stretches};
use crate::active::Active;
use crate::{Format, Gfn, Span, TableMemory};

impl<F: Format> Shadows<F> {
    /// Edits all leaves made of a stretch of `left`, frames of `all`. A leaf that is zapped and reaches out of `all` is
    /// [split](super::split) first. Returns true if any leaf was ever made of them whose hint no invalidation has removed. **The caller
    /// then owes a flush of L2's tag**, whatever leaf is there now: a fault may have replaced a leaf that a TLB still holds
    /// by that of another L1 frame.
    ///
    /// Call it after the invalidation is announced: a fault whose hint comes too late then begins again.
    pub(crate) fn reach<M: TableMemory>(
        &self,
        memory: &M,
        active: &Active,
        (left, all): (&mut Stretches, Span<Gfn>),
        how: Reach,
        pages: &mut SplitPages<'_>,
    ) -> bool {
        let (mut any, taking) = (false, self.drops.taking(active));
        // The places of a frame are mostly in one shadow: one counted walk for all that follow each other.
        let mut visited: Option<(usize, &Shadow<F>, CountedWalk<'_>)> = None;
        // After the fence in `Ticket::announce`, which pairs with the one in `stands`.
        self.reverse.stretch(memory, left, |at, page, part| {
            any = true;
            let hint = at.hint();
            if visited.as_ref().is_none_or(|(index, ..)| *index != hint.shadow) {
                // The walk before ends first.
                visited = None;
                visited = self.visit(hint.shadow).map(|(shadow, inside)| (hint.shadow, shadow, inside));
            }
            let Some((_, shadow, inside)) = &visited else { return 1 };
            let g2s = (g2s_of(page, hint.g2, part), g2s_of(page, hint.g2, all));
            self.reach_in(memory, (shadow, inside), &taking, (g2s, how), pages)
        });
        any
    }

    /// Like [`reach`](Self::reach), for all of `g1s`: one page, or frames that a thread in no section visits.
    pub(crate) fn reach_whole<M: TableMemory>(
        &self,
        memory: &M,
        active: &Active,
        g1s: Span<Gfn>,
        how: Reach,
        pages: &mut SplitPages<'_>,
    ) -> bool {
        let (mut any, mut left) = (false, Stretches::new(g1s));
        while !left.is_over() {
            any |= self.reach(memory, active, (&mut left, g1s), how, pages);
        }
        any
    }
}

/// Returns the frames of L2 made of `g1s`, by a hint of `page` that names `g2`.
pub(super) fn g2s_of(page: Span<Gfn>, g2: Gfn, g1s: Span<Gfn>) -> Span<Gfn> {
    let part = g1s.clamp(&page);
    Span::sized(g2 + (part.start.0 - page.start.0), part.len())
}
