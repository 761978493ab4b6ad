//! Injected failures, of memory and of races.
//!
//! Where memory can run out, or a compare-and-swap can fail, the code asks `injected!(Alloc)` or `injected!(Cas)`.
//! Outside tests that is the constant `false`. A test counts how often an operation passes such places. Then it lets
//! each of them fail in turn ([`nth`]), or many at once ([`every`]). Afterwards the VM must work, or must have returned
//! an error, and nothing may be lost.
//!
//! `tests/inject` injects the failures that need no hook with real threads: a long grace period, a vCPU that does not
//! answer, a host that blocks, refuses or panics.

use core::cell::Cell;

/// A kind of place that can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// An allocation whose caller can continue without it.
    Alloc,
    /// A compare-and-swap of a word that other threads write, such as an entry that is not frozen. The caller retries
    /// it, or gives up, whatever it found.
    Cas,
}

/// The value of every entry of a collected table page, under an explorer: the newest possible hole, which no fault
/// fills. A walk that loads it has strayed into a page that is in no table.
#[cfg(all(seeded, virtual_time))]
pub const GIVEN_BACK: crate::table::Word = crate::table::Word::hole(crate::table::Version::LAST);

/// Which of the passed places fail.
#[derive(Clone, Copy)]
enum Which {
    None,
    /// The one with this number, counted from 0.
    Nth(u64),
    /// Every place whose number is one less than a multiple of this.
    Every(u64),
}

std::thread_local! {
    static PLAN: Cell<Option<(Point, Which, u64)>> = const { Cell::new(None) };
}

/// Whether the current place fails.
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

/// Runs `work` without a failure, and counts the places that it passes.
pub fn count<R>(point: Point, work: impl FnOnce() -> R) -> (R, u64) {
    planned(point, Which::None, work)
}

/// Runs `work` on this thread; the place with number `nth`, counted from 0, fails.
pub fn nth<R>(point: Point, nth: u64, work: impl FnOnce() -> R) -> R {
    planned(point, Which::Nth(nth), work).0
}

/// Runs `work` on this thread; the last of each `many` places fails. Returns the number of places passed.
pub fn every<R>(point: Point, many: u64, work: impl FnOnce() -> R) -> (R, u64) {
    planned(point, Which::Every(many), work)
}

fn planned<R>(point: Point, which: Which, work: impl FnOnce() -> R) -> (R, u64) {
    /// Clears the plan, however `work` ends.
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
    fn only_planned_places_fail() {
        let strikes = || (0..6).map(|_| strikes(Point::Cas)).collect::<std::vec::Vec<_>>();
        assert_eq!(count(Point::Cas, strikes), (vec![false; 6], 6));
        assert_eq!(nth(Point::Cas, 1, strikes), [false, true, false, false, false, false]);
        assert_eq!(every(Point::Cas, 2, strikes).0, [false, true, false, true, false, true]);
        assert_eq!(every(Point::Alloc, 1, strikes), (vec![false; 6], 0), "another point");
        assert_eq!(strikes(), [false; 6], "it is over");
    }
}
