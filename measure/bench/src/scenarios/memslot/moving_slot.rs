//! A memslot that moves while vCPUs use it: the figures.

use crate::scenarios::memslot::moving_fixture::Fixture;
pub use crate::scenarios::memslot::slot_layout::Layout;
use crate::scenarios::prelude::*;

/// Slots in use, as the series has them. The figures are of the most of them, unless they say otherwise.
pub const SLOTS: [u32; 3] = [32_764, 509, 10];

/// Figures that are set against the series'.
pub const MOVE: &str = "ns per move";
/// The same.
pub const MOVE_FEW: &str = "ns per move, 10 slots";

/// Runs the scenario once.
pub fn run_once(setting: &Setting<'_>) -> Result<Point, String> {
    let run = |slots| Fixture::new(setting, slots, false)?.run(setting);
    let (most, some, few) = (run(SLOTS[0])?, run(SLOTS[1])?, run(SLOTS[2])?);
    let per_move = |count: u64| count as f64 / most.moves as f64;
    let figures = vec![
        Figure::new(MOVE, most.moved_ns[0], "ns"),
        Figure::new("ns per move of the slot beside", most.moved_ns[1], "ns"),
        Figure::new("ns per move, 509 slots", some.moved_ns[0], "ns"),
        Figure::new(MOVE_FEW, few.moved_ns[0], "ns"),
        Figure::new("ns per access", most.access_ns, "ns"),
        Figure::new("kicks per move", per_move(most.stats.kicks), "kicks"),
        Figure::new("retries per move", per_move(most.retries), "retries"),
        Figure::new("exits for want of memory per move", per_move(most.seen.absent), "exits"),
    ];
    Ok(Point {
        operations: most.moves,
        flushes: most.flushes,
        checks: [most.checks, some.checks, few.checks].concat(),
        ..Point::of(setting, figures, most.stats)
    })
}
