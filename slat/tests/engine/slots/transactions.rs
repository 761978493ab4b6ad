//! Many operations at once: all of them, or nothing.
//!
//! A group of random requests, each made for the state after the ones before, goes to the oracle one by one and to slat
//! in one transaction. It ends in three ways: the first refusal ends everything; refusals are ignored, and the rest is
//! published; or all succeed and the caller aborts.

use super::oracle::{Change, LOG_DIRTY, Limits, Oracle, PAGE, READONLY, Record, Request, Rule};
use super::requests::Requests;
use super::subject::{ARENA, Slat, region, slot};
use crate::common::random::Random;
use crate::common::thorough::thorough;
use slat::slots::{SlotMap, Transaction};
use slat::*;

const LIMITS: Limits = Limits { ids: 32_764, spaces: 2, gfn_end: 1 << 40, hva_end: (1 << 47) - PAGE };

/// Applies `request` as a program would: by the operation's own method, if it has one.
fn by_name(
    tx: &mut Transaction<'_>,
    request: &Request,
    judged: Result<Change, Rule>,
) -> Result<(), SlotError> {
    let id = SlotId(request.id);
    let new = Record {
        gfn: request.gpa / PAGE,
        pages: request.bytes / PAGE,
        hva: request.hva,
        flags: request.flags,
    };
    match judged {
        Ok(Change::Created) => tx.create(slot(request.id, &new)),
        Ok(Change::Deleted(old)) => tx.delete(id).map(|was| assert_eq!(was, slot(request.id, &old))),
        Ok(Change::Moved(old)) if old.flags == new.flags => {
            tx.move_to(id, Gfn(new.gfn)).map(|was| assert_eq!(was, slot(request.id, &old)))
        }
        Ok(Change::Flags(old)) => {
            let was = tx.set_log_dirty(id, new.flags & LOG_DIRTY != 0);
            was.map(|was| assert_eq!(was, slot(request.id, &old)))
        }
        _ => tx.set(region(request)).map(drop),
    }
}

/// How a transaction ends.
#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    AtFirstRefusal,
    RefusalsIgnored,
    SecondThoughts,
}

#[test]
fn random_groups_are_all_or_nothing() {
    let mut slat = Slat::new(LIMITS);
    let mut oracle = Oracle::new(LIMITS);
    let mut requests = Requests::new(21, LIMITS, ARENA, 1 << 14);
    let mut random = Random::new(22);
    let (mut published, mut undone, mut refused_amid) = (0, 0, 0);
    let groups = thorough(8_000, 4_000);
    for _ in 0..groups {
        let space = random.below(2) as u32;
        let end = random.pick(&[End::AtFirstRefusal, End::RefusalsIgnored, End::SecondThoughts]);
        let most = random.pick(&[1, 6, 6, 60]);
        let many = 1 + random.below(most);
        let mut after = oracle.clone();
        let mut changed = false;
        let mut refused = None;
        let group: Vec<_> = (0..many)
            .filter_map(|_| {
                let request = requests.next(&after);
                // One transaction is of one address space; and one that ends at a refusal should do some operations
                // first.
                let fits = request.space == space
                    && !(end != End::RefusalsIgnored && after.judge(&request).is_err() && !random.one_in(4));
                let judged = fits.then(|| after.set(&request))?;
                changed |= judged.is_ok_and(|change| change != Change::Nothing);
                Some((request, judged))
            })
            .collect();
        let named = random.one_in(2);

        let slots = slat.vm.space(SpaceId(space as u8)).unwrap();
        let second_thoughts =
            SlotError { id: SlotId(0), gpas: Span::new(Gpa(0), Gpa(0)), rule: slat::slots::Rule::Empty };
        let result = slots.commit(&mut slat.idle, |tx| {
            for (request, judged) in &group {
                let said =
                    if named { by_name(tx, request, *judged) } else { tx.set(region(request)).map(drop) };
                assert_eq!(
                    said.map_err(|e| e.errno()),
                    judged.map(drop).map_err(Rule::errno),
                    "{request:#x?}"
                );
                if let Err(error) = said
                    && end != End::RefusalsIgnored
                {
                    refused = Some(error);
                    return Err(error);
                }
            }
            assert_eq!(tx.len(), after.slots(space).len());
            if end == End::SecondThoughts { Err(second_thoughts) } else { Ok(()) }
        });

        if result.is_ok() {
            published += 1;
            refused_amid += usize::from(group.iter().any(|(_, judged)| judged.is_err()));
            oracle = after;
        } else {
            assert_eq!(result, Err(refused.unwrap_or(second_thoughts)));
            undone += 1;
        }
        slat.check_generations((result.is_ok() && changed).then_some(space));
        slat.check_content(&oracle);
    }
    let enough = published > groups / 4 && undone > groups / 4 && refused_amid > groups / 16;
    assert!(enough, "{published} {undone} {refused_amid}");
}

const PAGES: u64 = 16;

/// Slot `id`, at the `place`th of adjacent places.
fn at(id: u32, place: u64) -> Slot {
    Slot::new(SlotId(id), Gfn(place * PAGES), PAGES, Hva(ARENA + u64::from(id) * PAGES * PAGE))
}

fn map(slots: impl IntoIterator<Item = Slot>) -> SlotMap {
    let mut map = SlotMap::default();
    map.commit(|tx| slots.into_iter().try_for_each(|slot| tx.create(slot))).unwrap();
    map
}

#[track_caller]
fn assert_holds(map: &SlotMap, expected: &[Slot]) {
    let everywhere = Span::new(Gfn(0), Gfn(u64::MAX));
    assert_eq!(map.range(everywhere).collect::<Vec<_>>(), expected);
    assert_eq!(map.len(), expected.len());
    for slot in expected {
        assert_eq!(map.get(slot.id), Some(*slot));
        let mut behind = Vec::new();
        map.over_hvas(slot.hvas(), |gfns| behind.push(gfns));
        assert!(behind.contains(&slot.gfns), "{slot:?} of {behind:?}");
    }
}

#[test]
fn two_slots_change_places() {
    let mut map = map([at(0, 0), at(1, 1)]);
    // One at a time, the slots are in each other's way; with a free place it works.
    let refused = map.commit(|tx| tx.move_to(SlotId(0), Gfn(PAGES))).unwrap_err();
    assert_eq!(refused.errno(), 17);
    map.commit(|tx| {
        tx.move_to(SlotId(0), Gfn(9 * PAGES))?;
        tx.move_to(SlotId(1), Gfn(0))?;
        assert_eq!(tx.move_to(SlotId(0), Gfn(PAGES))?, at(0, 9), "what it was in this transaction");
        Ok(())
    })
    .unwrap();
    assert_holds(&map, &[at(1, 0), at(0, 1)]);
}

#[test]
fn a_row_moves_up_by_less_than_its_length_from_the_far_end_on() {
    let mut map = map((0..100).map(|n| at(n, u64::from(n))));
    let by =
        |tx: &mut Transaction<'_>, id: u32| tx.move_to(SlotId(id), Gfn(u64::from(id) * PAGES + 3)).map(drop);
    let wrong_end = map.commit(|tx| (0..100).try_for_each(|id| by(tx, id)));
    assert_eq!(wrong_end.unwrap_err().id, SlotId(0), "its neighbour is still there");
    map.commit(|tx| (0..100).rev().try_for_each(|id| by(tx, id))).unwrap();
    let moved = |n: u64| Slot { gfns: Span::sized(Gfn(n * PAGES + 3), PAGES), ..at(n as u32, n) };
    assert_holds(&map, &(0..100).map(moved).collect::<Vec<_>>());
}

#[test]
fn a_slot_is_replaced_in_its_place() {
    let mut map = map([at(0, 0), at(1, 1)]);
    let (smaller, rest) = (Slot::new(SlotId(1), Gfn(PAGES), 7, Hva(ARENA)), at(5, 3));
    map.commit(|tx| {
        assert_eq!(tx.delete(SlotId(1))?, at(1, 1));
        assert_eq!(tx.get(SlotId(1)), None);
        tx.create(smaller)?;
        // Another may begin where the old one ended.
        tx.create(Slot { gfns: Span::sized(Gfn(PAGES + 7), PAGES), ..rest })
    })
    .unwrap();
    assert_holds(&map, &[at(0, 0), smaller, Slot { gfns: Span::sized(Gfn(PAGES + 7), PAGES), ..rest }]);
}

/// A refusal leaves the transaction unchanged, and an aborted transaction leaves the map unchanged, including dirty
/// logs that it began and ended, which are memory of their own.
#[test]
fn an_aborted_transaction_leaves_no_trace() {
    let before: Vec<_> =
        (0..40).map(|n| if n % 2 == 0 { at(n, n.into()) } else { at(n, n.into()).log_dirty() }).collect();
    let mut map = map(before.iter().copied());
    for last in [SlotId(77), SlotId(3)] {
        let result = map.commit(|tx| {
            for id in (0..40).map(SlotId) {
                tx.set_log_dirty(id, id.0 % 3 == 0)?;
            }
            for id in (0..40).filter(|id| id % 5 == 0).map(SlotId) {
                tx.delete(id)?;
                assert_eq!(tx.delete(id).unwrap_err().errno(), 22);
                tx.create(at(id.0, u64::from(id.0)).log_dirty().readonly())?;
                tx.create(at(id.0 + 1000, u64::from(id.0))).unwrap_err();
                tx.move_to(id, Gfn(u64::from(id.0 + 1) * PAGES)).unwrap_err();
                tx.set_log_dirty(id, false)?;
                tx.set_log_dirty(id, true)?;
            }
            assert_eq!(tx.len(), 40);
            tx.delete(last).map(drop)
        });
        if last == SlotId(77) {
            assert_eq!(result.unwrap_err().errno(), 22);
            assert_holds(&map, &before);
        }
    }
    let after = (0..40).filter(|&id| id != 3).map(|id| {
        let kept = Slot { log_dirty: id % 3 == 0, ..at(id, id.into()) };
        if id % 5 == 0 { kept.log_dirty().readonly() } else { kept }
    });
    assert_holds(&map, &after.collect::<Vec<_>>());
}

/// Values that a slot's type allows and the rules do not.
#[test]
fn slots_that_cannot_be_are_refused() {
    let mut slat = Slat::new(LIMITS);
    let huge = 1 << 31;
    for (slot, errno) in [
        (Slot::new(SlotId(0), Gfn(0), 0, Hva(0)), 22),
        (Slot { gfns: Span::new(Gfn(9), Gfn(3)), ..at(0, 0) }, 22),
        (Slot::new(SlotId(0), Gfn(0), huge, Hva(0)), 22),
        (Slot::new(SlotId(0), Gfn(u64::MAX), 9, Hva(0)), 22),
        (Slot::new(SlotId(0), Gfn(1 << 40), 1, Hva(0)), 22),
        (Slot::new(SlotId(0), Gfn((1 << 40) - 1), 2, Hva(0)), 22),
        (Slot::new(SlotId(0), Gfn(0), 1, Hva(1)), 22),
        (Slot::new(SlotId(0), Gfn(0), 1, Hva(LIMITS.hva_end)), 22),
        (Slot::new(SlotId(0), Gfn(0), 1, Hva(!4095)), 22),
        (Slot::new(SlotId(LIMITS.ids), Gfn(0), 1, Hva(0)), 22),
        (Slot::new(SlotId(7), Gfn(500), 1, Hva(0)), 17),
        (Slot::new(SlotId(0), Gfn(15), 2, Hva(0)), 17),
    ] {
        let seven = at(7, 1);
        let slots = slat.vm.memory();
        let refused = slots.commit(&mut slat.idle, |tx| tx.create(seven).and_then(|()| tx.create(slot)));
        let error = refused.expect_err(&format!("{slot:?}"));
        assert_eq!((error.errno(), error.id), (errno, slot.id), "{error}");
        slat.check_generations(None);
    }
    assert!(slat.vm.memory().is_empty());

    // Nor can a move, by its method, leave the reach of guest addresses.
    let slots = slat.vm.memory();
    slots.commit(&mut slat.idle, |tx| tx.create(at(0, 0).readonly())).unwrap();
    for gfn in [(1 << 40) - PAGES + 1, 1 << 40, u64::MAX - PAGES, u64::MAX] {
        let refused = slots.commit(&mut slat.idle, |tx| tx.move_to(SlotId(0), Gfn(gfn)));
        assert_eq!(refused.unwrap_err().errno(), 22, "{gfn:#x}");
    }
    assert_eq!(slots.commit(&mut slat.idle, |tx| tx.move_to(SlotId(1), Gfn(0))).unwrap_err().errno(), 22);
    assert_eq!(slots.get(&mut slat.idle, SlotId(0)), Some(at(0, 0).readonly()));
    let flags = Request { space: 0, id: 0, flags: LOG_DIRTY, gpa: 0, bytes: PAGES * PAGE, hva: ARENA };
    assert!(slots.set(&mut slat.idle, region(&flags)).is_err(), "read-only for ever");
    let both = Request { flags: LOG_DIRTY | READONLY, ..flags };
    assert!(slots.set(&mut slat.idle, region(&both)).is_ok());
}
