//! Changes of slots; pages that are replaced one by one.

use super::terms::{
    ChangePte, Clear, Leaked, Park, Protect, Track, Unmap, commit, gfns, hvas, read, slow, write,
};
use crate::scenario::Scenario;
use crate::state::{NONE, Op, Pc, Range, Span, Word};

/// Changes of slots, and MMIO.
pub(super) fn slots() -> Vec<Scenario> {
    vec![
        Scenario::new(
            "slot 0..2 to other pages | clear of the old ones | slow fault",
            &[&[commit(0, 2, 2)], &[hvas(Clear, 0, 1)], &[slow(0)]],
        )
        .small(true, true),
        Scenario::new(
            "slot to other pages | clear of the old | clear of the new, fault | slow fault",
            &[&[commit(0, 2, 2)], &[hvas(Clear, 0, 1)], &[hvas(Clear, 2, 3), read(0)], &[slow(0)]],
        )
        .table(0, [Word::Hole(0); 2])
        .from(1, Pc::EditEntry)
        .from(0, Pc::Publish),
        // Frame 0 has shared memory in page 0, and private memory in page 2 or 3.
        Scenario::new(
            "private: 0 becomes private, and shared again | clear of the shared page | slow fault",
            &[&[commit(0, 1, 2), commit(0, 1, 0)], &[hvas(Clear, 0, 1)], &[slow(0)]],
        )
        .empty(),
        Scenario::new(
            "private: 0 of a large leaf becomes private | clear of the private page | fault, slow fault",
            &[&[commit(0, 1, 3)], &[hvas(Clear, 3, 4)], &[read(0), slow(0)]],
        )
        .large(true),
        Scenario::new(
            "slot deleted, made again | faults",
            &[&[commit(0, 2, NONE), commit(0, 2, 0)], &[read(0), read(0)], &[slow(0)]],
        )
        .small(true, true),
        Scenario::new(
            "slot made | faults on MMIO | clear",
            &[&[commit(0, 1, 0)], &[read(0), read(0)], &[gfns(Clear, 0, 1)]],
        )
        .empty()
        .no_slot(0..1),
        Scenario::new(
            "slot 0..1 grows to 0..2 | faults on MMIO, in no table",
            &[&[commit(0, 2, 0)], &[read(1), read(1)]],
        )
        .no_slot(1..2),
        Scenario::new(
            "slot made | faults on MMIO, in no table | clear",
            &[&[commit(0, 1, 0)], &[read(0), read(0)], &[gfns(Clear, 0, 2)]],
        )
        .no_slot(0..1),
        Scenario::new(
            "slot made | fault on MMIO, in no table | fault on its neighbour",
            &[&[commit(0, 1, 0)], &[read(0), read(0)], &[read(1)]],
        )
        .no_slot(0..1),
        Scenario::new(
            "slot made in a region without any | faults on MMIO",
            &[&[commit(1, 2, 0)], &[read(0), read(1)], &[read(1)]],
        )
        .no_slot(0..2),
        Scenario::new(
            "slot made, deleted | faults on MMIO",
            &[&[commit(0, 1, 0), commit(0, 1, NONE)], &[read(0), read(0), read(0)]],
        )
        .empty()
        .no_slot(0..1),
        Scenario::new(
            "slot to other pages, clear of the new, fault | clear of the old that yields | slow fault",
            &[
                &[commit(0, 2, 2), hvas(Clear, 2, 4), read(1)],
                &[Op::Invalidate { range: Range::Hvas(Span::new(0, 2)), why: Clear, yields: true }],
                &[slow(1)],
            ],
        )
        .table(0, [Word::Hole(0); 2])
        .from(1, Pc::Rest),
    ]
}

/// Pages that are replaced one by one, in an announced range.
pub(super) fn told() -> Vec<Scenario> {
    let (one, two) = (hvas(ChangePte, 0, 1), hvas(ChangePte, 0, 2));
    vec![
        Scenario::new("change 0 | slow fault on 0 | fault on 1", &[&[one], &[slow(0)], &[read(1)]])
            .small(false, false),
        Scenario::new("change 0..2 | slow fault on 0, in an empty table", &[&[two], &[slow(0)], &[read(1)]])
            .empty()
            .read_only(),
        Scenario::new("change 0 | write to 0 | fault on 0", &[&[one], &[write(0)], &[read(0)]])
            .small(false, false),
        Scenario::new("change 0..2 | change 0 | slow fault on 0", &[&[two], &[one], &[slow(0)]])
            .small(false, false),
        Scenario::new("change 0 | clear 0..1 | slow fault on 0", &[&[one], &[gfns(Clear, 0, 1)], &[slow(0)]])
            .small(false, false),
        Scenario::new("change 0 | unmap 0..2 | write to 0", &[&[one], &[gfns(Unmap, 0, 2)], &[write(0)]])
            .small(false, false),
        Scenario::new("change 0 | protect 0..2 | write to 0", &[&[one], &[gfns(Protect, 0, 2)], &[write(0)]])
            .small(false, false),
        Scenario::new("change 0 of a large leaf | write to 1", &[&[one], &[write(1)], &[slow(0)]])
            .large(false),
    ]
}

/// Answers of a host that sleeps, about pages that are mapped to read.
pub(super) fn answers() -> Vec<Scenario> {
    let slow = Op::Access { gfn: 0, write: true, sleeps: true, large: true };
    let (one, two) = (hvas(Protect, 0, 1), hvas(Protect, 0, 2));
    vec![
        Scenario::new("answers: protect 0 | slow store", &[&[one], &[slow]]).small(false, false),
        Scenario::new(
            "answers: protect 0..2 by frames | slow store | slow store",
            &[&[gfns(Protect, 0, 2)], &[slow], &[slow]],
        )
        .small(false, false),
        Scenario::new(
            "answers: protect 0 | clear 0..1 | slow store",
            &[&[one], &[gfns(Clear, 0, 1)], &[slow]],
        )
        .small(false, false),
        Scenario::new("answers: protect 0..2 | slow store to a large leaf", &[&[two], &[slow]]).large(false),
        Scenario::new(
            "answers: protect 1 | slow store to 0 of a large leaf",
            &[&[hvas(Protect, 1, 2)], &[slow]],
        )
        .large(false),
        Scenario::new(
            "answers: change 0 | protect 0 | slow store",
            &[&[hvas(ChangePte, 0, 1)], &[one], &[slow]],
        )
        .small(false, false),
        Scenario::new("answers: slot to other pages | slow store", &[&[commit(0, 2, 2)], &[slow]])
            .small(false, false),
        Scenario::new("answers: track 0 | slow store", &[&[gfns(Track, 0, 1)], &[slow]]).small(false, false),
    ]
}

/// Debts that are leaked.
pub(super) fn leaked() -> Vec<Scenario> {
    let (one, two) = (gfns(Leaked, 0, 1), gfns(Leaked, 0, 2));
    vec![
        Scenario::new("leak 0..2 | slow fault on 0 | fault on 1", &[&[two], &[slow(0)], &[read(1)]])
            .small(false, false),
        Scenario::new("leak 0..2 | leak 0 | slow fault on 0", &[&[two], &[one], &[slow(0)]])
            .small(false, false),
        Scenario::new("leak 0 | clear 0..1 | slow fault on 0", &[&[one], &[gfns(Clear, 0, 1)], &[slow(0)]])
            .small(false, false),
        Scenario::new("leak 0..2 | unmap 0..2 | fault on 0", &[&[two], &[gfns(Unmap, 0, 2)], &[read(0)]])
            .small(false, false),
        Scenario::new("leak 0 of a large leaf | fault on 1", &[&[one], &[read(1)], &[slow(0)]]).large(false),
    ]
}

/// Pages that are copied beside a change that withdraws them.
pub(super) fn copies() -> Vec<Scenario> {
    let (parks, copies) = (hvas(Park, 0, 1), Op::Copy { page: 0 });
    let parks_both = hvas(Park, 0, 2);
    vec![
        Scenario::new("park 0 | copy 0", &[&[parks], &[copies]]).small(true, true),
        Scenario::new("park 0..2 | copy 0 | copy 1", &[&[parks_both], &[copies], &[Op::Copy { page: 1 }]])
            .small(true, true),
        Scenario::new("park 0..2 | park 0 | copy 0", &[&[parks_both], &[parks], &[copies]]).small(true, true),
        Scenario::new("park 0 | copy 0 | clear 1..2", &[&[parks], &[copies], &[hvas(Clear, 1, 2)]])
            .small(true, true),
        Scenario::new("park 0 of a large leaf | copy 0", &[&[parks], &[copies]]).large(true),
        Scenario::new("kicks: park 0 | copy 0", &[&[parks], &[copies]]).small(true, true).kicks(1),
    ]
}

/// Versions of the slots in reused cells.
pub(super) fn versions() -> Vec<Scenario> {
    vec![
        Scenario::new(
            "cells: slots made, made | faults",
            &[&[commit(0, 1, 0), commit(1, 2, 1)], &[read(0)], &[slow(1)]],
        )
        .empty()
        .no_slot(0..2)
        .cells(),
        Scenario::new(
            "cells: slot to other pages | clear of the old | slow fault",
            &[&[commit(0, 2, 2)], &[hvas(Clear, 0, 1)], &[slow(0)]],
        )
        .small(true, true)
        .cells(),
        Scenario::new(
            "cells: slot withdrawn, made again | clear by host address | fault",
            &[&[commit(0, 1, NONE), commit(0, 1, 0)], &[hvas(Clear, 0, 1)], &[slow(0)]],
        )
        .small(true, true)
        .cells(),
        Scenario::new(
            "cells: slot withdrawn | another one moved | fault",
            &[&[commit(0, 1, NONE)], &[commit(1, 2, 2)], &[read(1)]],
        )
        .small(true, true)
        .cells(),
        Scenario::new(
            "slot withdrawn | clear by host address | slow fault",
            &[&[commit(0, 1, NONE)], &[hvas(Clear, 0, 1)], &[slow(0)]],
        )
        .small(true, true),
    ]
}
