//! Memory runs out at every point of a transaction: it is refused as a whole, nothing changes, nothing is lost.

use super::map::SlotMap;
use super::rules::{Limits, Rule, SlotError};
use super::transaction::Transaction;
use super::{Slot, SlotId};
use crate::addr::{Gfn, Hva};
use std::vec::Vec;

const SLOTS: u32 = 3000;

fn slot(id: u32) -> Slot {
    // Aliases: a hundred host ranges for all of them.
    Slot::new(SlotId(id), Gfn(u64::from(id) * 16), 8, Hva(u64::from(id % 100) << 20))
}

fn content(map: &SlotMap) -> Vec<Slot> {
    let slots: Vec<_> = map.range(crate::Span::new(Gfn(0), Gfn(u64::MAX))).collect();
    assert_eq!(slots.len(), map.len());
    for slot in &slots {
        assert_eq!((map.get(slot.id), map.find(slot.gfns.start)), (Some(*slot), Some(*slot)));
        let mut behind = 0;
        map.over_hvas(slot.hvas(), |gfns| behind += usize::from(gfns == slot.gfns));
        assert_eq!(behind, 1, "slot {} by its host range", slot.id);
    }
    slots
}

/// A transaction of every kind of operation, spread over the map.
fn everything(tx: &mut Transaction<'_>) -> Result<(), SlotError> {
    for id in (0..SLOTS).step_by(37) {
        tx.delete(SlotId(id))?;
    }
    for id in (1..SLOTS).step_by(37) {
        tx.move_to(SlotId(id), Gfn(u64::from(id) * 16 + 4))?;
        tx.set_log_dirty(SlotId(id), true)?;
    }
    for id in (1..SLOTS).step_by(74) {
        tx.set_log_dirty(SlotId(id), false)?;
    }
    (SLOTS..SLOTS + 200).try_for_each(|id| tx.create(slot(id).log_dirty()))
}

#[test]
fn a_transaction_without_memory_leaves_no_trace() {
    let mut map = SlotMap::new(Limits::default());
    map.commit(|tx| (0..SLOTS).try_for_each(|id| tx.create(slot(id)))).unwrap();
    let before = content(&map);
    let (mut refusals, mut blocks) = (0, 0);
    loop {
        map.limit_blocks(blocks);
        match map.commit(everything) {
            Err(error) => assert_eq!(error.rule, Rule::NoMemory, "{error}"),
            Ok(()) => break,
        }
        refusals += 1;
        blocks += 2;
        map.audit();
        if refusals % 8 == 0 {
            assert_eq!(content(&map), before);
        }
    }
    assert!(refusals > 20, "memory ran out at many points: {refusals}");
    map.audit();
    let after = content(&map);
    assert_eq!(after.len(), before.len() - before.iter().filter(|slot| slot.id.0 % 37 == 0).count() + 200);
    assert_eq!(after.iter().filter(|slot| slot.log_dirty).count(), 200 + (1..SLOTS).step_by(37).count() / 2);
}

/// Whoever goes on after an error finds each operation done or not done, never half.
#[test]
fn an_operation_without_memory_does_nothing() {
    let mut map = SlotMap::new(Limits::default());
    map.commit(|tx| (0..SLOTS).try_for_each(|id| tx.create(slot(id)))).unwrap();
    let mut refused = 0;
    for round in 0..120_u32 {
        map.limit_blocks(round as usize % 12);
        let ids = (0..40).map(|nth| (round * 997 + nth * 131) % SLOTS);
        map.commit(|tx| {
            for id in ids {
                let operation = match (tx.get(SlotId(id)), id % 3) {
                    (None, _) => tx.create(slot(id)),
                    (Some(_), 0) => tx.delete(SlotId(id)).map(drop),
                    (Some(old), _) => tx.move_to(SlotId(id), Gfn(old.gfns.start.0 ^ 8)).map(drop),
                };
                refused += u32::from(operation.is_err_and(|error| error.rule == Rule::NoMemory));
            }
            Ok(())
        })
        .unwrap();
        map.audit();
        if round % 10 == 0 {
            content(&map);
        }
    }
    content(&map);
    assert!(refused > 1000, "memory ran out often: {refused}");
}
