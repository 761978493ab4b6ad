//! Large leaves, splits, recoveries, new roots; Dirty through all of these.

use super::terms::{Clear, Protect, Unmap, gfns, large, read, slow, write};
use crate::scenario::Scenario;
use crate::state::{Op, Word};

/// Large leaves, splits, recoveries, new roots.
pub(super) fn shapes() -> Vec<Scenario> {
    let split = Op::Split { gfn: 0 };
    let recover = Op::Recover { gfn: 0 };
    let flip = Op::ZapAll;
    vec![
        Scenario::new(
            "large fault | clear 0..1 | large fault",
            &[&[large(0, true)], &[gfns(Clear, 0, 1)], &[large(1, false)]],
        ),
        Scenario::new(
            "large fault | clear 0..1, clear 1..2",
            &[&[large(0, true)], &[gfns(Clear, 0, 1), gfns(Clear, 1, 2)]],
        ),
        Scenario::new("large fault | clear 0..2 twice", &[&[large(1, true)], &[gfns(Clear, 0, 2); 2]]),
        Scenario::new("split | clear 0..1 | slow fault", &[&[split], &[gfns(Clear, 0, 1)], &[slow(0)]])
            .large(true)
            .pageless(),
        Scenario::new(
            "split | clear 0..2 | unmap 0..2",
            &[&[split], &[gfns(Clear, 0, 2)], &[gfns(Unmap, 0, 2)]],
        )
        .large(true),
        Scenario::new("split | split | protect", &[&[split], &[split], &[gfns(Protect, 0, 2)]]).large(true),
        Scenario::new("split, recover | clear 0..1", &[&[split, recover], &[gfns(Clear, 0, 1)]]).large(true),
        Scenario::new("recover | clear 0..1 | slow fault", &[&[recover], &[gfns(Clear, 0, 1)], &[slow(0)]])
            .small(true, true),
        Scenario::new("recover | clear 0..2 | slow fault", &[&[recover], &[gfns(Clear, 0, 2)], &[slow(1)]])
            .small(true, true),
        Scenario::new("recover | unmap 0..2 | fault", &[&[recover], &[gfns(Unmap, 0, 2)], &[read(0)]])
            .small(true, true),
        Scenario::new("recover | recover | clear 1..2", &[&[recover], &[recover], &[gfns(Clear, 1, 2)]])
            .small(true, true),
        Scenario::new("recover | protect | write", &[&[recover], &[gfns(Protect, 0, 2)], &[write(0)]])
            .small(false, true),
        Scenario::new("recover | upgrade | protect", &[&[recover], &[write(0)], &[gfns(Protect, 0, 1)]])
            .small(false, false),
        Scenario::new(
            "clear 0..1 | clear 1..2, recover | slow fault on 1",
            &[&[gfns(Clear, 0, 1)], &[gfns(Clear, 1, 2), recover], &[slow(1)]],
        )
        .small(true, true),
        Scenario::new(
            "recover | clear 0..2, recover | slow fault",
            &[&[recover], &[gfns(Clear, 0, 2), recover], &[slow(0)]],
        )
        .small(true, true),
        Scenario::new(
            "recover | fault, fault | clear 0..2",
            &[&[recover], &[slow(0), read(1)], &[gfns(Clear, 0, 2)]],
        )
        .table(0, [Word::Hole(0); 2]),
        Scenario::new("zap all | clear 0..1 | slow fault", &[&[flip], &[gfns(Clear, 0, 1)], &[slow(0)]])
            .small(true, true),
        Scenario::new("zap all | unmap 0..2 | fault", &[&[flip], &[gfns(Unmap, 0, 2)], &[read(0)]])
            .small(true, true),
        Scenario::new("zap all | recover | clear 0..1", &[&[flip], &[recover], &[gfns(Clear, 0, 1)]])
            .small(true, true),
        Scenario::new("zap all | zap all | clear 0..1", &[&[flip], &[flip], &[gfns(Clear, 0, 1)]])
            .small(true, true),
        Scenario::new(
            "three levels: unmap 0..4 | clear 0..1 | slow fault",
            &[&[gfns(Unmap, 0, 4)], &[gfns(Clear, 0, 1)], &[slow(0)]],
        )
        .deep()
        .small(true, true),
        Scenario::new(
            "three levels: unmap 0..4 | recover | clear 0..1",
            &[&[gfns(Unmap, 0, 4)], &[recover], &[gfns(Clear, 0, 1)]],
        )
        .deep()
        .small(true, true),
        Scenario::new(
            "upgrade | clear, fault | protect",
            &[&[write(0)], &[gfns(Clear, 0, 1), read(0)], &[gfns(Protect, 0, 1)]],
        )
        .small(false, false),
        Scenario::new(
            "upgrade of a large leaf | protect 0..1 | clear 1..2",
            &[&[write(0)], &[gfns(Protect, 0, 1)], &[gfns(Clear, 1, 2)]],
        )
        .large(false),
    ]
}

/// Large leaves of which a part changes.
pub(super) fn parts() -> Vec<Scenario> {
    let recover = Op::Recover { gfn: 0 };
    vec![
        Scenario::new(
            "large fault | clear 0..1, clear 1..2, no page at hand",
            &[&[large(0, true)], &[gfns(Clear, 0, 1), gfns(Clear, 1, 2)]],
        )
        .pageless(),
        Scenario::new(
            "clear 0..1 of a large leaf | clear 1..2 | slow fault",
            &[&[gfns(Clear, 0, 1)], &[gfns(Clear, 1, 2)], &[slow(1)]],
        )
        .large(true),
        Scenario::new(
            "protect 0..1 of a large leaf | clear 0..2 | write",
            &[&[gfns(Protect, 0, 1)], &[gfns(Clear, 0, 2)], &[write(0)]],
        )
        .large(true),
        Scenario::new(
            "unmap 0..1 of a large leaf | recover | slow fault",
            &[&[gfns(Unmap, 0, 1)], &[recover], &[slow(0)]],
        )
        .large(true),
    ]
}

/// Guests store, Dirty is watched.
pub(super) fn dirty() -> Vec<Scenario> {
    let recover = Op::Recover { gfn: 0 };
    vec![
        Scenario::new("dirty: unmap 0..2 | write", &[&[gfns(Unmap, 0, 2)], &[write(0)]])
            .small(true, true)
            .stores(),
        Scenario::new("dirty: split | clear 0..1", &[&[Op::Split { gfn: 0 }], &[gfns(Clear, 0, 1)]])
            .large(true)
            .stores(),
        Scenario::new(
            "dirty: clear 0..1 of a large leaf | store to 1",
            &[&[gfns(Clear, 0, 1), gfns(Clear, 1, 2)], &[write(1)]],
        )
        .large(true)
        .stores(),
        Scenario::new(
            "dirty: clear 0..1 of a large leaf | upgrade, no page at hand",
            &[&[gfns(Clear, 0, 1)], &[write(1)]],
        )
        .large(true)
        .pageless()
        .stores(),
        Scenario::new("dirty: recover | clear 0..2", &[&[recover], &[gfns(Clear, 0, 2)]])
            .small(true, true)
            .stores(),
        Scenario::new(
            "dirty: recover | permission back | clear 0..2",
            &[&[recover], &[write(0)], &[gfns(Clear, 0, 2)]],
        )
        .small(false, true)
        .stores(),
        Scenario::new("dirty: upgrade of a dirty leaf | clear 0..1", &[&[write(0)], &[gfns(Clear, 0, 1)]])
            .small(false, false)
            .dirty()
            .stores(),
        Scenario::new("dirty: age | clear 0..1", &[&[Op::Age { gfn: 0 }], &[gfns(Clear, 0, 1)]])
            .small(true, true)
            .stores(),
        Scenario::new(
            "dirty: age | split, clear 0..2",
            &[&[Op::Age { gfn: 0 }], &[Op::Split { gfn: 0 }, gfns(Clear, 0, 2)]],
        )
        .large(true)
        .stores(),
    ]
}
