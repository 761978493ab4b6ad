//! Failures made on purpose: of memory, and of races.
//!
//! Memory runs out where it is not expected, and a compare-and-swap is lost at the worst moment. Where either can happen
//! the code asks `injected!(Alloc)` or `injected!(Cas)`: `false`, and nothing else, in every build but a test's. A test
//! counts how often an operation passes such places, and then lets each of them fail in turn ([`nth`]), or many at once
//! ([`every`]). Afterwards the VM has gone on, or said clearly why not, and nothing is lost.
//!
//! What needs no hook is made with real threads, by `tests/inject`: a grace period that takes long, a vCPU that does not
//! answer, a host that blocks, refuses or panics.

use core::cell::Cell;

/// Where something can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// Memory is asked for, by one who can do without.
    Alloc,
    /// A word that others write too is compared and exchanged: an entry that is not frozen. A lost race is made
    /// again, or given up, whatever was found.
    Cas,
}

/// In every entry of a table page that was taken apart, where an explorer looks on: the newest hole that there can be, which
/// no fault fills. A walk that loads it has strayed into a page that is in no table.
#[cfg(all(seeded, virtual_time))]
pub const GIVEN_BACK: crate::table::Word = crate::table::Word::hole(crate::table::Version::LAST);

/// Which of those that are passed fail.
#[derive(Clone, Copy)]
enum Which {
    None,
    /// This one, counted from 0.
    Nth(u64),
    /// The last of each so many.
    Every(u64),
}

std::thread_local! {
    static PLAN: Cell<Option<(Point, Which, u64)>> = const { Cell::new(None) };
}

/// Whether it fails here, now.
pub fn strikes(point: Point) -> bool {
    let Some((planned, which, passed)) = PLAN.get().filter(|(planned, ..)| *planned == point) else {
        return false;
    };
    PLAN.set(Some((planned, which, passed + 1)));
    match which {
        Which::None => false,
        Which::Nth(nth) => passed == nth,
        Which::Every(many) => passed % many == many - 1,
    }
}

/// Runs `work`, in which nothing fails, and counts how often it could.
pub fn count<R>(point: Point, work: impl FnOnce() -> R) -> (R, u64) {
    planned(point, Which::None, work)
}

/// Runs `work` on this thread with the failure of number `nth`, counted from 0.
pub fn nth<R>(point: Point, nth: u64, work: impl FnOnce() -> R) -> R {
    planned(point, Which::Nth(nth), work).0
}

/// Runs `work` on this thread with the last of each `many` failing; and how often it could.
pub fn every<R>(point: Point, many: u64, work: impl FnOnce() -> R) -> (R, u64) {
    planned(point, Which::Every(many), work)
}

fn planned<R>(point: Point, which: Which, work: impl FnOnce() -> R) -> (R, u64) {
    /// Undone however `work` ends.
    struct Undo;
    impl Drop for Undo {
        fn drop(&mut self) {
            PLAN.set(None);
        }
    }
    PLAN.set(Some((point, which, 0)));
    let _undo = Undo;
    let result = work();
    (result, PLAN.get().map_or(0, |(_, _, passed)| passed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_planned_fails_and_nothing_else() {
        let strikes = || (0..6).map(|_| strikes(Point::Cas)).collect::<std::vec::Vec<_>>();
        assert_eq!(count(Point::Cas, strikes), (vec![false; 6], 6));
        assert_eq!(nth(Point::Cas, 1, strikes), [false, true, false, false, false, false]);
        assert_eq!(every(Point::Cas, 2, strikes).0, [false, true, false, true, false, true]);
        assert_eq!(every(Point::Alloc, 1, strikes), (vec![false; 6], 0), "another point");
        assert_eq!(strikes(), [false; 6], "it is over");
    }
}
