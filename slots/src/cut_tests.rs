//! Slots are cut at random: what they lose is told, and what stays is not.

use crate::addr::{Gfn, Hva, Span};
use crate::map::SlotMap;
use crate::rules::Rule;
use crate::seeded;
use crate::slot::{Slot, SlotId};
use std::collections::BTreeMap;
use std::vec::Vec;

const ALL: Span<Gfn> = Span::new(Gfn(0), Gfn(u64::MAX));

/// The host address of each frame.
fn frames(map: &SlotMap<()>) -> BTreeMap<u64, Hva> {
    let of = |slot: Slot| (slot.gfns.start.0..slot.gfns.end.0).map(move |gfn| (gfn, slot.hva_of(Gfn(gfn))));
    map.range(ALL).flat_map(of).collect()
}

/// The cuts until a frame is lost and not told of, or told of and not lost.
fn wrong_after(cuts: u64) -> Option<u64> {
    let mut map = SlotMap::<()>::default();
    let mut random = fastrand::Rng::with_seed(7);
    for cut in 1..=cuts {
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
        // SAFETY: left over by this map; there is no reader.
        unsafe { map.reclaim(leftovers) };
        map.done(effects);
        map.audit();
        let after = frames(&map);
        for (gfn, hva) in &before {
            let told = zapped.iter().any(|gfns| gfns.contains(Gfn(*gfn)));
            assert_eq!(gone.contains(Gfn(*gfn)), !after.contains_key(gfn));
            if told == after.contains_key(gfn) {
                return Some(cut);
            }
            assert!(after.get(gfn).is_none_or(|now| now == hva), "what stays is where it was");
        }
        assert!(after.keys().all(|gfn| before.contains_key(gfn)));
    }
    None
}

#[test]
fn what_a_cut_slot_loses_is_told_and_nothing_else() {
    assert_eq!(wrong_after(if cfg!(miri) { 40 } else { 3_000 }), None);
}

#[test]
fn mistake_what_is_cut_out_is_not_told() {
    let cuts = seeded::with("cut-unzapped", || wrong_after(100)).expect("frames were lost, and not told of");
    std::println!("SEEDED cut-unzapped Unit {cuts}");
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
    assert_eq!(cut(1, 32, 33, 7).rule, Rule::Logs);
    assert_eq!(cut(2, 32, 33, 7).rule, Rule::Missing);
    assert_eq!(
        cut(1, 32, 33, 7).to_string(),
        "memslot 1 at 0x1e000..0x28000: it logs writes: switch the log off to cut it"
    );
    assert_eq!(frames(&map), before);
    // At an end nothing is left over, so the id of the rest does not count.
    map.commit(|tx| tx.cut(SlotId(0), Span::new(Gfn(10), Gfn(12)), SlotId(0))).unwrap();
    map.commit(|tx| tx.cut(SlotId(1), Span::new(Gfn(30), Gfn(40)), SlotId(0))).expect("all of it: deleted");
    assert_eq!(map.range(ALL).map(|slot| slot.gfns).collect::<Vec<_>>(), [Span::new(Gfn(12), Gfn(20))]);
}
