//! A late zap: a whole harvest fits between the mark of a leaf's D and the CAS that zaps the leaf.
//!
//! ```text
//! zap                        harvest                     vCPU
//! loads leaf(D), marks                                   stored once
//!                            D cleared, mark taken
//!                            waits for the zap           stores: leaf(D) again
//! CAS leaf(D) → hole
//!                            flush; copy: both stores
//! ```

use super::*;
use crate::sync::prim::{AtomicBool, AtomicU64, SeqCst};
use crate::sync::tally::Count;
use crate::table::Version;
use crate::table::entry::Word;
use crate::table::formats::{Ept4NoAd, Npt4};
use crate::*;
use std::sync::mpsc::channel;
use std::thread::yield_now;

const SLOT: SlotId = SlotId(0);
const PAGE: Gfn = Gfn(9);

struct Identity;

impl Host for Identity {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }
}

/// Whether the second store is in no copy and in no log.
fn second_store_is_lost(dirty: DirtyLog) -> bool {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(Identity).dirty_log(dirty).build().unwrap();
    let slot = Slot::new(SLOT, Gfn(0), 64, Hva(0x4000_0000)).log_dirty();
    vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
    let (contents, copied) = (AtomicU64::new(1), AtomicBool::new(false));
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let _ = vcpu.fault(&mut idle, Fault { gpa: PAGE.gpa(), access: Access::Write }).unwrap();
    drop(vcpu);

    let (_, log) = vm.memory().look_up(SLOT).unwrap();
    let copy = std::thread::scope(|scope| {
        let (go, went) = channel();
        let (vm, contents, copied) = (&vm, &contents, &copied);
        let harvest = scope.spawn(move || {
            let mut idle = Idle::take().unwrap();
            went.recv().unwrap();
            vm.memory().harvest(&mut idle, SLOT).unwrap().commit();
            let copy = contents.load(SeqCst);
            copied.store(true, SeqCst);
            copy
        });
        let walk = Walk::<Npt4, _, Shared>::on_any_seat(vm, &vm.spaces[0], &mut idle);
        let (at, hole) = (walk.descend(PAGE), Word::hole(Version(1)));
        assert!(at.word.0 & Npt4::DIRTY != 0, "the first store");
        walk.keep_dirty((at.word, hole), at.level, PAGE);
        go.send(()).unwrap();
        let (_, bitmap) = current(&walk, log).unwrap();
        while at.entry.load() == at.word || bitmap.word(0) != 0 {
            yield_now();
        }
        // A thread that does not wait for this section ends at once. One that waits is given a bounded number of turns.
        let mut turns = 0;
        while !copied.load(SeqCst) && turns < 1000 {
            turns += 1;
            yield_now();
        }
        contents.store(2, SeqCst);
        at.entry.cas(at.entry.load(), at.word).expect("the hardware sets D");
        at.entry.cas(at.word, hole).expect("the zap cannot tell");
        walk.seat.tally.add(Count::removed(Level::K4));
        drop(walk);
        harvest.join().unwrap()
    });
    let harvest = vm.memory().harvest(&mut idle, SLOT).unwrap();
    let told = harvest.pages() > 0;
    harvest.commit();
    copy == 1 && !told
}

#[test]
fn a_store_is_told_though_its_leaf_is_zapped_late() {
    assert!(!second_store_is_lost(DirtyLog::bitmap().track(Track::DirtyBits)));
}

/// A VM whose slot of 4 MiB logs, and whose vCPU has stored to [`PAGE`].
fn stored(idle: &mut Idle, log: DirtyLog) -> Vm<Npt4, Identity> {
    let vm = Vm::<Npt4, _>::builder(Identity).dirty_log(log).build().unwrap();
    let slot = Slot::new(SLOT, Gfn(0), 1024, Hva(0x4000_0000)).log_dirty();
    vm.memory().commit(idle, |tx| tx.create(slot)).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let _ = vcpu.fault(idle, Fault { gpa: PAGE.gpa(), access: Access::Write }).unwrap();
    drop(vcpu);
    vm
}

fn pages(harvest: &Harvest<'_, Npt4, Identity>) -> Vec<Gfn> {
    harvest.iter().map(|page| page.gfn).collect()
}

#[test]
fn a_table_that_goes_leaves_its_dirty_pages_in_the_log() {
    let mut idle = Idle::take().unwrap();
    let vm = stored(&mut idle, DirtyLog::bitmap().track(Track::DirtyBits));
    vm.change(&mut idle, Span::sized(Hva(0x4000_0000), 4 << 20), Why::Unmap, |_| {});
    assert_eq!(vm.memory().translate(&mut idle, PAGE), None);
    let harvest = vm.memory().harvest(&mut idle, SLOT).unwrap();
    assert_eq!(pages(&harvest), [PAGE]);
    harvest.commit();
}

#[test]
fn a_harvest_that_is_dropped_leaves_its_pages_dirty() {
    let mut idle = Idle::take().unwrap();
    let vm = stored(&mut idle, DirtyLog::bitmap());
    for _ in 0..2 {
        assert_eq!(pages(&vm.memory().harvest(&mut idle, SLOT).unwrap()), [PAGE]);
    }
}

#[test]
fn pages_that_a_ring_reports_are_armed_again() {
    let mut idle = Idle::take().unwrap();
    let vm = stored(&mut idle, DirtyLog::ring(RingSize::new(4096).unwrap()));
    let harvest = vm.harvest_ring(&mut idle, VcpuId(0)).unwrap();
    assert_eq!(pages(&harvest), [PAGE]);
    harvest.commit();
    assert!(!vm.memory().translate(&mut idle, PAGE).unwrap().leaf.perms.allows(Access::Write));
}

/// Linux b64d740ea7dd was another way to lose stores to such a leaf.
#[test]
fn a_load_from_a_leaf_that_aging_withdrew_permits_no_store_that_the_log_misses() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Ept4NoAd, _>::builder(Identity).build().unwrap();
    let slot = Slot::new(SLOT, Gfn(0), 64, Hva(0x4000_0000));
    vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let _ = vcpu.fault(&mut idle, Fault { gpa: PAGE.gpa(), access: Access::Write }).unwrap();
    vm.age(&mut idle, slot.hvas(), &mut |_| ());
    vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(SLOT, true)).unwrap();
    let _ = vcpu.fault(&mut idle, Fault { gpa: PAGE.gpa(), access: Access::Read }).unwrap();
    let leaf = vm.memory().translate(&mut idle, PAGE).unwrap().leaf;
    assert!(leaf.accessed && !leaf.perms.allows(Access::Write), "{leaf:?}");
}
