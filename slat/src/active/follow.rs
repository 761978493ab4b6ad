//! Rule 14: an invalidation that took something away hides no newer one. And: how a narrow invalidation becomes wide.
//!
//! An edit that puts a hole in place of a leaf, a frozen entry or a link may hide a newer invalidation m. If m has
//! passed the entry by, or has edited below the link, then m's number is not in the new hole. A fault that m's place
//! escapes, because it read the list before m was listed, could fill that hole. The fault finds this invalidation on
//! the list, so it can only do so after this one has ended.
//!
//! ```text
//! pass 1 took something? look.   a newer number on a line? pass 2, under a number newer than that one
//! pass 2 took something? look.   a newer number on a line? become wide
//! the end of a wide one          moves the epoch: each fault whose scan found it begins again
//! ```
//! **Bound.** There are at most two passes for this reason, however many invalidations follow. The first pass leaves a
//! hole, or a leaf that the reason allows, in each entry of the range. No fault fills those holes before the end. So a
//! second pass takes only entries that were frozen in between, by upgrades that had looked before the announcement. It
//! is rare that there is one, and rarer that another invalidation follows too. Only then do faults elsewhere make one
//! more attempt.
//!
//! The look is due after *each* pass, and asks what *that pass* took. A flush that was adopted does not count: it
//! changes no entry.
//!
//! A panic between the edits and the look leaves the question open. The invalidation then ends as a wide one.

use super::{Removed, Ticket};
use crate::addr::{Gfn, Span};
use core::mem::replace;

impl Ticket<'_> {
    /// Records that an edit put a hole in place of a leaf, a frozen entry or a link.
    #[inline]
    pub(crate) fn removes(&mut self) {
        self.removed = Removed::InPass;
    }

    /// Rule 14, after each pass, before the flush. Returns whether another pass is due; this has then taken a new
    /// number. After a pass that `repeated` the range, none is due: this becomes wide instead.
    pub(crate) fn must_repeat(&mut self, repeated: bool) -> bool {
        let removed = replace(&mut self.removed, Removed::Nothing) == Removed::InPass;
        if !(removed && self.is_followed()) {
            return false;
        }
        if repeated {
            self.go_wide();
        } else {
            self.take_number(0);
            self.removed = Removed::Earlier;
        }
        !repeated
    }

    /// Becomes wide if its edits were interrupted before the look that rule 14 demands.
    pub(super) fn hide_nothing(&mut self) {
        if self.removed != Removed::Nothing {
            self.go_wide();
        }
    }

    /// Whether a newer invalidation has been announced to one of its regions. The newer one may have passed a leaf that
    /// this one took later, and left no number there; or it left its number below a link that this one unhooked.
    ///
    /// A wide invalidation needs no look: it moves the epoch when it ends, and such a fault then starts over.
    pub(crate) fn is_followed(&self) -> bool {
        if self.wide {
            return false;
        }
        // The edits before the look; pairs with the fence in `announce`: either this invalidation sees the newer number,
        // or the newer one's walk sees the edits.
        fence!(follow.look);
        let hole = self.hole;
        self.regions.any(&self.active.lines, move |line| line.newest() > hole)
    }

    /// Rule 11: publishes the frames of a leaf that reaches out of the range, and takes a new number, before the leaf
    /// is zapped. It is as if this invalidation ended and a wider one began at once.
    ///
    /// It becomes wide. Its passes number only the holes of its range; a fault may link a table over the others, with
    /// the number of this moment, and a newer invalidation may have passed the leaf by.
    pub(crate) fn widen(&mut self, gfns: Span<Gfn>) {
        let published = super::span::<Gfn>(&self.claim.slot.gfns);
        if published.covers(&gfns) {
            return;
        }
        super::set(&self.claim.slot.gfns, published.hull(&gfns));
        self.publish_widely();
    }

    /// Whether it is listed on the epoch.
    #[inline]
    pub(crate) fn is_wide(&self) -> bool {
        self.wide
    }

    /// Lists it on the epoch from now on, under a new number.
    pub(crate) fn go_wide(&mut self) {
        if !self.wide {
            self.publish_widely();
        }
    }

    fn publish_widely(&mut self) {
        if !replace(&mut self.wide, true) {
            self.active.lines.epoch.list(self.claim.bit);
        }
        self.take_number(0);
        self.active.lines.epoch.move_on();
        // As in `announce`.
        fence!(upgrade.widen);
    }
}
