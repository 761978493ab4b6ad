//! The baseline beside a plain model: a slow or wrong one would prove nothing.

use crate::scenarios::memslot::array::array_host::{Adapter, EXISTS, LIMIT, MISSING, OVERLAPS, Refused};
use crate::scenarios::memslot::array::{Array, IDS, Record};
use crate::scenarios::memslot::slot_design::{Design, Machine};
use crate::scenarios::prelude::*;
use fastrand::Rng;
use slat::Gpa;
use std::collections::BTreeMap;

/// Slots by id, searched from end to end.
#[derive(Default)]
struct Model(BTreeMap<u32, Slot>);

impl Model {
    fn refuses(&self, slot: &Slot) -> Option<Refused> {
        if slot.id.0 >= IDS || slot.gfns.is_empty() {
            return Some(LIMIT);
        }
        let overlaps = |other: &&Slot| other.id != slot.id && other.gfns.overlaps(&slot.gfns);
        self.0.values().find(overlaps).map(|_| OVERLAPS)
    }

    fn find(&self, gfn: Gfn) -> Option<Slot> {
        self.0.values().find(|slot| slot.gfns.contains(gfn)).copied()
    }

    fn over_hvas(&self, hvas: Span<Hva>) -> Vec<Span<Gfn>> {
        let pages = |slot: &Slot| (0..slot.gfns.len()).map(|page| slot.gfns.start + page).collect::<Vec<_>>();
        let meets = |slot: &Slot, gfn: &Gfn| Span::sized(slot.hva_of(*gfn), PAGE_SIZE).overlaps(&hvas);
        let behind = |slot: &Slot| pages(slot).into_iter().filter(|gfn| meets(slot, gfn)).collect::<Vec<_>>();
        let spans = self.0.values().map(behind).filter(|gfns| !gfns.is_empty());
        sorted(spans.map(|gfns| Span::new(gfns[0], gfns[gfns.len() - 1] + 1)))
    }
}

fn sorted(spans: impl Iterator<Item = Span<Gfn>>) -> Vec<Span<Gfn>> {
    let mut spans: Vec<_> = spans.collect();
    spans.sort_by_key(|span| (span.start, span.end));
    spans
}

/// Every answer of the array is the model's.
fn assert_agree(array: &Array, model: &Model, random: &mut Rng) {
    assert!(array.records().is_sorted_by(|a, b| a.first() > b.first()), "descending");
    assert_eq!(array.records().len(), model.0.len());
    for id in (0..40).chain([IDS - 1, IDS, u32::MAX]) {
        assert_eq!(array.get(SlotId(id)).map(Record::slot), model.0.get(&id).copied(), "id {id}");
    }
    for _ in 0..8 {
        let gfn = Gfn(random.u64(..400));
        // Twice: the second one is the last one found.
        for _ in 0..2 {
            assert_eq!(array.find(gfn).map(Record::slot), model.find(gfn), "{gfn:?}");
        }
        let hvas = Span::sized(Hva(random.u64(..100 * PAGE_SIZE)), 1 + random.u64(..9 * PAGE_SIZE));
        assert_eq!(sorted(array.over_hvas(hvas)), model.over_hvas(hvas), "{hvas:?}");
    }
}

#[test]
fn random_changes_agree_with_the_model() {
    let (mut array, mut next, mut model) = (Array::default(), Array::default(), Model::default());
    let (mut random, mut done) = (Rng::with_seed(1), [0; 3]);
    for _ in 0..4_000 {
        let id = SlotId(random.u64(..40) as u32);
        let gfn = Gfn(random.u64(..400));
        let (what, made) = match random.u64(..3) {
            0 => {
                let hva = Hva(random.u64(..90) * PAGE_SIZE);
                let slot = Slot::new(id, gfn, random.u64(..12), hva);
                let refused = model.refuses(&slot).or(model.0.contains_key(&id.0).then_some(EXISTS));
                assert_eq!(array.check_new(&slot).err(), refused);
                (0, refused.is_none().then_some((None, Some(slot))))
            }
            1 => {
                let moved = model.0.get(&id.0).map(|old| Slot::new(id, gfn, old.gfns.len(), old.hva));
                let refused = moved.map_or(Some(MISSING), |slot| model.refuses(&slot));
                let place = array.check_move(id, gfn);
                assert_eq!(place.err(), refused);
                (1, place.ok().map(|(place, _)| (Some(place), moved)))
            }
            _ => (2, array.place_of(id).map(|place| (Some(place), None))),
        };
        if let Some((out, new)) = made {
            next.copy(&array, out, new.map(|slot| Record::new(&slot)));
            std::mem::swap(&mut array, &mut next);
            done[what] += 1;
            match new {
                Some(slot) => drop(model.0.insert(id.0, slot)),
                None => drop(model.0.remove(&id.0)),
            }
        }
        assert_agree(&array, &model, &mut random);
    }
    assert!(done.iter().all(|&done| done > 200), "enough of each is done: {done:?}");
}

#[test]
fn the_array_can_be_full() {
    let slot = |id: u32| Slot::new(SlotId(id), Gfn(u64::from(id)), 1, Hva(0));
    let (mut array, mut full) = (Array::default(), Array::default());
    full.fill(&array, (0..IDS).map(|id| Record::new(&slot(id))));
    assert_eq!(full.check_new(&slot(IDS)), Err(LIMIT));
    assert_eq!(full.place_of(SlotId(0)), Some(IDS as usize - 1));
    for (out, new) in [(SlotId(0), Gfn(u64::from(IDS))), (SlotId(IDS - 1), Gfn(u64::from(IDS) + 1))] {
        let (place, moved) = full.check_move(out, new).unwrap();
        array.copy(&full, Some(place), Some(moved));
        std::mem::swap(&mut array, &mut full);
        assert!((0..IDS).all(|id| full.get(SlotId(id)).is_some_and(|record| record.id() == id as usize)));
    }
}

/// A VM with 64 pages of memory, and two slots of 8 pages that share the first 8.
fn with_aliases(test: impl FnOnce(&Machine<Adapter>, &mut Idle)) {
    let setting = &Setting { vcpus: 1, ..setting(NONE) };
    let memory = SimHost::filled(64, &setting.work);
    let vm = &Adapter::machine(memory, setting, 1, |builder| builder).unwrap();
    let idle = &mut Idle::take().unwrap();
    Adapter::create(vm, idle, Slot::new(SlotId(1), Gfn(8), 8, BASE)).unwrap();
    Adapter::create(vm, idle, Slot::new(SlotId(2), Gfn(100), 8, BASE)).unwrap();
    test(vm, idle);
}

fn fault(vm: &Machine<Adapter>, idle: &mut Idle, gfn: u64) -> bool {
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    vcpu.fault(idle, Fault { gpa: Gpa(gfn << 12), access: Access::Write }).is_ok()
}

#[test]
fn the_array_has_one_reader() {
    let setting = &setting(NONE);
    let refused = Adapter::machine(SimHost::new(1, &setting.work), setting, 1, |builder| builder).err();
    assert_eq!(refused.unwrap(), "2 vCPUs are too many for this design: 1 at most");
}

#[test]
fn every_alias_of_a_page_goes() {
    with_aliases(|vm, idle| {
        assert!(fault(vm, idle, 9) && fault(vm, idle, 101) && fault(vm, idle, 102));
        let frame =
            |idle: &mut Idle, gfn| vm.memory().translate(idle, Gfn(gfn)).map(|mapping| mapping.leaf.pfn);
        let (first, second) = (first_page(Gfn(1)).pfn, first_page(Gfn(2)).pfn);
        assert_eq!([9, 101, 102].map(|gfn| frame(idle, gfn)), [Some(first), Some(first), Some(second)]);
        Adapter::take_away(vm, idle, hvas_of(Span::sized(Gfn(1), 1)));
        assert_eq!([9, 101, 102].map(|gfn| frame(idle, gfn)), [None, None, Some(second)]);
        assert!(fault(vm, idle, 9));
        assert_eq!(frame(idle, 9), Some(other_page(Gfn(1)).pfn), "it came back as its other frame");
    });
}

#[test]
fn what_a_slot_mapped_goes_with_it() {
    with_aliases(|vm, idle| {
        assert!(fault(vm, idle, 9) && fault(vm, idle, 100));
        Adapter::move_to(vm, idle, SlotId(1), Gfn(10)).unwrap();
        assert_eq!(vm.memory().translate(idle, Gfn(9)), None, "moved, over its own old place");
        assert!(!fault(vm, idle, 9) && fault(vm, idle, 10));
        let place = vm.host().slots.writer().current().place_of(SlotId(2)).unwrap();
        super::replace(vm, idle, place, None);
        assert_eq!(vm.memory().translate(idle, Gfn(100)), None);
        assert!(!fault(vm, idle, 100));
        assert_eq!(vm.stats().leaves, [1, 0, 0]);
        assert!(Adapter::move_to(vm, idle, SlotId(2), Gfn(0)).is_err());
        assert!(
            Adapter::create(vm, idle, Slot::new(SlotId(2), Gfn(17), 1, BASE)).is_err(),
            "there is slot 1"
        );
    });
}
