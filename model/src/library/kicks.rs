//! vCPUs that enter the guest, leave it and answer kicks, beside whoever flushes.

use super::{Clear, Protect, Unmap, gfns, hvas, read, slow, write};
use crate::scenario::Scenario;
use crate::thread::Op;

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
    ]
}
