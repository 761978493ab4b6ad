//! A look for newer invalidations after each pass over a range. Models `active::follow`.

use crate::bug::Bug;
use crate::scenario::Scenario;
use crate::state::{State, WIDE, bits};

/// The next step of an invalidation after a pass over its range.
pub(crate) enum Follows {
    /// Nothing: it can hide no newer invalidation.
    No,
    /// It takes a new number and goes over its range once more.
    Repeat,
    /// It becomes wide.
    Widen,
}

impl Scenario {
    /// `Ticket::is_followed`, at the end of each pass: returns whether the walk is repeated under a new number. After the
    /// second pass the invalidation becomes wide instead.
    pub(crate) fn follows(&self, s: &mut State, i: usize) -> Follows {
        let lines = s.shared.slots[i].lines & !WIDE;
        let took = std::mem::take(&mut s.threads[i].change.took);
        let newer = |line: u8| s.shared.lines[line as usize].newest > s.threads[i].change.number;
        let wide = s.shared.slots[i].lines & WIDE != 0;
        if wide || !took || !bits(lines).any(newer) || self.bug == Some(Bug::NewerHidden) {
            return Follows::No;
        }
        if s.threads[i].change.again {
            return if self.bug == Some(Bug::FollowedOnce) { Follows::No } else { Follows::Widen };
        }
        if self.bug != Some(Bug::FollowedUnnumbered) {
            let number = s.next_number();
            (s.shared.slots[i].last, s.threads[i].change.number) = (number, number);
        }
        s.threads[i].change.again = true;
        Follows::Repeat
    }

    /// A short invalidation of another page of region 0, by a thread that is not in the program, begins and ends.
    pub(crate) fn passes_by(s: &mut State) {
        s.shared.shorts -= 1;
        s.shared.lines[0].newest = s.next_number();
    }
}
