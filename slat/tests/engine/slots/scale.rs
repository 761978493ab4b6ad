//! 50,000 slots, and a million with `SLAT_THOROUGH=1`: every rule and every look-up works the same at that size.
//!
//! Slot number `n` has eight of the sixteen frames from `16 n` on, and an id that is as far from its neighbours' as 32
//! bits allow. The model is one byte for each: its offset in its sixteen frames, or deleted.

use super::oracle::PAGE;
use super::subject::Nothing;
use crate::common::random::Random;
use crate::common::thorough::thorough;
use slat::GuestSpace;
use slat::slots::{Region, SlotMap};
use slat::table::formats::Ept5;
use slat::*;
use std::sync::LazyLock;

/// It has no divisor in common with 617,777.
static MANY: LazyLock<u32> = LazyLock::new(|| thorough(1_000_000, 50_000));
const PAGES: u64 = 8;
const ROOM: u64 = 16;
const AWAY: u8 = u8::MAX;

/// An odd factor permutes the 32-bit numbers; the last id is not valid and not hit.
fn id(n: u32) -> SlotId {
    SlotId(n.wrapping_mul(0x9e37_79b1))
}

/// Slot `n`, `up` frames from the begin of its range. Each shares its host pages with three others.
fn slot(n: u32, up: u8) -> Slot {
    Slot::new(id(n), Gfn(u64::from(n) * ROOM + u64::from(up)), PAGES, Hva(u64::from(n / 4) * PAGES * PAGE))
}

fn create_all(mut create: impl FnMut(Slot) -> Result<(), SlotError>) -> Result<(), SlotError> {
    // In an order that favours no tree.
    (0..*MANY)
        .map(|n| (u64::from(n) * 617_777 % u64::from(*MANY)) as u32)
        .try_for_each(|n| create(slot(n, 0)))
}

type Many<'vm> = GuestSpace<'vm, Ept5, Nothing>;

/// One random operation on slot `n`, or refusal.
fn operate(slots: &Many<'_>, idle: &mut Idle, model: &mut [u8], random: &mut Random) {
    let n = random.below(u64::from(*MANY)) as u32;
    let place = &mut model[n as usize];
    let (name, now) = (id(n), slot(n, *place & 15));
    if *place == AWAY {
        assert_eq!(slots.commit(idle, |tx| tx.delete(name)).unwrap_err().errno(), 22);
        *place = random.below(9) as u8;
        slots.commit(idle, |tx| tx.create(slot(n, *place))).unwrap();
        return;
    }
    assert_eq!(slots.get(idle, name), Some(now));
    match random.below(4) {
        0 => {
            assert_eq!(slots.commit(idle, |tx| tx.delete(name)), Ok(now));
            *place = AWAY;
        }
        1 | 2 => {
            *place = random.below(9) as u8;
            let to = slot(n, *place).gfns.start;
            assert_eq!(slots.commit(idle, |tx| tx.move_to(name, to)), Ok(now));
        }
        _ => {
            // Into a neighbour's room; and larger than it is.
            let other = (n + 1) % *MANY;
            let onto = Gfn(u64::from(other) * ROOM + 7);
            let blocked = slots.get(idle, id(other)).is_some_and(|other| other.gfns.start <= onto);
            if blocked {
                assert_eq!(slots.commit(idle, |tx| tx.move_to(name, onto)).unwrap_err().errno(), 17);
            }
            let grown = Region { bytes: (PAGES + 1) * PAGE, ..Region::from(now) };
            assert_eq!(slots.set(idle, grown).unwrap_err().errno(), 22);
        }
    }
}

#[test]
fn many_slots_in_one_transaction_then_one_by_one() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Ept5, _>::builder(Nothing).max_slots(u32::MAX).build().unwrap();
    let slots = vm.memory();
    let before = slots.generation();
    let refused = slots.commit(&mut idle, |tx| {
        create_all(|slot| tx.create(slot))?;
        assert_eq!(tx.len(), *MANY as usize);
        tx.create(Slot::new(SlotId(u32::MAX), Gfn(0), 1, Hva(0)))
    });
    assert_eq!(refused.unwrap_err().errno(), 22, "that id is the limit");
    assert_eq!((slots.len(), slots.generation(), slots.find(&mut idle, Gfn(0))), (0, before, None));
    slots.commit(&mut idle, |tx| create_all(|slot| tx.create(slot))).unwrap();

    let mut model = vec![0_u8; *MANY as usize];
    let mut random = Random::new(51);
    for _ in 0..5_000 {
        operate(&slots, &mut idle, &mut model, &mut random);
    }

    let snapshot = slots.snapshot(&mut idle);
    let all = (0..).zip(&model).map(|(n, &place)| (place != AWAY).then(|| slot(n, place)));
    let expected = all.flatten();
    assert!(snapshot.iter().eq(expected.clone()), "all of them, in order of guest frames");
    assert_eq!(snapshot.len(), expected.count());
    for _ in 0..100_000 {
        let n = random.below(u64::from(*MANY)) as u32;
        let gfn = Gfn(u64::from(n) * ROOM + random.below(ROOM));
        let place = model[n as usize];
        let expected = (place != AWAY).then(|| slot(n, place));
        assert_eq!(snapshot.get(id(n)), expected);
        assert_eq!(snapshot.find(gfn), expected.filter(|slot| slot.gfns.contains(gfn)));
    }
    for group in (0..*MANY / 4).step_by(97) {
        let mut behind = Vec::new();
        snapshot.over_hvas(slot(group * 4, 0).hvas(), |gfns| behind.push(gfns));
        behind.sort_unstable_by_key(|gfns| gfns.start);
        let of_group = (group * 4..group * 4 + 4).filter(|&n| model[n as usize] != AWAY);
        assert!(behind.into_iter().eq(of_group.map(|n| slot(n, model[n as usize]).gfns)));
    }
    drop(snapshot);

    // Deletes all slots but one.
    let kept = model.iter().position(|&place| place != AWAY).unwrap() as u32;
    slots
        .commit(&mut idle, |tx| {
            let rest = (0..*MANY).filter(|&n| n != kept && model[n as usize] != AWAY);
            { rest }.try_for_each(|n| tx.delete(id(n)).map(drop))
        })
        .unwrap();
    assert_eq!(slots.len(), 1);
    assert_eq!(slots.find(&mut idle, slot(kept, model[kept as usize]).gfns.start).unwrap().id, id(kept));
}

/// A slot's cost depends neither on how sparse ids are, nor on their limit.
#[test]
fn a_slot_costs_150_bytes_at_most() {
    let limits = slat::slots::Limits { ids: u32::MAX, ..slat::slots::Limits::default() };
    let mut map = SlotMap::new(limits);
    assert_eq!(map.bytes(), 0);
    map.commit(|tx| (0..*MANY).try_for_each(|n| tx.create(slot(n, 0)))).unwrap();
    assert!(map.bytes() <= 150 * *MANY as usize, "{} bytes a slot", map.bytes() / *MANY as usize);
    map.commit(|tx| (0..*MANY).try_for_each(|n| tx.delete(id(n)).map(drop))).unwrap();
    assert!(map.bytes() < 1 << 20, "{} bytes for none", map.bytes());
}
