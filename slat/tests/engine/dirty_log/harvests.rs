//! A harvest that is still held when its log, its slot or its pages change.

use super::subject::access;
use crate::common::identity::Identity;
use slat::table::formats::Ept4;
use slat::*;

const SLOT: SlotId = SlotId(1);
const OTHER: SlotId = SlotId(2);
const PAGES: u64 = 200;
const HVA: Hva = Hva(0x4000_0000);

type Vm = slat::Vm<Ept4, Identity>;

fn slot() -> Slot {
    Slot::new(SLOT, Gfn(0), PAGES, HVA).log_dirty()
}

fn vm(log: DirtyLog) -> (Idle, Vm) {
    let mut idle = Idle::take().unwrap();
    let builder = Vm::builder(Identity::default()).address_spaces(2).dirty_log(log);
    let vm = builder.build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(slot())).unwrap();
    (idle, vm)
}

fn store(vm: &Vm, idle: &mut Idle, gfns: &[u64]) {
    for &gfn in gfns {
        access(vm, idle, Gfn(gfn), Access::Write);
    }
}

fn pages(harvest: &Harvest<'_, Ept4, Identity>) -> Vec<(u32, u64)> {
    harvest.iter().map(|page| (page.slot.0, page.page)).collect()
}

/// Returns the frames in the slot's log.
fn logged(vm: &Vm, idle: &mut Idle) -> Result<Vec<u64>, DirtyError> {
    let mut gfns = Vec::new();
    vm.memory().dirty(idle, SLOT, |gfn| gfns.push(gfn.0))?;
    Ok(gfns)
}

#[test]
fn a_held_harvest_is_given_back_to_its_own_log() {
    let (mut idle, vm) = vm(DirtyLog::bitmap());
    store(&vm, &mut idle, &[0, 63, 64, 199]);
    let first = vm.memory().harvest(&mut idle, SLOT).unwrap();
    assert_eq!(pages(&first), [(1, 0), (1, 63), (1, 64), (1, 199)]);
    store(&vm, &mut idle, &[63, 70]);
    let second = vm.memory().harvest(&mut idle, SLOT).unwrap();
    assert_eq!(pages(&second), [(1, 63), (1, 70)]);
    assert_eq!(logged(&vm, &mut idle), Ok(vec![]));
    second.give_back();
    assert_eq!(logged(&vm, &mut idle), Ok(vec![63, 70]));
    drop(first);
    assert_eq!(logged(&vm, &mut idle), Ok(vec![0, 63, 64, 70, 199]));
    let again = vm.memory().harvest(&mut idle, SLOT).unwrap();
    assert_eq!(again.pages(), 5);
    again.commit();
    assert!(vm.memory().harvest(&mut idle, SLOT).unwrap().is_empty());
}

#[test]
fn a_slot_that_has_moved_gets_it_back_where_it_is() {
    let (mut idle, vm) = vm(DirtyLog::bitmap());
    store(&vm, &mut idle, &[5, 150]);
    let held = vm.memory().harvest(&mut idle, SLOT).unwrap();
    vm.memory().commit(&mut idle, |tx| tx.move_to(SLOT, Gfn(1000)).map(drop)).unwrap();
    assert_eq!(held.iter().map(|page| page.gfn.0).collect::<Vec<_>>(), [5, 150], "as it was harvested");
    assert_eq!(held.iter().map(|page| page.hva).collect::<Vec<_>>(), [HVA + 0x5000, HVA + 0x9_6000]);
    held.give_back();
    assert_eq!(logged(&vm, &mut idle), Ok(vec![1005, 1150]));
}

/// A log that has ended takes nothing back, and neither does another log of the same name.
#[test]
fn a_log_that_has_ended_gets_nothing_back() {
    type Deed = fn(&Vm, &mut Idle);
    let off_and_on: Deed = |vm, idle| {
        for on in [false, true] {
            vm.memory().commit(idle, |tx| tx.set_log_dirty(SLOT, on)).unwrap();
        }
    };
    let deleted_and_made_again: Deed = |vm, idle| {
        vm.memory().commit(idle, |tx| tx.delete(SLOT).map(drop)).unwrap();
        vm.memory().commit(idle, |tx| tx.create(slot())).unwrap();
    };
    let made_again_at_once: Deed = |vm, idle| {
        let smaller = Slot::new(SLOT, Gfn(7), 10, HVA).log_dirty();
        vm.memory()
            .commit(idle, |tx| {
                tx.delete(SLOT)?;
                tx.create(smaller)
            })
            .unwrap();
    };
    for (number, deed) in [off_and_on, deleted_and_made_again, made_again_at_once].into_iter().enumerate() {
        let (mut idle, vm) = vm(DirtyLog::bitmap());
        store(&vm, &mut idle, &[5, 150]);
        let held = vm.memory().harvest(&mut idle, SLOT).unwrap();
        deed(&vm, &mut idle);
        assert_eq!(logged(&vm, &mut idle), Ok(vec![]), "deed {number}: a fresh log");
        assert_eq!(held.pages(), 2, "what was harvested stays so");
        held.give_back();
        assert_eq!(logged(&vm, &mut idle), Ok(vec![]), "deed {number}");
    }
    let (mut idle, vm) = vm(DirtyLog::bitmap());
    store(&vm, &mut idle, &[5]);
    let held = vm.memory().harvest(&mut idle, SLOT).unwrap();
    vm.memory().commit(&mut idle, |tx| tx.delete(SLOT).map(drop)).unwrap();
    drop(held);
    assert_eq!(logged(&vm, &mut idle), Err(DirtyError::NoSuchSlot(SLOT)));
}

#[test]
fn all_logs_are_taken_together_slot_by_slot() {
    let (mut idle, vm) = vm(DirtyLog::bitmap());
    let silent = Slot::new(SlotId(5), Gfn(600), 50, HVA + (1 << 24));
    let other = Slot::new(OTHER, Gfn(400), 100, HVA + (2 << 24)).log_dirty();
    vm.memory()
        .commit(&mut idle, |tx| {
            tx.create(silent)?;
            tx.create(other)
        })
        .unwrap();
    store(&vm, &mut idle, &[499, 610, 3, 400, 120]);
    let flushes = vm.stats().flushes.paid;
    let harvest = vm.memory().harvest_all(&mut idle).unwrap();
    assert_eq!(vm.stats().flushes.paid - flushes, 1, "one flush for all");
    let mut told = pages(&harvest);
    assert!(told.chunk_by(|a, b| a.0 == b.0).count() == 2, "slot by slot: {told:?}");
    told.sort_unstable();
    assert_eq!(told, [(1, 3), (1, 120), (2, 0), (2, 99)]);
    // One of the two logs ends; the other gets its pages back.
    vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(OTHER, false)).unwrap();
    harvest.give_back();
    let harvest = vm.memory().harvest_all(&mut idle).unwrap();
    assert_eq!(pages(&harvest), [(1, 3), (1, 120)]);
}

#[test]
fn a_harvest_of_nothing_flushes_nothing() {
    let (mut idle, vm) = vm(DirtyLog::bitmap());
    store(&vm, &mut idle, &[1]);
    vm.memory().harvest_all(&mut idle).unwrap().commit();
    let flushes = vm.stats().flushes.paid;
    assert!(vm.memory().harvest(&mut idle, SLOT).unwrap().is_empty());
    assert!(vm.memory().harvest_all(&mut idle).unwrap().is_empty());
    assert_eq!(vm.memory().clear_dirty(&mut idle, SLOT, 0, PAGES, &[0; 4]), Ok(0));
    assert_eq!(vm.stats().flushes.paid, flushes);
}

/// By host address a write is logged wherever that is mapped: in every slot, in every address space.
#[test]
fn a_device_writes_to_all_aliases() {
    let (mut idle, vm) = vm(DirtyLog::bitmap());
    let alias = Slot::new(OTHER, Gfn(1000), 20, HVA + 10 * PAGE_SIZE).log_dirty();
    vm.memory().commit(&mut idle, |tx| tx.create(alias)).unwrap();
    let elsewhere = vm.space(SpaceId(1)).unwrap();
    elsewhere.commit(&mut idle, |tx| tx.create(Slot::new(SLOT, Gfn(50), PAGES, HVA).log_dirty())).unwrap();
    // The last byte of one page and the first of the next.
    let border = HVA + 12 * PAGE_SIZE;
    vm.mark_dirty(Span::new(Hva(border.0 - 1), border + 1));
    let harvest = vm.memory().harvest_all(&mut idle).unwrap();
    let mut told = pages(&harvest);
    told.sort_unstable();
    assert_eq!(told, [(1, 11), (1, 12), (2, 1), (2, 2)]);
    let harvest = elsewhere.harvest(&mut idle, SLOT).unwrap();
    assert_eq!(harvest.iter().map(|page| page.gfn.0).collect::<Vec<_>>(), [61, 62]);
    harvest.commit();

    // An address without a slot is not marked; a range partly inside a slot is.
    for hvas in
        [Span::new(HVA, HVA), Span::new(Hva(0), HVA), Span::new(HVA + PAGES * PAGE_SIZE, Hva(u64::MAX))]
    {
        vm.mark_dirty(hvas);
        assert!(elsewhere.harvest_all(&mut idle).unwrap().is_empty(), "{hvas:?}");
    }
    vm.mark_dirty(Span::new(Hva(0), Hva(u64::MAX)));
    assert_eq!(elsewhere.harvest_all(&mut idle).unwrap().pages(), PAGES);

    // By guest frame, only that frame's slot in this address space counts.
    vm.memory().harvest_all(&mut idle).unwrap().commit();
    vm.memory().mark_dirty(Span::new(Gfn(198), Gfn(1001)));
    assert_eq!(pages(&vm.memory().harvest_all(&mut idle).unwrap()), [(1, 198), (1, 199), (2, 0)]);
    vm.memory().mark_dirty(Span::new(Gfn(5), Gfn(5)));
    vm.memory().mark_dirty(Span::new(Gfn(5000), Gfn(u64::MAX)));
    vm.memory().harvest_all(&mut idle).unwrap().give_back();
    assert_eq!(vm.memory().harvest_all(&mut idle).unwrap().pages(), 3, "those of before, given back");
}
