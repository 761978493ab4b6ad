//! Which places fail, by a plan of the thread.

use super::Point;
use core::cell::Cell;

/// Which of the passed places fail.
#[derive(Clone, Copy)]
enum Which {
    None,
    /// The place with this number, counted from 0.
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
