//! Requests of programs that adopted the engine: cut memslots, transactions that an embedder refuses, dirty logs whose
//! rules change, rings that are read in two steps, marks by words.

use crate::common::identity::Identity;
use slat::slots::{CommitError, Rule};
use slat::table::formats::{Ept4, Npt4};
use slat::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

const RAM: SlotId = SlotId(0);
const HVA: Hva = Hva(0x4000_0000);

fn vm<F: Format>(pages: u64, dirty: DirtyLog) -> (Idle, Vm<F, Identity>) {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::builder(Identity::default()).dirty_log(dirty).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(RAM, Gfn(0), pages, HVA))).unwrap();
    (idle, vm)
}

fn store<F: Format>(vcpu: &mut Vcpu<'_, F, Identity>, idle: &mut Idle, gfn: u64) -> Next {
    vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Write }).unwrap()
}

fn mapped<F: Format>(vm: &Vm<F, Identity>, idle: &mut Idle) -> Vec<u64> {
    let mut gfns = Vec::new();
    vm.memory()
        .lockless(idle)
        .for_each(Span::new(Gfn(0), Gfn(1 << 20)), |leaf| gfns.extend(leaf.gfns.start.0..leaf.gfns.end.0));
    gfns
}

#[test]
fn a_slot_that_is_cut_keeps_what_stays_mapped() {
    let (mut idle, vm) = vm::<Npt4>(64, DirtyLog::bitmap());
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    (0..64).for_each(|gfn| {
        assert_eq!(store(&mut vcpu, &mut idle, gfn), Next::Resume(Resume::Mapped(Level::K4)));
    });
    vm.memory().commit(&mut idle, |tx| tx.cut(RAM, Span::new(Gfn(20), Gfn(30)), SlotId(1))).unwrap();
    assert!(mapped(&vm, &mut idle).into_iter().eq((0..20).chain(30..64)));
    assert_eq!(store(&mut vcpu, &mut idle, 19), Next::Resume(Resume::Spurious));
    assert_eq!(store(&mut vcpu, &mut idle, 20), Next::Emulate(Emulate::NoMemory));
    assert_eq!(store(&mut vcpu, &mut idle, 30), Next::Resume(Resume::Spurious));
    // The rest is a slot like any other: its pages are zapped with it, and those of the other slots stay.
    vm.memory().commit(&mut idle, |tx| tx.delete(SlotId(1))).unwrap();
    assert!(mapped(&vm, &mut idle).into_iter().eq(0..20));
    vm.memory().commit(&mut idle, |tx| tx.cut(RAM, Span::new(Gfn(0), Gfn(8)), RAM)).unwrap();
    assert!(mapped(&vm, &mut idle).into_iter().eq(8..20));
    // Its host addresses are unchanged.
    drop(vm.invalidate(Span::sized(HVA + 9 * PAGE_SIZE, PAGE_SIZE), Reason::Unmap).apply(&mut idle).settle());
    assert_eq!(vm.memory().translate(&mut idle, Gfn(9)), None);
    assert_eq!(store(&mut vcpu, &mut idle, 9), Next::Resume(Resume::Mapped(Level::K4)));
    assert_eq!(vm.memory().translate(&mut idle, Gfn(9)).unwrap().leaf.pfn, Pfn((HVA.0 >> PAGE_SHIFT) + 9));
}

#[test]
fn a_large_page_that_is_cut_is_split_and_loses_that_part_alone() {
    let (mut idle, vm) = vm::<Npt4>(1024, DirtyLog::bitmap());
    vm.host().offer(Level::M2);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for gfn in [5, 600] {
        assert_eq!(store(&mut vcpu, &mut idle, gfn), Next::Resume(Resume::Mapped(Level::M2)));
    }
    vm.memory().commit(&mut idle, |tx| tx.cut(RAM, Span::new(Gfn(100), Gfn(101)), SlotId(1))).unwrap();
    assert_eq!(vm.stats().leaves, [511, 1, 0]);
    assert!(mapped(&vm, &mut idle).into_iter().eq((0..100).chain(101..1024)));
    // Neither part is large enough for the page again.
    assert_eq!(vm.memory().recover(&mut idle, Span::new(Gfn(0), Gfn(512))), 0);
}

/// A vCPU uses all of a slot, which is cut and made whole again. What stays is mapped all the time; what is removed is
/// unmapped when the commit returns.
#[test]
fn a_slot_is_cut_beside_a_running_vcpu() {
    let (mut idle, vm) = vm::<Ept4>(256, DirtyLog::bitmap());
    let (ready, over) = (Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut idle, mut vcpu) = (Idle::take().unwrap(), vm.vcpu(VcpuId(0)).unwrap());
            (0..256).for_each(|gfn| _ = store(&mut vcpu, &mut idle, gfn));
            ready.wait();
            while !over.load(SeqCst) {
                (0..256).for_each(|gfn| _ = store(&mut vcpu, &mut idle, gfn));
            }
        });
        ready.wait();
        let (gone, upper) = (Span::new(Gfn(100), Gfn(140)), SlotId(1));
        for round in 0..if cfg!(miri) { 3 } else { 300 } {
            vm.memory().commit(&mut idle, |tx| tx.cut(RAM, gone, upper)).unwrap();
            for gfn in 100..140 {
                assert_eq!(vm.memory().translate(&mut idle, Gfn(gfn)), None, "round {round}");
            }
            for gfn in (0..100).chain(140..256) {
                assert!(
                    vm.memory().translate(&mut idle, Gfn(gfn)).is_some(),
                    "round {round}: frame {gfn} stayed"
                );
            }
            vm.memory()
                .commit(&mut idle, |tx| {
                    tx.delete(RAM)?;
                    tx.delete(upper)?;
                    tx.create(Slot::new(RAM, Gfn(0), 256, HVA))
                })
                .unwrap();
            while (0..256).any(|gfn| vm.memory().translate(&mut idle, Gfn(gfn)).is_none()) {
                thread::yield_now();
            }
        }
        over.store(true, SeqCst);
    });
}

/// A slot that logs is cut while a harvest of it is held. All frames that stay count as written, and are harvested
/// again, wherever their marks were. After that stores are logged as before.
fn cut_while_it_logs<F: Format>(dirty: DirtyLog) {
    let (mut idle, vm) = vm::<F>(256, dirty);
    vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(RAM, true)).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    (0..64).for_each(|gfn| _ = store(&mut vcpu, &mut idle, gfn * 3));
    let out = vm.memory().harvest_all(&mut idle).unwrap();
    (0..64).for_each(|gfn| _ = store(&mut vcpu, &mut idle, gfn * 3 + 1));
    vm.memory().commit(&mut idle, |tx| tx.cut(RAM, Span::new(Gfn(70), Gfn(90)), SlotId(1))).unwrap();
    assert!((0..70).chain(90..192).all(|gfn| vm.memory().is_dirty(Gfn(gfn))));
    out.give_back();
    let harvest = vm.memory().harvest_all(&mut idle).unwrap();
    assert!(harvest.iter().map(|page| page.gfn.0).eq((0..70).chain(90..256)));
    harvest.commit();
    assert_eq!(store(&mut vcpu, &mut idle, 75), Next::Emulate(Emulate::NoMemory));
    for gfn in [69, 90, 255] {
        let _ = store(&mut vcpu, &mut idle, gfn);
        // If the hardware sets D, the fault has had it set.
        assert_eq!(store(&mut vcpu, &mut idle, gfn), Next::Resume(Resume::Spurious));
    }
    let harvest = vm.memory().harvest_all(&mut idle).unwrap();
    let pages: Vec<_> = harvest.iter().map(|page| (page.slot, page.gfn.0)).collect();
    harvest.commit();
    assert_eq!(pages, [(RAM, 69), (SlotId(1), 90), (SlotId(1), 255)]);
}

#[test]
fn a_slot_that_logs_is_cut_and_no_mark_of_what_stays_is_lost() {
    cut_while_it_logs::<Npt4>(DirtyLog::bitmap());
    cut_while_it_logs::<Npt4>(DirtyLog::bitmap().initially_set());
    cut_while_it_logs::<Npt4>(DirtyLog::ring(RingSize::new(4096).unwrap()));
}

/// A TLB of one page.
struct OnePage<'t>(&'t std::cell::Cell<Option<Gfn>>);

impl Translations for OnePage<'_> {
    fn flush_all(&mut self) {
        self.0.set(None);
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        self.0.set(self.0.get().filter(|gfn| !gfns.contains(*gfn)));
    }
}

/// A vCPU stores while its slot is cut twice, and another thread copies harvested pages. When the vCPU has stopped, one
/// more harvest returns the stores that the copy of the remaining frames lacks.
#[test]
fn a_slot_that_logs_is_cut_beside_a_vcpu_that_stores_and_a_harvest() {
    const PAGES: usize = 32;
    for round in 0..if cfg!(miri) { 2 } else { 25 } {
        let (mut idle, vm) = vm::<Ept4>(PAGES as u64, DirtyLog::bitmap());
        vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(RAM, true)).unwrap();
        let [memory, copy] = [(); 2].map(|()| [const { AtomicU64::new(0) }; PAGES]);
        let over = AtomicBool::new(false);
        let harvest = |idle: &mut Idle| {
            let harvest = vm.memory().harvest_all(idle).unwrap();
            for page in harvest.iter() {
                copy[page.gfn.0 as usize].store(memory[page.gfn.0 as usize].load(SeqCst), SeqCst);
            }
            harvest.commit();
        };
        thread::scope(|scope| {
            let vcpu = scope.spawn(|| {
                let (mut idle, mut vcpu) = (Idle::take().unwrap(), vm.vcpu(VcpuId(0)).unwrap());
                let kept = std::cell::Cell::new(None);
                let mut tlb = OnePage(&kept);
                for gfn in (0..400).map(|nth| Gfn(nth * 5 % PAGES as u64)) {
                    let _ = store(&mut vcpu, &mut idle, gfn.0);
                    let found = vm.memory().translate(&mut idle, gfn);
                    kept.set(found.filter(|found| found.leaf.perms.allows(Access::Write)).map(|_| gfn));
                    let guest = vcpu.enter(&mut idle, &mut tlb).poll();
                    // A flush has removed what was taken since the translation.
                    if kept.get().is_some() {
                        memory[gfn.0 as usize].fetch_add(1, SeqCst);
                    }
                    drop(guest);
                }
            });
            let harvests = scope.spawn(|| {
                let mut idle = Idle::take().unwrap();
                while !over.load(SeqCst) {
                    harvest(&mut idle);
                }
            });
            (0..round * 2).for_each(|_| thread::yield_now());
            vm.memory().commit(&mut idle, |tx| tx.cut(RAM, Span::new(Gfn(20), Gfn(24)), SlotId(1))).unwrap();
            vm.memory().commit(&mut idle, |tx| tx.cut(RAM, Span::new(Gfn(0), Gfn(3)), RAM)).unwrap();
            vcpu.join().unwrap();
            over.store(true, SeqCst);
            harvests.join().unwrap();
        });
        harvest(&mut idle);
        let lacks = |gfn: &usize| copy[*gfn].load(SeqCst) != memory[*gfn].load(SeqCst);
        let lost: Vec<_> = (3..20).chain(24..PAGES).filter(lacks).collect();
        assert_eq!(lost, [0; 0], "round {round}");
    }
}

#[test]
fn a_transaction_that_the_embedder_refuses_changes_nothing() {
    let (mut idle, vm) = vm::<Npt4>(16, DirtyLog::bitmap());
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    (0..16).for_each(|gfn| _ = store(&mut vcpu, &mut idle, gfn));
    let (slots, before) = (vm.memory(), vm.memory().generation());
    let refused = slots.commit_with(&mut idle, |tx| tx.delete(RAM), |old| Err(old.gfns.len()));
    assert_eq!(refused, Err(CommitError::Refused(16)), "it sees the result of the operations");
    assert_eq!((slots.generation(), slots.len(), mapped(&vm, &mut idle).len()), (before, 1, 16));
    assert_eq!(store(&mut vcpu, &mut idle, 3), Next::Resume(Resume::Spurious));
    // A refused operation does not get there.
    let unasked =
        slots.commit_with(&mut idle, |tx| tx.delete(SlotId(7)), |_| -> Result<(), ()> { panic!("asked") });
    assert!(matches!(unasked, Err(CommitError::Slots(error)) if error.rule == Rule::Missing));
    // An operation that changes nothing does.
    assert_eq!(slots.commit_with(&mut idle, |_| Ok(()), |()| Err(5)), Err(CommitError::Refused(5)));
    assert_eq!(slots.commit_with(&mut idle, |tx| tx.delete(RAM), |_| Ok::<_, ()>(())).unwrap().id, RAM);
    assert_eq!(mapped(&vm, &mut idle), []);
}

/// Returns the result of a fault on a slot that is being deleted, during the embedder's operation.
fn fault_meanwhile(by_confirm: bool) -> Next {
    let (mut idle, vm) = vm::<Npt4>(16, DirtyLog::bitmap());
    let (begun, faulting) = (Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        let fault = scope.spawn(|| {
            let (mut idle, mut vcpu) = (Idle::take().unwrap(), vm.vcpu(VcpuId(0)).unwrap());
            begun.wait();
            faulting.store(true, SeqCst);
            store(&mut vcpu, &mut idle, 3)
        });
        // The other MMU has lost the slot already.
        let ioctl = || {
            begun.wait();
            while !faulting.load(SeqCst) {
                thread::yield_now();
            }
            let limit = if by_confirm { 100 } else { 60_000 };
            (0..limit)
                .take_while(|_| !fault.is_finished())
                .for_each(|_| thread::sleep(Duration::from_millis(1)));
        };
        if by_confirm {
            let asked = |_: &Slot| {
                ioctl();
                Ok::<_, ()>(())
            };
            vm.memory().commit_with(&mut idle, |tx| tx.delete(RAM), asked).unwrap();
        } else {
            vm.memory().commit(&mut idle, |tx| tx.delete(RAM).map(|_| ioctl())).unwrap();
        }
        fault.join().unwrap()
    })
}

#[test]
fn a_fault_beside_the_embedders_operation_waits_for_its_end() {
    assert_eq!(fault_meanwhile(true), Next::Emulate(Emulate::NoMemory));
}

#[test]
fn negative_control_beside_an_operation_of_the_transaction_it_maps_what_goes() {
    assert_eq!(fault_meanwhile(false), Next::Resume(Resume::Mapped(Level::K4)));
}

#[test]
fn logs_that_begin_later_begin_as_it_was_said_last() {
    let (mut idle, vm) = vm::<Ept4>(200, DirtyLog::bitmap());
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let log = |idle: &mut Idle, on| vm.memory().commit(idle, |tx| tx.set_log_dirty(RAM, on)).unwrap();
    let count = |idle: &mut Idle| {
        let harvest = vm.memory().harvest(idle, RAM).unwrap();
        let pages = harvest.pages();
        harvest.commit();
        pages
    };
    let _ = store(&mut vcpu, &mut idle, 3);
    log(&mut idle, true);
    vm.set_dirty_log(&mut idle, DirtyLog::bitmap().initially_set()).unwrap();
    assert_eq!(count(&mut idle), 0, "a log that has begun stays as it is");
    log(&mut idle, false);
    log(&mut idle, true);
    assert_eq!(count(&mut idle), 200);
    assert_eq!(
        store(&mut vcpu, &mut idle, 3),
        Next::Resume(Resume::Fixed),
        "tracked from its first harvest on"
    );
    assert_eq!(count(&mut idle), 1);
    vm.set_dirty_log(&mut idle, DirtyLog::bitmap()).unwrap();
    log(&mut idle, false);
    let _ = store(&mut vcpu, &mut idle, 4);
    log(&mut idle, true);
    assert_eq!(count(&mut idle), 0);
    assert_eq!(store(&mut vcpu, &mut idle, 4), Next::Resume(Resume::Fixed), "armed when it began");
    assert_eq!(count(&mut idle), 1);
    assert_eq!(
        vm.set_dirty_log(&mut idle, DirtyLog::bitmap().track(Track::DirtyBits)),
        Err(DirtyError::Fixed)
    );
}

#[test]
fn rings_come_to_a_vm_that_logs_already() {
    let (mut idle, vm) = vm::<Ept4>(600, DirtyLog::bitmap());
    vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(RAM, true)).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let _ = store(&mut vcpu, &mut idle, 7);
    let rings = DirtyLog::ring(RingSize::new(4096).unwrap());
    assert_eq!(vm.set_dirty_log(&mut idle, rings), Err(DirtyError::VcpuTaken));
    assert_eq!(vm.harvest_ring(&mut idle, VcpuId(0)).unwrap_err(), DirtyError::NoRing, "nothing has changed");
    drop(vcpu);
    vm.set_dirty_log(&mut idle, rings).unwrap();
    vm.set_dirty_log(&mut idle, rings).expect("they are so already");
    let larger = DirtyLog::ring(RingSize::new(8192).unwrap());
    assert_eq!(vm.set_dirty_log(&mut idle, larger), Err(DirtyError::Fixed));
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    assert_eq!(store(&mut vcpu, &mut idle, 7), Next::Resume(Resume::Spurious), "writable since before");
    let _ = store(&mut vcpu, &mut idle, 9);
    assert_eq!(vm.memory().harvest(&mut idle, RAM).unwrap_err(), DirtyError::RingOnly);
    let mut told = Vec::new();
    vm.collect_ring(&mut idle, VcpuId(0), |page| told.push(page.gfn.0)).unwrap();
    assert_eq!(told, [9]);
    let harvest = vm.memory().harvest_all(&mut idle).unwrap();
    assert!(harvest.iter().map(|page| page.gfn.0).eq([7, 9]), "marks of before, too");
    harvest.commit();
}

#[test]
fn collected_pages_are_clean_after_the_reset() {
    let ring = DirtyLog::ring(RingSize::new(4096).unwrap());
    let (mut idle, vm) = vm::<Ept4>(600, ring);
    vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(RAM, true)).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let collect = |idle: &mut Idle| {
        let mut told = Vec::new();
        let count = vm.collect_ring(idle, VcpuId(0), |page| told.push(page.gfn.0)).unwrap();
        assert_eq!(count, told.len() as u64);
        told
    };
    let gfns = (0..192).map(|nth| (nth * 5) % 192);
    gfns.clone().for_each(|gfn| {
        assert_eq!(store(&mut vcpu, &mut idle, gfn), Next::Resume(Resume::Mapped(Level::K4)));
    });
    assert!(collect(&mut idle).into_iter().eq(gfns), "in the order of the stores");
    assert_eq!(store(&mut vcpu, &mut idle, 300), Next::Leave(Leave::RingFull), "told, not reset: no room");
    assert!(
        vm.memory().translate(&mut idle, Gfn(5)).unwrap().leaf.perms.allows(Access::Write),
        "still writable"
    );
    assert_eq!((collect(&mut idle), vm.collected_not_reset(&mut idle, VcpuId(0))), (vec![], Ok(192)));
    let before = vm.stats().flushes.paid;
    assert_eq!(vm.reset_rings(&mut idle), Ok(192));
    assert_eq!(vm.stats().flushes.paid - before, 1);
    assert_eq!(store(&mut vcpu, &mut idle, 5), Next::Resume(Resume::Fixed), "logged again");
    assert_eq!(store(&mut vcpu, &mut idle, 300), Next::Resume(Resume::Mapped(Level::K4)));
    assert_eq!(collect(&mut idle), [5, 300]);
    // The log ends between the steps: there is nothing to clean, and the room is free.
    let _ = store(&mut vcpu, &mut idle, 301);
    vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(RAM, false)).unwrap();
    assert_eq!(collect(&mut idle), [], "page 301 is of a log that has ended");
    assert_eq!(vm.reset_rings(&mut idle), Ok(3));
    assert_eq!((vm.reset_rings(&mut idle), vm.collected_not_reset(&mut idle, VcpuId(0))), (Ok(0), Ok(0)));
    assert_eq!(vm.collect_ring(&mut idle, VcpuId(1), |_| ()), Err(DirtyError::NoSuchVcpu(VcpuId(1))));
}

#[test]
fn a_part_of_what_is_collected_is_reset_and_the_rest_stays_written() {
    let ring = DirtyLog::ring(RingSize::new(4096).unwrap());
    let (mut idle, vm) = vm::<Ept4>(600, ring);
    vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(RAM, true)).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for log in 0..2 {
        for gfn in [1, 2, 3] {
            let _ = store(&mut vcpu, &mut idle, gfn);
        }
        if log == 0 {
            // Another log: entries of the first one no longer match, and are not counted.
            vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(RAM, false)).unwrap();
            vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(RAM, true)).unwrap();
        }
    }
    let told = vm.collect_ring(&mut idle, VcpuId(0), |_| ());
    assert_eq!((told, vm.collected_not_reset(&mut idle, VcpuId(0))), (Ok(3), Ok(6)));
    assert_eq!(vm.reset_rings_in_part(&mut idle, |_| 0), Ok(3), "those of before");
    assert_eq!(vm.reset_rings_in_part(&mut idle, |_| 2), Ok(2));
    let writable =
        |idle: &mut _, gfn| vm.memory().translate(idle, Gfn(gfn)).unwrap().leaf.perms.allows(Access::Write);
    assert_eq!([1, 2, 3].map(|gfn| writable(&mut idle, gfn)), [false, false, true]);
    assert_eq!(store(&mut vcpu, &mut idle, 1), Next::Resume(Resume::Fixed), "logged again");
    assert_eq!(vm.reset_rings(&mut idle), Ok(1));
    assert!(!writable(&mut idle, 3));
}

#[test]
fn words_mark_the_pages_that_they_say_and_none_beyond_the_slot() {
    let (mut idle, vm) = vm::<Ept4>(100, DirtyLog::bitmap());
    let slots = vm.memory();
    assert_eq!(slots.mark_dirty_bits(RAM, 0, &[1]), Err(DirtyError::NotLogged(RAM)));
    slots.commit(&mut idle, |tx| tx.set_log_dirty(RAM, true)).unwrap();
    slots.mark_dirty_bits(RAM, 0, &[1 << 63 | 1]).unwrap();
    slots.mark_dirty_bits(RAM, 64, &[u64::MAX << 35, u64::MAX, 7]).unwrap();
    let mut dirty = Vec::new();
    slots.dirty(&mut idle, RAM, |gfn| dirty.push(gfn.0)).unwrap();
    assert_eq!(dirty, [0, 63, 99]);
    assert!((0..200).all(|gfn| slots.is_dirty(Gfn(gfn)) == dirty.contains(&gfn)));
    assert_eq!(slots.mark_dirty_bits(RAM, 1, &[1]), Err(DirtyError::Misaligned { id: RAM, first: 1 }));
    let beyond = DirtyError::Range { id: RAM, first: 128, pages: 64, of: 100 };
    assert_eq!(slots.mark_dirty_bits(RAM, 128, &[1]), Err(beyond));
    assert_eq!(slots.mark_dirty_bits(SlotId(5), 0, &[1]), Err(DirtyError::NoSuchSlot(SlotId(5))));
}

#[test]
fn a_page_is_dirty_by_its_leaf_or_by_its_mark() {
    let (mut idle, vm) = vm::<Ept4>(100, DirtyLog::bitmap().track(Track::DirtyBits));
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(RAM, true)).unwrap();
    let _ = store(&mut vcpu, &mut idle, 5);
    vm.memory().mark_dirty(Span::sized(Gfn(7), 1));
    let dirty = || (0..100).filter(|gfn| vm.memory().is_dirty(Gfn(*gfn))).collect::<Vec<_>>();
    assert_eq!(dirty(), [5, 7]);
    drop(vm.memory().invalidate(Span::sized(Gfn(5), 1), Reason::Unmap).apply(&mut idle).settle());
    assert_eq!(dirty(), [5, 7], "its D bit outlives its leaf");
    vm.memory().harvest(&mut idle, RAM).unwrap().commit();
    assert_eq!(dirty(), []);
}
