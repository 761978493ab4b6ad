//! vCPUs enter the guest, leave it and answer kicks, beside a thread that flushes.

use super::terms::{Clear, Protect, Unmap, gfns, hvas, read, slow, write};
use crate::scenario::Scenario;
use crate::state::{Op, Track};

pub(super) fn kicks() -> Vec<Scenario> {
    let (flip, recover) = (Op::ZapAll, Op::Recover { gfn: 0 });
    vec![
        Scenario::new("kicks: clear 0..1", &[&[gfns(Clear, 0, 1)]]).small(true, true).kicks(2),
        Scenario::new("kicks: clear 0..1, clear 1..2", &[&[gfns(Clear, 0, 1), gfns(Clear, 1, 2)]])
            .small(true, true)
            .kicks(2),
        Scenario::new("kicks: clear 0..1 | clear 1..2", &[&[gfns(Clear, 0, 1)], &[gfns(Clear, 1, 2)]])
            .small(true, true)
            .kicks(1),
        Scenario::new("kicks: clear 0..1 | slow fault", &[&[gfns(Clear, 0, 1)], &[slow(0)]])
            .small(true, true)
            .kicks(2),
        Scenario::new("kicks: unmap 0..2 | fault", &[&[gfns(Unmap, 0, 2)], &[read(0)]])
            .small(true, true)
            .kicks(1),
        Scenario::new("kicks: protect 0..2 | store", &[&[hvas(Protect, 0, 2)], &[write(0)]])
            .small(true, true)
            .kicks(1),
        Scenario::new("kicks: zap all", &[&[flip]]).small(true, true).kicks(2),
        Scenario::new("kicks: zap all | clear 0..1", &[&[flip], &[gfns(Clear, 0, 1)]])
            .small(true, true)
            .kicks(1),
        Scenario::new("kicks: recover | clear 0..1", &[&[recover], &[gfns(Clear, 0, 1)]])
            .small(true, true)
            .kicks(1),
        Scenario::new("kicks: two vCPUs, clear 0..1", &[&[gfns(Clear, 0, 1)]])
            .small(true, true)
            .two_vcpus()
            .kicks(1),
        Scenario::new("kicks: two vCPUs, zap all", &[&[flip]]).small(true, true).two_vcpus().kicks(1),
        Scenario::new("interrupts: clear 0..1", &[&[gfns(Clear, 0, 1)]]).small(true, true).interrupts(2),
        Scenario::new("interrupts: clear 0..1 | clear 1..2", &[&[gfns(Clear, 0, 1)], &[gfns(Clear, 1, 2)]])
            .small(true, true)
            .interrupts(1),
        Scenario::new("interrupts: zap all", &[&[flip]]).small(true, true).interrupts(2),
        Scenario::new("kicks: clear 0..1", &[&[gfns(Clear, 0, 1)]]).small(true, true).kicks(2).broadcasts(),
        Scenario::new("kicks: zap all | clear 0..1", &[&[flip], &[gfns(Clear, 0, 1)]])
            .small(true, true)
            .kicks(1)
            .broadcasts(),
    ]
}

/// Broadcast flushes.
pub(super) fn broadcasts() -> Vec<Scenario> {
    let flip = Op::ZapAll;
    let named = [
        ("zap all | clear 0..1 | slow fault", [flip, gfns(Clear, 0, 1), slow(0)]),
        ("zap all | unmap 0..2 | fault", [flip, gfns(Unmap, 0, 2), read(0)]),
        ("unmap 0..2 | clear 0..1 | slow fault", [gfns(Unmap, 0, 2), hvas(Clear, 0, 1), slow(0)]),
        ("zap all | protect 0..2 | store", [flip, hvas(Protect, 0, 2), write(0)]),
    ];
    let plain = named.map(|(name, [a, b, c])| Scenario::new(name, &[&[a], &[b], &[c]]).small(true, true));
    let harvest = [flip, Op::Harvest, write(0)];
    let logs = [(Track::Writes, "by W: "), (Track::DirtyBits, "by D: ")].map(|(track, name)| {
        let harvest = harvest.map(|op| vec![op]);
        let programs: Vec<&[Op]> = harvest.iter().map(|ops| &ops[..]).collect();
        Scenario::new("zap all | harvest | store", &programs)
            .tracks(track)
            .small(true, true)
            .logs()
            .called(name)
    });
    plain.into_iter().chain(logs).map(Scenario::broadcasts).collect()
}
