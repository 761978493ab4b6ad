//! The series' "move active" beside ours: microseconds of two moves, there and back, under a guest with one vCPU.

use crate::scenarios::memslot::moving_slot::{MOVE, MOVE_FEW};
use crate::scenarios::prelude::*;

use slat_series::scalable_memslots;

pub fn against(points: &[Point]) -> Vec<Against> {
    let of = |name| figure(points, 1, NONE, name);
    let Some((most, few)) = of(MOVE).zip(of(MOVE_FEW)) else { return Vec::new() };
    let rows = scalable_memslots::rows("move-active");
    let (Some((_, published_few)), Some((_, published_most))) = (rows.first(), rows.last()) else {
        return Vec::new();
    };
    let grows = most / few;
    let figures = |nth: usize| (published_most[nth] / published_few[nth], grows);
    let sides = || ratio("a move with 32,764 slots", "one with 10 slots");
    vec![
        Against::not(
            "a move with 32,764 slots over one with 10, after",
            figures(1),
            sides(),
            "agrees where it does not grow, to 10%: each of ten slots is long, and takes longer to unmap; of the \
             search virtual time sees nothing, of the copies some",
        )
        .unless(grows <= 1.1),
        Against::not(
            "a move with 32,764 slots over one with 10, before",
            figures(0),
            sides(),
            "an array of all slots was copied for each move, which this engine does not: nothing here is that array; \
             slat bench memslot-perf measures both",
        ),
        Against::not(
            "a move there and back, 32,764 slots, after",
            (published_most[1] * 1e6, 2.0 * most / 1e3),
            "us",
            "the series' moves are system calls, each of which waits twice for all readers in a kernel; ours are calls \
             in one process, and wait for a membarrier at most",
        ),
    ]
}
