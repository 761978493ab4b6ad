//! Invalidations by host address, announced in the regions that they cover, beside wide ones.

use super::terms::{
    ChangePte, Clear, Protect, Unmap, commit, gfns, hvas, large, read, slow, slow_store, write,
};
use crate::scenario::Scenario;
use crate::state::{Leaf, Op, Pc, Word};

/// Three invalidators and faults, or two and a fault that sleeps.
pub(super) fn regions() -> Vec<Scenario> {
    let flip = Op::ZapAll;
    vec![
        Scenario::new(
            "by region: clear 0..1 | clear 1..2 | slow fault on 0",
            &[&[hvas(Clear, 0, 1)], &[hvas(Clear, 1, 2)], &[slow(0)]],
        )
        .empty(),
        Scenario::new(
            "by region: clear 0..1 | wide clear 0..2 | slow fault on 0",
            &[&[hvas(Clear, 0, 1)], &[gfns(Clear, 0, 2)], &[slow(0)]],
        )
        .empty(),
        Scenario::new(
            "by region: clear 0..1 | wide clear 0..2 | slow fault on 0, fault on 0",
            &[&[hvas(Clear, 0, 1)], &[gfns(Clear, 0, 2)], &[slow(0), read(0)]],
        )
        .empty(),
        Scenario::new("by region: clear 0..4 | slow fault on 2", &[&[hvas(Clear, 0, 4)], &[slow(2)]]),
        Scenario::new(
            "by region: clear 0..4 | clear 0..4 | slow fault on 2",
            &[&[hvas(Clear, 0, 4)], &[hvas(Clear, 0, 4)], &[slow(2)]],
        ),
        Scenario::new(
            "by region: clear 0..4 | unmap 2..4 | slow fault on 2",
            &[&[hvas(Clear, 0, 4)], &[hvas(Unmap, 2, 4)], &[slow(2)]],
        )
        .empty(),
        Scenario::new(
            "by region: unmap 0..2 | clear 0..1 | slow fault on 0",
            &[&[hvas(Unmap, 0, 2)], &[hvas(Clear, 0, 1)], &[slow(0)]],
        )
        .empty(),
        Scenario::new(
            "by region: unmap 0..2 | clear 0..1 | fault on 0 | small leaves",
            &[&[hvas(Unmap, 0, 2)], &[hvas(Clear, 0, 1)], &[read(0)]],
        )
        .small(true, true),
        Scenario::new(
            "by region: unmap 0..2 | wide clear 0..1 | slow fault on 0",
            &[&[hvas(Unmap, 0, 2)], &[gfns(Clear, 0, 1)], &[slow(0)]],
        )
        .empty(),
        Scenario::new(
            "by region: wide unmap 0..2 | clear 0..1 | slow fault on 0",
            &[&[gfns(Unmap, 0, 2)], &[hvas(Clear, 0, 1)], &[slow(0)]],
        )
        .empty(),
        Scenario::new(
            "by region: unmap 0..2 | unmap 0..2 | slow fault on 0",
            &[&[hvas(Unmap, 0, 2)], &[hvas(Unmap, 0, 2)], &[slow(0)]],
        )
        .empty(),
        Scenario::new(
            "by region: zap all | clear 0..1 | slow fault on 0",
            &[&[flip], &[hvas(Clear, 0, 1)], &[slow(0)]],
        )
        .empty(),
        Scenario::new(
            "by region: zap all | clear 2..3 | clear 0..1",
            &[&[flip], &[hvas(Clear, 2, 3)], &[hvas(Clear, 0, 1)]],
        )
        .deep()
        .small(true, true),
    ]
}

/// Slots, large leaves and permissions.
pub(super) fn more_regions() -> Vec<Scenario> {
    vec![
        Scenario::new(
            "slot 0 to another page | wide clear of others | slow fault",
            &[&[commit(0, 1, 2)], &[gfns(Clear, 3, 4)], &[slow(0)]],
        )
        .empty(),
        Scenario::new(
            "by region: clear 1..2 | wide clear 0..1 | slow fault on 0",
            &[&[hvas(Clear, 1, 2)], &[gfns(Clear, 0, 1)], &[slow(0)]],
        )
        .empty(),
        Scenario::new("slot 1 grows to 1..3 | faults on MMIO", &[&[commit(1, 3, 0)], &[read(2), read(2)]])
            .table(1, [Word::Hole(0); 2])
            .no_slot(2..3),
        Scenario::new(
            "slot made | wide clear of others | faults on MMIO",
            &[&[commit(0, 1, 0)], &[gfns(Clear, 3, 4)], &[read(0), read(0)]],
        )
        .empty()
        .no_slot(0..1),
        Scenario::new(
            "change 0 | clear 1..2 by host address | slow fault on 0",
            &[&[hvas(ChangePte, 0, 1)], &[hvas(Clear, 1, 2)], &[slow(0)]],
        )
        .empty()
        .read_only(),
        Scenario::new(
            "by region: large fault | clear 0..1 | large fault",
            &[&[large(0, true)], &[hvas(Clear, 0, 1)], &[large(1, false)]],
        ),
        Scenario::new(
            "by region: large fault | clear 0..1 | clear 1..2",
            &[&[large(0, true)], &[hvas(Clear, 0, 1)], &[hvas(Clear, 1, 2)]],
        ),
        Scenario::new(
            "by region: clear 0..1 of a large leaf | clear 1..2 | slow fault on 1",
            &[&[hvas(Clear, 0, 1)], &[hvas(Clear, 1, 2)], &[slow(1)]],
        )
        .large(true),
        Scenario::new(
            "by region: recover | clear 0..1 | slow fault on 0",
            &[&[Op::Recover { gfn: 0 }], &[hvas(Clear, 0, 1)], &[slow(0)]],
        )
        .small(true, true),
        Scenario::new(
            "by region: upgrade | clear 0..1, fault | protect 0..1",
            &[&[write(0)], &[hvas(Clear, 0, 1), read(0)], &[hvas(Protect, 0, 1)]],
        )
        .small(false, false),
    ]
}

/// An older invalidation takes in a later pass what a newer one has passed by, beside invalidations elsewhere in the
/// region, which move its number. Page 1 was frozen by a thread that is not in the program.
pub(super) fn passes() -> Vec<Scenario> {
    let read_only = Word::Leaf(Leaf { pfn: 0, write: false, host_write: false, dirty: false });
    vec![
        Scenario::new(
            "by region: upgrade | protect 0..2 | protect 0..1 | slow store to 0",
            &[&[write(0)], &[hvas(Protect, 0, 2)], &[hvas(Protect, 0, 1)], &[slow_store(0)]],
        )
        .table(0, [read_only, Word::Frozen(7)])
        .read_only()
        .beside_shorts(2)
        .from(0, Pc::Freeze)
        .from(1, Pc::EditEntry)
        .from(3, Pc::StampRegion),
        Scenario::new(
            "by region: clear 0..1 of a large leaf | protect 1..2 | slow store to 1 | slow fault on 1",
            &[&[hvas(Clear, 0, 1)], &[hvas(Protect, 1, 2)], &[slow_store(1)], &[slow(1)]],
        )
        .large(false)
        .pageless()
        .from(3, Pc::Descend)
        .from(0, Pc::WidenSlot)
        .from(0, Pc::EditEntry)
        .from(2, Pc::LookRegion),
    ]
}
