//! Tests of a leaf that was read before its slot was replaced by one that begins inside the leaf.

use crate::table::formats::Npt4;
use crate::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

/// A host that backs everything by read-only pages of 2 MiB.
struct Huge;

impl Host for Huge {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), level: Level::M2, writable: false, ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Err(HostError::Fault)
    }
}

fn slot(gfn: u64, pages: u64) -> Slot {
    Slot::new(SlotId(0), Gfn(gfn), pages, Hva(0x4000_0000))
}

/// Reads a leaf of 2 MiB of slot 0, replaces the slot by one with the upper half, then faults on the leaf by a store. No
/// address is computed that the slot does not have: test builds check for overflow.
#[test]
fn a_leaf_that_reaches_out_of_its_slot_is_not_upgraded() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(Huge).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(slot(0, 512))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let fault = |access| Fault { gpa: Gfn(300).gpa(), access };
    assert_eq!(vcpu.fault(&mut idle, fault(Access::Read)), Ok(Next::Resume(Resume::Mapped(Level::M2))));
    let before = vm.memory().generation().number();
    thread::scope(|scope| {
        let walk = vm.memory().shared(&mut idle);
        let at = walk.descend(Gfn(300)); // as an attempt does
        scope.spawn(|| {
            let replaced = vm.memory().commit(&mut Idle::take().unwrap(), |tx| {
                tx.delete(SlotId(0))?;
                tx.create(slot(256, 256))
            });
            replaced.unwrap();
        });
        while vm.memory().generation().number() == before {
            thread::yield_now();
        }
        assert!(vcpu.present(&walk, at, fault(Access::Write)).is_ok());
    });
}

/// A host that sleeps before it makes a page writable. While `changes` is set, its page is withdrawn again after it has
/// answered; then it has no page to write.
#[derive(Default)]
struct Asked {
    vm: std::sync::OnceLock<std::sync::Weak<Vm<Npt4, Asked>>>,
    writable: AtomicBool,
    knows: AtomicBool,
    changes: AtomicBool,
    looks: AtomicU64,
    asks: AtomicU64,
}

impl Host for Asked {
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        self.looks.fetch_add(1, SeqCst);
        let writable = self.writable.load(SeqCst);
        let page = HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), writable, ..HostPage::PLAIN };
        (self.knows.load(SeqCst) && page.allows(access)).then_some(page)
    }

    fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        let page = HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), writable: false, ..HostPage::PLAIN };
        if access != Access::Write {
            return Ok(page);
        }
        if self.asks.fetch_add(1, SeqCst) > 0 && self.changes.load(SeqCst) {
            return Err(HostError::Fault);
        }
        if self.changes.load(SeqCst) {
            let vm = self.vm.get().unwrap().upgrade().unwrap();
            drop(vm.invalidate(Span::sized(hva, 1), Reason::Protect).apply(idle).settle());
        } else {
            self.writable.store(true, SeqCst);
        }
        Ok(HostPage { writable: true, ..page })
    }
}

/// Eight pages, mapped to read.
fn asked(host: Asked) -> (Idle, std::sync::Arc<Vm<Npt4, Asked>>) {
    let mut idle = Idle::take().unwrap();
    let vm = std::sync::Arc::new(Vm::<Npt4, _>::builder(host).build().unwrap());
    vm.host().vm.set(std::sync::Arc::downgrade(&vm)).unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(slot(0, 8))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for gfn in 0..8 {
        let _ = vcpu.fault(&mut idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Read }).unwrap();
    }
    vm.host().looks.store(0, SeqCst);
    drop(vcpu);
    (idle, vm)
}

/// Stores to each of the pages. Returns how often the host was asked, without sleeping and otherwise.
fn stored(knows: bool) -> (u64, u64) {
    let (mut idle, vm) = asked(Asked { knows: knows.into(), ..Asked::default() });
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let flushes = vm.stats().flushes;
    for gfn in 0..8 {
        vm.host().writable.store(false, SeqCst);
        let store = Fault { gpa: Gfn(gfn).gpa(), access: Access::Write };
        assert_eq!(vcpu.fault(&mut idle, store), Ok(Next::Resume(Resume::Fixed)));
    }
    let stats = vm.stats();
    assert_eq!((stats.retries_by.lost, stats.permission_faults, stats.flushes), (0, 8, flushes));
    (vm.host().looks.load(SeqCst), vm.host().asks.load(SeqCst))
}

#[test]
fn a_page_that_the_host_must_be_asked_for_is_upgraded_by_the_first_answer() {
    assert_eq!(stored(true), (8, 8));
    // This host never answers without sleeping.
    assert_eq!(stored(false), (8, 8));
}

/// The host answers that a page may be written, and withdraws that before the fault goes on.
#[test]
fn an_answer_from_before_an_invalidation_upgrades_nothing() {
    let (mut idle, vm) = asked(Asked { changes: true.into(), knows: true.into(), ..Asked::default() });
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let _ = vcpu.fault(&mut idle, Fault { gpa: Gfn(5).gpa(), access: Access::Write });
    drop(vcpu);
    let mapped = vm.memory().translate(&mut idle, Gfn(5));
    assert!(!mapped.is_some_and(|mapped| mapped.leaf.perms.allows(Access::Write)));
}

/// A host whose page of 2 MiB falls into small ones when it answers, of which page 1 is read-only.
struct Falls {
    fallen: AtomicBool,
    asked: std::sync::mpsc::SyncSender<()>,
    ended: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
}

impl Host for Falls {
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        let fallen = self.fallen.load(SeqCst);
        let level = if fallen { Level::K4 } else { Level::M2 };
        let page = HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), level, writable: fallen, ..HostPage::PLAIN };
        page.allows(access).then_some(page)
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        let page = HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), level: Level::M2, ..HostPage::PLAIN };
        self.fallen.store(true, SeqCst);
        self.asked.send(()).unwrap();
        self.ended.lock().unwrap().recv().unwrap();
        Ok(page)
    }
}

/// A store to page 0 of a large leaf asks the host while page 1 is being withdrawn. The change ends after the answer.
/// The leaf of page 1 gets no write permission.
#[test]
fn an_answer_beside_a_change_of_the_leaf_is_about_a_part() {
    let mut idle = Idle::take().unwrap();
    let (asked, was_asked) = std::sync::mpsc::sync_channel(1);
    let (end, ended) = std::sync::mpsc::sync_channel(1);
    let host = Falls { fallen: false.into(), asked, ended: ended.into() };
    let vm = Vm::<Npt4, _>::builder(host).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(slot(0, 512))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let fault = |access| Fault { gpa: Gpa(0), access };
    assert_eq!(vcpu.fault(&mut idle, fault(Access::Read)), Ok(Next::Resume(Resume::Mapped(Level::M2))));
    // It changes nothing here: the leaf is read-only.
    let change = vm.invalidate(Span::sized(Hva(0x4000_1000), 1), Reason::Protect);
    thread::scope(|scope| {
        scope.spawn(move || {
            was_asked.recv().unwrap();
            drop(change);
            end.send(()).unwrap();
        });
        let seat = vcpu.awake();
        vcpu.ask(&mut idle, fault(Access::Write), (super::super::By::GUEST, seat), &mut false).unwrap();
    });
    drop(vcpu);
    let mapped = vm.memory().translate(&mut idle, Gfn(1));
    assert!(!mapped.is_some_and(|mapped| mapped.leaf.perms.allows(Access::Write)));
}
