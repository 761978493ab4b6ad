//! Dirty logs: harvests beside stores, faults, and zaps.

use super::terms::{Clear, Protect, Unmap, commit, gfns, hvas, read, write};
use crate::scenario::Scenario;
use crate::state::Track::{DirtyBits, Writes};
use crate::state::{NONE, Op};

const HARVEST: Op = Op::Harvest;
const BEGIN: Op = Op::BeginLog;
/// The slot that logs moves away, and back.
const MOVES: Op = commit(0, 2, NONE);
const RETURNS: Op = commit(0, 2, 0);

/// A store whose fault asks a host that sleeps.
const fn slow_write(gfn: u8) -> Op {
    Op::Access { gfn, write: true, sleeps: true, large: false }
}

/// Logs by write protection.
pub(super) fn by_writes() -> Vec<Scenario> {
    let scenario = |name: &str, programs: &[&[Op]]| Scenario::new(name, programs).tracks(Writes);
    vec![
        scenario("by W: harvest twice | store, store", &[&[HARVEST, HARVEST], &[write(0), write(0)]])
            .small(false, true)
            .logs(),
        scenario("by W: harvest | harvest | store", &[&[HARVEST], &[HARVEST], &[write(0)]])
            .small(true, true)
            .logs(),
        scenario("by W: harvest twice | store to 0 | store to 1", &[&[HARVEST; 2], &[write(0)], &[write(1)]])
            .small(false, true)
            .logs(),
        scenario("by W: harvest | clear 0..1 | store", &[&[HARVEST], &[gfns(Clear, 0, 1)], &[write(0)]])
            .small(true, true)
            .logs(),
        scenario(
            "by W: harvest | clear 0..1, load | store",
            &[&[HARVEST], &[gfns(Clear, 0, 1), read(0)], &[write(0)]],
        )
        .small(false, true)
        .logs(),
        scenario(
            "by W: harvest | upgrade | protect 0..2",
            &[&[HARVEST], &[write(0)], &[hvas(Protect, 0, 2)]],
        )
        .small(false, false)
        .logs(),
        scenario(
            "by W: harvest | unmap 0..2, slow store",
            &[&[HARVEST; 2], &[gfns(Unmap, 0, 2), slow_write(0)]],
        )
        .small(true, true)
        .logs(),
        scenario("by W: harvest twice | stores to a large leaf", &[&[HARVEST; 2], &[write(0)], &[write(1)]])
            .armed_large()
            .logs(),
        scenario("by W: log begins, harvest | store", &[&[BEGIN, HARVEST], &[write(0)], &[write(1)]])
            .small(false, true),
        scenario(
            "by W: log begins | slow store | clear 0..1",
            &[&[BEGIN, HARVEST], &[slow_write(0)], &[gfns(Clear, 0, 1)]],
        )
        .small(true, true),
        scenario(
            "by W: log begins | store to an empty table",
            &[&[BEGIN, HARVEST], &[write(0)], &[slow_write(0)]],
        )
        .empty(),
        scenario("by W: log begins | store to a large leaf", &[&[BEGIN, HARVEST], &[write(0)]]).large(true),
        scenario("by W: slot moves | store", &[&[MOVES], &[write(0)]]).small(false, true).logs(),
        scenario(
            "by W: slot moves, returns | store | harvest",
            &[&[MOVES, RETURNS], &[write(0)], &[HARVEST]],
        )
        .small(false, true)
        .logs(),
        scenario("by W: slot moves, returns | upgrade", &[&[MOVES, RETURNS], &[write(0)]])
            .small(false, false)
            .logs(),
        scenario("by W: slot moves, returns | slow store", &[&[MOVES, RETURNS], &[slow_write(0)]])
            .empty()
            .logs(),
        scenario("by W: log begins, marked | harvest | store", &[&[BEGIN], &[HARVEST], &[write(0)]])
            .begins_set()
            .empty(),
    ]
}

/// Logs by the D bits that the hardware sets.
pub(super) fn by_bits() -> Vec<Scenario> {
    let scenario = |name: &str, programs: &[&[Op]]| Scenario::new(name, programs).tracks(DirtyBits);
    vec![
        scenario("by D: harvest | harvest", &[&[HARVEST], &[HARVEST]]).small(true, true).logs(),
        scenario("by D: harvest twice | clear 0..1", &[&[HARVEST, HARVEST], &[gfns(Clear, 0, 1)]])
            .small(true, true)
            .logs(),
        scenario("by D: harvest | unmap 0..2 | load", &[&[HARVEST], &[gfns(Unmap, 0, 2)], &[read(0)]])
            .small(true, true)
            .logs(),
        scenario("by D: harvest | unmap 0..4 in three levels", &[&[HARVEST], &[gfns(Unmap, 0, 4)]])
            .deep()
            .small(true, true)
            .logs(),
        scenario("by D: harvest | zap all", &[&[HARVEST], &[Op::ZapAll]]).small(true, true).logs(),
        scenario(
            "by D: harvest | upgrade of a dirty leaf | clear 0..1",
            &[&[HARVEST], &[write(0)], &[gfns(Clear, 0, 1)]],
        )
        .small(false, false)
        .dirty()
        .logs(),
        scenario(
            "by D: harvest | store to a large leaf | clear 0..1",
            &[&[HARVEST], &[write(0)], &[gfns(Clear, 0, 1)]],
        )
        .armed_large()
        .logs(),
        scenario(
            "by D: harvest | age | clear 0..1",
            &[&[HARVEST], &[Op::Age { gfn: 0 }], &[gfns(Clear, 0, 1)]],
        )
        .small(true, true)
        .logs(),
        scenario("by D: slot moves | clear 0..1", &[&[MOVES], &[gfns(Clear, 0, 1)]]).small(true, true).logs(),
        scenario(
            "by D: slot moves, returns | upgrade of a dirty leaf | harvest",
            &[&[MOVES, RETURNS], &[write(0)], &[HARVEST]],
        )
        .small(false, false)
        .dirty()
        .logs(),
        scenario("by D: log begins, harvest | clear 0..1", &[&[BEGIN, HARVEST], &[gfns(Clear, 0, 1)]])
            .small(true, true),
        scenario(
            "by D: log begins, harvest | slow store",
            &[&[BEGIN, HARVEST], &[slow_write(0)], &[write(1)]],
        )
        .small(true, true),
        scenario(
            "by D: log begins, marked | harvest | slow store",
            &[&[BEGIN], &[HARVEST], &[slow_write(0)]],
        )
        .begins_set()
        .small(true, true),
        scenario("by D: log begins, harvest | store to a large leaf", &[&[BEGIN, HARVEST], &[write(0)]])
            .large(true),
    ]
}
