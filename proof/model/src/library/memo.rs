//! vCPUs with a memo of their last fault.

use super::terms::{Clear, Unmap, commit, hvas, read};
use crate::scenario::Scenario;
use crate::state::{NONE, Op};

/// Faults that a memo shortens, beside changes that make the memo stale.
pub(super) fn memo() -> Vec<Scenario> {
    let (gone, moved) = (commit(1, 2, NONE), commit(0, 2, 2));
    vec![
        // Frames 0 and 1 are slots of their own, and share a table.
        Scenario::new("memo: slot 1 deleted | faults on 0, 1, 1", &[&[gone], &[read(0), read(1), read(1)]])
            .empty()
            .remembers(1),
        Scenario::new(
            "memo: slot 1 deleted, made again of another page | faults on 0, 1, 1",
            &[&[gone, commit(1, 2, 3)], &[read(0), read(1), read(1)]],
        )
        .empty()
        .remembers(1),
        Scenario::new(
            "memo: slot 1 deleted | clear of its page | faults on 0, 1, 1",
            &[&[gone], &[hvas(Clear, 1, 2)], &[read(0), read(1), read(1)]],
        )
        .empty()
        .remembers(1),
        Scenario::new(
            "memo: slot 0 to another page | faults on 0",
            &[&[commit(0, 1, 3)], &[read(0), read(0)]],
        )
        .empty()
        .remembers(1),
        // One slot has the whole table.
        Scenario::new(
            "memo: slot 0..2 to other pages | clear of the old | faults on 0, 1",
            &[&[moved], &[hvas(Clear, 0, 1)], &[read(0), read(1)]],
        )
        .empty()
        .remembers(2),
        Scenario::new(
            "memo: slot 0..2 to other pages | fault on 0 | faults on 0, 1",
            &[&[moved], &[read(0)], &[read(0), read(1)]],
        )
        .empty()
        .remembers(2),
        Scenario::new(
            "memo: clear 1..2 | clear 0..1 | faults on 0, 1",
            &[&[hvas(Clear, 1, 2)], &[hvas(Clear, 0, 1)], &[read(0), read(1), read(0)]],
        )
        .empty()
        .remembers(2),
        Scenario::new(
            "memo: unmap 0..2 | clear 1..2 | faults on 0, 1",
            &[&[hvas(Unmap, 0, 2)], &[hvas(Clear, 1, 2)], &[read(0), read(1)]],
        )
        .small(true, true)
        .remembers(2),
        Scenario::new("memo: zap all | faults on 0, 1", &[&[Op::ZapAll], &[read(0), read(1), read(0)]])
            .empty()
            .remembers(2),
        // One slot has both tables: of two regions.
        Scenario::new(
            "memo: clear 2..3 | clear 0..1 | faults on 0, 2, 0",
            &[&[hvas(Clear, 2, 3)], &[hvas(Clear, 0, 1)], &[read(0), read(2), read(0)]],
        )
        .empty()
        .remembers(4),
        Scenario::new(
            "memo: unmap 2..4 | zap all | faults on 0, 2",
            &[&[hvas(Unmap, 2, 4)], &[Op::ZapAll], &[read(0), read(2)]],
        )
        .small(true, true)
        .remembers(4),
        Scenario::new(
            "memo: clear 0..1 | faults on 0, 1 | faults on 1, 0",
            &[&[hvas(Clear, 0, 1)], &[read(0), read(1)], &[read(1), read(0)]],
        )
        .empty()
        .remembers(2),
    ]
}
