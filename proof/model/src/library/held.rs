//! A frame that the VMM, or hardware, holds beside the tables.

use super::terms::{ChangePte, Clear, Protect, Unmap, commit, gfns, hvas, slow};
use crate::scenario::Scenario;
use crate::state::{NONE, Op};

/// The host and the slots change the held frame.
pub(super) fn held() -> Vec<Scenario> {
    let (read, write) = (Op::Hold { gfn: 0, write: false }, Op::Hold { gfn: 0, write: true });
    vec![
        Scenario::new("held: hold 0 | clear 0..1", &[&[read], &[hvas(Clear, 0, 1)]]),
        Scenario::new("held: hold 0, hold 0 | clear 0..1", &[&[read, read], &[hvas(Clear, 0, 1)]]),
        Scenario::new(
            "held: hold 0, hold 0 | clear 0..1 | clear 0..2",
            &[&[read, read], &[hvas(Clear, 0, 1)], &[gfns(Clear, 0, 2)]],
        ),
        Scenario::new(
            "held: hold 0 | slot 0..2 to other pages | clear of the new ones",
            &[&[read, read], &[commit(0, 2, 2)], &[hvas(Clear, 2, 3)]],
        ),
        Scenario::new(
            "held: hold 0 | slot 0..2 to other pages | clear of the old ones",
            &[&[read, read], &[commit(0, 2, 2)], &[hvas(Clear, 0, 1)]],
        ),
        Scenario::new("held: hold 0, hold 0 | slot deleted", &[&[read, read], &[commit(0, 2, NONE)]]),
        Scenario::new(
            "held: hold 0 to write, again | protect 0..2 | slow fault",
            &[&[write, write], &[hvas(Protect, 0, 2)], &[slow(0)]],
        ),
        Scenario::new("held: hold 0, hold 0 | change 0", &[&[read, read], &[hvas(ChangePte, 0, 1)]])
            .read_only(),
        Scenario::new(
            "held: interrupts: hold 0 for hardware | clear 0..1, in an empty table",
            &[&[read], &[hvas(Clear, 0, 1)]],
        )
        .empty()
        .interrupts(2)
        .held_by_hardware(false),
        Scenario::new("held: interrupts: hold 0 for hardware | unmap 0..2", &[&[read], &[hvas(Unmap, 0, 2)]])
            .small(true, true)
            .interrupts(1)
            .held_by_hardware(false),
        Scenario::new(
            "held: kicks: clear 0..1 | clear 0..1, in an empty table",
            &[&[hvas(Clear, 0, 1)], &[hvas(Clear, 0, 1)]],
        )
        .empty()
        .kicks(1)
        .held_by_hardware(false),
        Scenario::new("held: kicks: clear 0..1, in an empty table", &[&[hvas(Clear, 0, 1), read]])
            .empty()
            .kicks(1)
            .held_by_hardware(false)
            .broadcasts(),
    ]
}
