//! Slots are cut at random: exactly the frames that they lose are zapped.

use crate::addr::{Gfn, Hva, PrivateMemory, Span};
use crate::log::Log;
use crate::map::SlotMap;
use crate::rules::Rule;
use crate::slot::{Slot, SlotId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::vec::Vec;

const ALL: Span<Gfn> = Span::new(Gfn(0), Gfn(u64::MAX));

/// Returns the host address of each frame.
fn frames(map: &SlotMap<()>) -> BTreeMap<u64, Hva> {
    let of = |slot: Slot| (slot.gfns.start.0..slot.gfns.end.0).map(move |gfn| (gfn, slot.hva_of(Gfn(gfn))));
    map.range(ALL).flat_map(of).collect()
}

#[test]
fn exactly_the_frames_that_are_cut_out_are_zapped() {
    let mut map = SlotMap::<()>::default();
    let mut random = fastrand::Rng::with_seed(7);
    for cut in 1..=if cfg!(miri) { 40 } else { 3_000 } {
        if map.is_empty() {
            let slot =
                |id: u32| Slot::new(SlotId(id), Gfn(u64::from(id) * 100), 90, Hva(u64::from(id % 3) << 20));
            map.commit(|tx| (0..5).try_for_each(|id| tx.create(slot(id)))).unwrap();
        }
        let before = frames(&map);
        let slots: Vec<Slot> = map.range(ALL).collect();
        let old = slots[random.usize(..slots.len())];
        let from = old.gfns.start + random.u64(..old.gfns.len());
        let to = (from + 1 + random.u64(..30)).min(old.gfns.end);
        let gone = Span::new(from, to);
        let mut tx = map.begin();
        assert_eq!(tx.cut(old.id, gone, SlotId(100 + cut as u32)), Ok(old));
        let zapped: Vec<Span<Gfn>> = tx.effects().zap.clone();
        let (_, leftovers, effects) = tx.finish();
        // SAFETY: left over by this map; there are no readers.
        unsafe { map.reclaim(leftovers) };
        map.done(effects);
        map.audit();
        let after = frames(&map);
        for (gfn, hva) in &before {
            let told = zapped.iter().any(|gfns| gfns.contains(Gfn(*gfn)));
            assert_eq!(gone.contains(Gfn(*gfn)), !after.contains_key(gfn));
            assert_ne!(told, after.contains_key(gfn), "frame {gfn}, in cut {cut}");
            assert!(after.get(gfn).is_none_or(|now| now == hva), "remaining frames keep their host address");
        }
        assert!(after.keys().all(|gfn| before.contains_key(gfn)));
    }
}

#[test]
fn a_cut_that_breaks_a_rule_changes_nothing() {
    let mut map = SlotMap::<()>::default();
    map.commit(|tx| {
        tx.create(Slot::new(SlotId(0), Gfn(10), 10, Hva(0)))?;
        tx.create(Slot::new(SlotId(1), Gfn(30), 10, Hva(0)).log_dirty())
    })
    .unwrap();
    let before = frames(&map);
    let mut cut = |id, from, to, rest| {
        let gone = Span::new(Gfn(from), Gfn(to));
        map.commit(|tx| tx.cut(SlotId(id), gone, SlotId(rest))).unwrap_err()
    };
    for (from, to) in [(9, 11), (19, 21), (12, 12), (40, 41)] {
        assert_eq!(cut(0, from, to, 7).rule, Rule::Part(Span::new(Gfn(from), Gfn(to))));
    }
    assert_eq!(cut(0, 12, 13, 1).rule, Rule::Exists);
    assert_eq!(cut(0, 12, 13, 0).rule, Rule::Exists);
    assert_eq!(cut(0, 12, 13, 40_000).rule, Rule::Id { limit: 32_764 });
    assert_eq!(cut(2, 32, 33, 7).rule, Rule::Missing);
    assert_eq!(frames(&map), before);
    // At an end of the slot only one part remains, so `rest` is not used.
    map.commit(|tx| tx.cut(SlotId(0), Span::new(Gfn(10), Gfn(12)), SlotId(0))).unwrap();
    map.commit(|tx| tx.cut(SlotId(1), Span::new(Gfn(30), Gfn(40)), SlotId(0)))
        .expect("cutting all of it deletes it");
    assert_eq!(map.range(ALL).map(|slot| slot.gfns).collect::<Vec<_>>(), [Span::new(Gfn(12), Gfn(20))]);
}

/// The pages that a log reports as written.
struct Written(Vec<AtomicBool>);

impl Log for Written {
    fn begin(slot: &Slot, _: u64, set: bool) -> Option<Self> {
        Some(Self((0..slot.gfns.len()).map(|_| set.into()).collect()))
    }
}

#[test]
fn the_rest_of_a_cut_slot_that_logs_counts_as_written() {
    let mut map = SlotMap::<Written>::default();
    map.commit(|tx| tx.create(Slot::new(SlotId(0), Gfn(10), 10, Hva(0)).log_dirty())).unwrap();
    map.version().log(SlotId(0)).unwrap().0.iter().for_each(|page| page.store(true, Relaxed));
    map.commit(|tx| tx.cut(SlotId(0), Span::new(Gfn(14), Gfn(15)), SlotId(1))).unwrap();
    map.commit(|tx| tx.cut(SlotId(0), Span::new(Gfn(10), Gfn(11)), SlotId(9))).unwrap();
    map.audit();
    let mut lost = Vec::new();
    for (id, gfns) in [(0, 11..14), (1, 15..20)] {
        let (slot, log) =
            (map.get(SlotId(id)).unwrap(), map.version().log(SlotId(id)).expect("each piece logs"));
        assert_eq!((slot.gfns.start.0..slot.gfns.end.0, slot.log_dirty), (gfns.clone(), true));
        assert_eq!(log.0.len() as u64, slot.gfns.len());
        lost.extend(gfns.zip(&log.0).filter(|(_, page)| !page.load(Relaxed)).map(|(gfn, _)| gfn));
    }
    map.commit(|tx| (0..2).try_for_each(|id| tx.delete(SlotId(id)).map(drop))).unwrap();
    assert_eq!(lost, [0; 0]);
}

/// Slots with private memory, converted at random.
#[test]
fn the_rest_of_a_cut_slot_is_private_or_shared_as_before() {
    let mut random = fastrand::Rng::with_seed(11);
    let mut map = SlotMap::<()>::default();
    for cut in 1..=if cfg!(miri) { 20 } else { 1_000 } {
        if map.is_empty() {
            let slot =
                |id: u32| Slot::new(SlotId(id), Gfn(u64::from(id) * 100), 90, Hva(u64::from(id) << 20));
            let private = |id: u32| PrivateMemory(id as u16).at(1 << 20);
            map.commit(|tx| (0..3).try_for_each(|id| tx.create_with_private(slot(id), private(id)))).unwrap();
        }
        let ids: Vec<SlotId> = map.range(ALL).map(|part| part.id).collect();
        let old = map.get(ids[random.usize(..ids.len())]).unwrap();
        for _ in 0..3 {
            let from = old.gfns.start + random.u64(..old.gfns.len());
            let to = (from + 1 + random.u64(..12)).min(old.gfns.end);
            map.commit(|tx| tx.set_private(Span::new(from, to), random.bool())).unwrap();
        }
        let before = frames(&map);
        let from = old.gfns.start + random.u64(..old.gfns.len());
        let gone = Span::new(from, (from + 1 + random.u64(..30)).min(old.gfns.end));
        assert_eq!(map.commit(|tx| tx.cut(old.id, gone, SlotId(100 + cut as u32))), Ok(old));
        map.audit();
        let after = frames(&map);
        assert!(before.keys().all(|gfn| after.contains_key(gfn) != gone.contains(Gfn(*gfn))));
        let changed = after.iter().find(|(gfn, hva)| before.get(gfn) != Some(hva));
        assert_eq!(changed, None, "cut {cut} has changed the memory of a frame");
        // Each piece can be converted, and both its memories are where they were.
        for part in map.range(ALL).collect::<Vec<_>>() {
            let whole = map.get(part.id).unwrap();
            assert!(whole.gfns.covers(&part.gfns) && !whole.is_private());
        }
    }
}
