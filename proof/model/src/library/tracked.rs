//! Begin of write tracking.

use super::terms::{Clear, Protect, Track, gfns, large, read, slow, write};
use crate::scenario::Scenario;
use crate::state::Op;

/// Tracking begins beside faults and changes of tables.
pub(super) fn tracked() -> Vec<Scenario> {
    let recover = Op::Recover { gfn: 0 };
    vec![
        Scenario::new("tracked: upgrade | track 0..1", &[&[write(0)], &[gfns(Track, 0, 1)]])
            .small(false, false),
        Scenario::new(
            "tracked: permission back | track 0..1",
            &[&[write(0), write(0)], &[gfns(Track, 0, 1)]],
        )
        .small(false, true),
        Scenario::new(
            "tracked: store to an empty table | track 0..1 | load",
            &[&[write(0), write(1)], &[gfns(Track, 0, 1)], &[slow(0)]],
        )
        .empty(),
        Scenario::new(
            "tracked: store | track 0..1 | clear 0..2",
            &[&[write(0), read(0)], &[gfns(Track, 0, 1)], &[gfns(Clear, 0, 2)]],
        )
        .small(true, true),
        Scenario::new(
            "tracked: upgrade | track 0..1 | protect 0..2",
            &[&[write(0)], &[gfns(Track, 0, 1)], &[gfns(Protect, 0, 2)]],
        )
        .small(true, true),
        Scenario::new("tracked: recover | track 0..1", &[&[recover], &[gfns(Track, 0, 1)]]).small(true, true),
        Scenario::new(
            "tracked: large fault | track 0..1 | large fault",
            &[&[large(1, true)], &[gfns(Track, 0, 1)], &[large(0, false)]],
        ),
        Scenario::new(
            "tracked: split | track 0..1 | store to its neighbour",
            &[&[Op::Split { gfn: 0 }], &[gfns(Track, 0, 1)], &[write(1)]],
        )
        .large(true),
    ]
}
