//! Scenarios that take minutes: two vCPUs, three levels, four threads, three concurrent edits.

use super::terms::{Clear, Protect, Unmap, gfns, hvas, large, read, slow, write};
use crate::scenario::{Family, Scenario};
use crate::state::Op;
use crate::state::Track::{DirtyBits, Writes};

const FLIP: Op = Op::ZapAll;
const RECOVER: Op = Op::Recover { gfn: 0 };
const HARVEST: Op = Op::Harvest;

/// The scenarios of `families` with two vCPUs, except those that have them already, or become too large.
pub(super) fn two_vcpus(families: &[Family]) -> Vec<Scenario> {
    let families = families.iter().filter(|family| family.name != "kicks");
    families
        .flat_map(|family| &family.scenarios)
        .map(|scenario| scenario.clone().two_vcpus().called("two vCPUs: "))
        .collect()
}

/// An edit, a change of the tables' shape, and a fault.
pub(super) fn three_edits() -> Vec<Scenario> {
    let edits = [
        ("clear 0..1", gfns(Clear, 0, 1)),
        ("clear 1..2 by host address", hvas(Clear, 1, 2)),
        ("unmap 0..2", gfns(Unmap, 0, 2)),
        ("protect 0..2", hvas(Protect, 0, 2)),
    ];
    let shapes = [("recover", RECOVER), ("split", Op::Split { gfn: 0 }), ("zap all", FLIP)];
    let faults = [("slow load", slow(0)), ("large fault", large(1, true)), ("store", write(0))];
    let initial_states: [super::terms::Start; 2] =
        [("small leaves", |s| s.small(true, true)), ("a large leaf", |s| s.large(true))];
    let mut all = Vec::new();
    for (state_name, shared) in initial_states {
        for (edit_name, edit) in edits {
            for (shape_name, shape) in shapes {
                for (fault_name, fault) in faults {
                    let name = format!("{state_name}: {edit_name} | {shape_name} | {fault_name}");
                    let programs: [&[Op]; 3] = [&[edit], &[shape], &[fault]];
                    all.push(shared(Scenario::new(&name, &programs)));
                    all.push(shared(Scenario::new(&name, &programs).deep().called("three levels: ")));
                }
            }
        }
    }
    all
}

/// Invalidations by host address, as a host's notifiers make them.
pub(super) fn four_threads() -> Vec<Scenario> {
    let four: [(&str, [&[Op]; 4]); 3] = [
        (
            "unmap | clear 0..1 | clear 0..2 | slow load",
            [&[hvas(Unmap, 0, 2)], &[hvas(Clear, 0, 1)], &[hvas(Clear, 0, 2)], &[slow(0)]],
        ),
        (
            "recover | clear 0..1 | zap all | slow load",
            [&[RECOVER], &[hvas(Clear, 0, 1)], &[FLIP], &[slow(0)]],
        ),
        (
            "recover | clear 0..1 | unmap | slow load",
            [&[RECOVER], &[hvas(Clear, 0, 1)], &[hvas(Unmap, 0, 2)], &[slow(0)]],
        ),
    ];
    let scenario = |(name, programs): (&str, [&[Op]; 4])| {
        Scenario::new(name, &programs).small(true, true).called("four threads: ")
    };
    four.map(scenario).into()
}

/// Further scenarios of dirty logs and kicks.
pub(super) fn more() -> Vec<Scenario> {
    let by = |track, name: &str, programs: &[&[Op]]| Scenario::new(name, programs).tracks(track);
    vec![
        by(
            DirtyBits,
            "by D: harvest twice | unmap 0..2 | slow load",
            &[&[HARVEST; 2], &[gfns(Unmap, 0, 2)], &[slow(0)]],
        )
        .small(true, true)
        .logs(),
        by(
            DirtyBits,
            "by D: harvest | harvest | clear 0..2",
            &[&[HARVEST], &[HARVEST], &[gfns(Clear, 0, 2)]],
        )
        .small(true, true)
        .logs(),
        by(DirtyBits, "by D: harvest | zap all | store", &[&[HARVEST], &[FLIP], &[write(0)]])
            .small(true, true)
            .logs(),
        by(
            DirtyBits,
            "by D: harvest | protect, store | clear",
            &[&[HARVEST], &[hvas(Protect, 0, 1), write(0)], &[gfns(Clear, 0, 1)]],
        )
        .small(true, true)
        .logs(),
        by(
            Writes,
            "by W: harvest | harvest | stores | clear",
            &[&[HARVEST; 2], &[HARVEST], &[write(0), write(1)], &[gfns(Clear, 0, 1)]],
        )
        .small(true, true)
        .logs(),
        by(
            Writes,
            "by W: harvest | unmap, slow load | stores",
            &[&[HARVEST; 2], &[gfns(Unmap, 0, 2), slow(1)], &[write(0), write(1)]],
        )
        .small(true, true)
        .logs(),
        Scenario::new(
            "kicks: two vCPUs, clear 0..1 | clear 1..2",
            &[&[gfns(Clear, 0, 1)], &[gfns(Clear, 1, 2)]],
        )
        .small(true, true)
        .two_vcpus()
        .kicks(1),
        Scenario::new("kicks: zap all | clear | fault", &[&[FLIP], &[gfns(Clear, 0, 1)], &[read(0)]])
            .small(true, true)
            .kicks(0),
        Scenario::new(
            "kicks: unmap | clear | slow fault",
            &[&[gfns(Unmap, 0, 2)], &[gfns(Clear, 0, 1)], &[slow(0)]],
        )
        .small(true, true)
        .kicks(0),
        Scenario::new("kicks: recover | zap all", &[&[RECOVER], &[FLIP]]).small(true, true).kicks(2),
    ]
}
