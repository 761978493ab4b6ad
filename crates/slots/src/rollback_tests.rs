//! Memory runs out at every point of a transaction: the whole transaction is refused, nothing changes, nothing
//! is lost.

use crate::addr::{Gfn, Hva, Span};
use crate::allocator_tests::refusing;
use crate::log::Log;
use crate::map::SlotMap;
use crate::rules::{Limits, Rule, SlotError};
use crate::slot::{Slot, SlotId};
use crate::transaction::Transaction;
use std::vec::Vec;

const SLOTS: u32 = 3000;

fn slot(id: u32) -> Slot {
    // Aliases: all slots share a hundred host ranges.
    Slot::new(SlotId(id), Gfn(u64::from(id) * 16), 8, Hva(u64::from(id % 100) << 20))
}

fn content(map: &SlotMap) -> Vec<Slot> {
    let slots: Vec<_> = map.range(Span::new(Gfn(0), Gfn(u64::MAX))).collect();
    assert_eq!(slots.len(), map.len());
    for slot in &slots {
        assert_eq!((map.get(slot.id), map.find(slot.gfns.start)), (Some(*slot), Some(*slot)));
        let mut behind = 0;
        map.over_hvas(slot.hvas(), |gfns| behind += usize::from(gfns == slot.gfns));
        assert_eq!(behind, 1, "slot {} by its host range", slot.id);
    }
    slots
}

/// A transaction with every kind of operation, spread over the map.
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
    (SLOTS..SLOTS + 200).try_for_each(|id| tx.create(slot(id).log_dirty()))?;
    for id in (2..SLOTS).step_by(37) {
        let first = Gfn(u64::from(id) * 16);
        tx.cut(SlotId(id), Span::new(first + 3, first + 5), SlotId(2 * SLOTS + id))?;
    }
    Ok(())
}

#[test]
fn a_transaction_without_memory_leaves_no_trace() {
    let mut map = SlotMap::<()>::new(Limits::default());
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
    let of = |rest| before.iter().filter(|slot| slot.id.0 % 37 == rest).count();
    assert_eq!(
        after.len(),
        before.len() - of(0) + 200 + of(2),
        "some deleted, some created, some cut in two"
    );
    assert_eq!(after.iter().filter(|slot| slot.log_dirty).count(), 200 + (1..SLOTS).step_by(37).count() / 2);
}

/// If the user continues after an error, each operation was done or not done, never half.
#[test]
fn an_operation_without_memory_does_nothing() {
    let mut map = SlotMap::<()>::new(Limits::default());
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

/// A log with a size, so that its allocation can be refused.
struct Marks([u64; 4]);

impl Log for Marks {
    fn begin(slot: &Slot, _: u64, _: bool) -> Option<Self> {
        Some(Self([slot.gfns.start.0; 4]))
    }
}

/// For nodes, lists and logs: each allocation is refused in turn.
#[test]
fn memory_is_refused_at_every_place() {
    let few = |tx: &mut Transaction<'_, Marks>| {
        tx.delete(SlotId(1))?;
        tx.move_to(SlotId(2), Gfn(1 << 20))?;
        tx.set_log_dirty(SlotId(3), true)?;
        tx.set_log_dirty(SlotId(4), false)?;
        tx.cut(SlotId(5), Span::sized(Gfn(5 * 16 + 3), 2), SlotId(1001))?;
        tx.create(slot(1000).log_dirty())
    };
    let (mut places, mut done) = (0, false);
    while !done {
        let mut map = SlotMap::<Marks>::default();
        map.commit(|tx| {
            (0..200).try_for_each(|id| tx.create(if id % 4 == 0 { slot(id).log_dirty() } else { slot(id) }))
        })
        .unwrap();
        // Nodes that are free already are not allocated.
        map.limit_blocks(usize::MAX / 2);
        let all = Span::new(Gfn(0), Gfn(u64::MAX));
        let before: Vec<_> = map.range(all).collect();
        let (result, refused) = refusing(places, || map.commit(few));
        assert_eq!(result.is_err_and(|error| error.rule == Rule::NoMemory), refused, "place {places}");
        assert_eq!(map.range(all).eq(before.iter().copied()), refused, "place {places}");
        for slot in map.range(all) {
            let log = map.version().log(slot.id);
            assert_eq!((log.is_some(), log.is_none_or(|log| log.0.len() == 4)), (slot.log_dirty, true));
        }
        map.audit();
        done = !refused;
        places += 1;
    }
    assert!(places > 20, "{places} allocations");
}
