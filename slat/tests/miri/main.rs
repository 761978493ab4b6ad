//! Small worlds, with threads, for Miri: it checks each access against the memory model and the aliasing rules.
//! `cargo xtask miri` runs them with many seeds, under Tree Borrows, without `std` and so without the locks of
//! `parking_lot`, which make pointers of numbers. As ordinary tests they take no time.
//!
//! The host here keeps the pointers of its table pages, and makes none of a number. So Miri knows of each pointer what it
//! may access.

use slat::nested::{EptFeatures, EptTable, L1Access};
use slat::notify::{Event, SecondaryMmu, Young};
use slat::table::formats::{Ept4NoAd, Npt4};
use slat::table::{Heap, Own, TableMemory, TablesOf, Word};
use slat::*;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, RwLock};
use std::thread;

/// Host address of RAM, in the first words of which L1's tables lie.
const HVA: Hva = Hva(0x4000_0000);
const PAGES: u64 = 8;

/// Lends chunks, or single pages, and knows them by frame.
struct Machine<const SINGLE: bool> {
    pages: RwLock<BTreeMap<Pfn, Page>>,
    words: Vec<AtomicU64>,
}

#[derive(Clone, Copy)]
struct Page(NonNull<u8>);

// SAFETY: the engine says which thread uses a page.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

fn frame(page: NonNull<u8>) -> Pfn {
    Pfn(page.as_ptr().addr() as u64 >> PAGE_SHIFT)
}

impl<const SINGLE: bool> Machine<SINGLE> {
    fn new() -> Self {
        Self { pages: RwLock::default(), words: (0..PAGES * 512).map(|_| AtomicU64::new(0)).collect() }
    }

    fn word(&self, hva: Hva) -> &AtomicU64 {
        &self.words[((hva.0 - HVA.0) / 8) as usize]
    }
}

// SAFETY: the heap's own pages; `at` leads from a frame to its page.
unsafe impl<const SINGLE: bool> TableMemory for Machine<SINGLE> {
    const SINGLE_PAGES: bool = SINGLE;

    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        // Not the frame that the heap returns, so that no pointer is made of a number.
        let (first, mut all) = (Heap.lend(pages)?.0, self.pages.write().unwrap());
        for page in 0..pages {
            // SAFETY: inside what was lent.
            let page = unsafe { first.add(page << PAGE_SHIFT) };
            all.insert(frame(page), Page(page));
        }
        Some((first, frame(first)))
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        let mut all = self.pages.write().unwrap();
        for page in 0..pages as u64 {
            all.remove(&(pfn + page));
        }
        // SAFETY: required of the caller.
        unsafe { Heap.take_back(first, pfn, pages) }
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        self.pages.read().unwrap()[&pfn].0
    }
}

impl<const SINGLE: bool> Host for Machine<SINGLE> {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        Some(Word(self.word(hva).load(SeqCst)))
    }

    fn compare_exchange(&self, hva: Hva, current: Word, new: Word) -> Option<Result<Word, Word>> {
        Some(self.word(hva).compare_exchange(current.0, new.0, SeqCst, SeqCst).map(Word).map_err(Word))
    }
}

struct Tlb;

impl Translations for Tlb {
    fn flush_all(&mut self) {}
    fn flush(&mut self, _: Span<Gfn>) {}
}

struct Nothing;

impl WriteListener for Nothing {}

fn idle() -> Idle {
    // SAFETY: each thread here makes one, outside any walk.
    unsafe { Idle::assume() }
}

type World<F, const SINGLE: bool> = Vm<F, Machine<SINGLE>>;

/// Two vCPUs fault, store, and answer, while a third thread acts.
fn beside<F: Format, const SINGLE: bool>(log: DirtyLog, act: impl Fn(&World<F, SINGLE>, &mut Idle) + Sync) {
    let vm = World::<F, SINGLE>::builder(Machine::new()).vcpus(2).dirty_log(log).build().unwrap();
    let slot = |id, gfn| Slot::new(SlotId(id), Gfn(gfn), PAGES, HVA);
    vm.memory()
        .commit(&mut idle(), |tx| {
            tx.create(slot(0, 0).log_dirty())?;
            tx.create(slot(1, 16))
        })
        .unwrap();
    thread::scope(|scope| {
        let (vm, act) = (&vm, &act);
        for id in 0..2 {
            scope.spawn(move || {
                let (mut idle, mut vcpu) = (idle(), vm.vcpu(VcpuId(id)).unwrap());
                for nth in 0..4 {
                    let gfn = Gfn((nth + u64::from(id)) % 4 + 16 * (nth % 2));
                    let access = if nth == 2 { Access::Read } else { Access::Write };
                    let _ = vcpu.fault(&mut idle, Fault { gpa: gfn.gpa(), access });
                    let mut guest = vcpu.enter(&mut idle, &mut Tlb).poll();
                    if guest.kicked() {
                        guest.answer(&mut Tlb);
                    }
                }
            });
        }
        scope.spawn(move || act(vm, &mut idle()));
    });
    vm.collect(&mut idle());
}

/// Runs a world with chunks, and with single pages.
macro_rules! worlds {
    ($($name:ident $log:expr, |$vm:ident, $idle:ident| $act:block)*) => { $(
        mod $name {
            use super::*;

            #[test]
            fn in_chunks() {
                beside::<Npt4, false>($log, |$vm, $idle| $act);
            }

            #[test]
            fn in_single_pages() {
                beside::<Ept4NoAd, true>($log, |$vm, $idle| $act);
            }
        }
    )* };
}

worlds! {
    invalidations DirtyLog::bitmap(), |vm, idle| {
        for (page, why) in [(0, Reason::Unmap), (1, Reason::Protect)] {
            drop(vm.invalidate(Span::sized(HVA + page * PAGE_SIZE, 2 * PAGE_SIZE), why).apply(idle).settle());
        }
        let event = Event::new(Span::sized(HVA, PAGES * PAGE_SIZE), Reason::Reclaim);
        vm.around(idle, event, &mut |idle, told| told.changed(idle, Span::sized(HVA, PAGE_SIZE), None)).unwrap();
    }
    slots DirtyLog::bitmap(), |vm, idle| {
        vm.memory().commit(idle, |tx| tx.move_to(SlotId(1), Gfn(32)).map(drop)).unwrap();
        vm.memory().commit(idle, |tx| tx.cut(SlotId(0), Span::new(Gfn(2), Gfn(4)), SlotId(2)).map(drop)).unwrap();
        assert!(vm.memory().snapshot(idle).iter().count() == 3);
    }
    dirty DirtyLog::bitmap(), |vm, idle| {
        vm.memory().harvest(idle, SlotId(0)).unwrap().commit();
        let _ = vm.memory().mark_dirty_bits(SlotId(0), 0, &[1]);
        assert!(vm.memory().is_dirty(Gfn(0)));
        vm.memory().commit(idle, |tx| tx.set_log_dirty(SlotId(0), false).map(drop)).unwrap();
    }
    dirty_bits DirtyLog::bitmap().track(Track::DirtyBits).initially_set(), |vm, idle| {
        vm.memory().harvest(idle, SlotId(0)).unwrap().give_back();
        let _ = vm.memory().clear_dirty(idle, SlotId(0), 0, PAGES, &[3]).unwrap();
    }
    rings DirtyLog::ring(RingSize::new(4096).unwrap()), |vm, idle| {
        let _ = vm.collect_ring(idle, VcpuId(0), |_| ()).unwrap();
        let _ = vm.reset_rings(idle).unwrap();
        vm.memory().harvest_all(idle).unwrap().commit();
    }
    zap_all DirtyLog::bitmap(), |vm, idle| {
        vm.zap_all(idle).unwrap();
        let _ = vm.shrink(idle);
    }
    aging DirtyLog::bitmap(), |vm, idle| {
        let hvas = Span::sized(HVA, PAGES * PAGE_SIZE);
        vm.age(idle, hvas, &mut |_| ());
        let _ = vm.young(idle, hvas, Young::ClearAndFlush);
        vm.memory().lockless(idle).for_each(Span::new(Gfn(0), Gfn(64)), |_| ());
    }
    held DirtyLog::bitmap(), |vm, idle| {
        let mut held = vm.memory().hold(idle, Gfn(1), Access::Write).unwrap();
        drop(held.write(idle));
        let tracking = vm.memory().track_writes(idle, Span::sized(Gfn(1), 1), Arc::new(Nothing)).unwrap();
        vm.memory().emulate_store(idle, Gfn(1).gpa(), &[1], |_| ()).unwrap();
        assert!(held.write(idle).is_none());
        drop(tracking);
    }
}

/// One thread, so that Miri reports a mistake in the notes of table pages within seconds.
#[test]
fn alone() {
    let vm = World::<Npt4, false>::builder(Machine::new()).build().unwrap();
    let (mut idle, slot) = (idle(), Slot::new(SlotId(0), Gfn(0), PAGES, HVA));
    vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let _ = vcpu.fault(&mut idle, Fault { gpa: Gpa(0), access: Access::Write }).unwrap();
    vcpu.give_tables_back();
    vm.zap_all(&mut idle).unwrap();
}

/// L1's table in pages 0 to 3 of RAM, which maps L2's frame 5 to L1's frame 5.
fn l1_maps<const SINGLE: bool>(machine: &Machine<SINGLE>) -> EptTable {
    for table in 0..3 {
        machine.words[table * 512].store((table as u64 + 1) << 12 | 0b111, SeqCst);
    }
    machine.words[3 * 512 + 5].store(5 << 12 | 6 << 3 | 0b111, SeqCst);
    EptTable::new(3 << 3 | 6, EptFeatures::of(46)).unwrap()
}

/// L2 faults while the host invalidates the frame, and then L1 flushes.
fn nested<const SINGLE: bool>() {
    let vm = World::<Npt4, SINGLE>::builder(Machine::new()).vcpus(2).build().unwrap();
    let ept = l1_maps(vm.host());
    let slot = Slot::new(SlotId(0), Gfn(0), PAGES, HVA);
    vm.memory().commit(&mut idle(), |tx| tx.create(slot)).unwrap();
    thread::scope(|scope| {
        let vm = &vm;
        for id in 0..2 {
            scope.spawn(move || {
                let (mut idle, mut vcpu) = (idle(), vm.vcpu(VcpuId(id)).unwrap());
                for _ in 0..2 {
                    let mut l2 = vcpu.nested(&mut idle, ept).unwrap();
                    let _ = l2.fault(&mut idle, L1Access::new(Gfn(5).gpa(), Access::Write)).unwrap();
                    drop(l2.enter(&mut idle, &mut Tlb).poll());
                    vcpu.l1_flushes(|_: &EptTable| true);
                }
            });
        }
        scope.spawn(move || {
            let mut idle = idle();
            let page = Span::sized(HVA + 5 * PAGE_SIZE, PAGE_SIZE);
            drop(vm.invalidate(page, Reason::Unmap).apply(&mut idle).settle());
            vm.l1_broadcasts(&mut idle, SpaceId(0), Span::new(Gfn(0), Gfn(64)), |_: &EptTable| true);
        });
    });
}

/// A vCPU, and the guard of an invalidation, that are the last owners of their VM, and are dropped as arguments.
#[test]
fn last_owners() {
    let vm = || Arc::new(World::<Npt4, false>::builder(Machine::new()).build().unwrap());
    let vcpu = vm().owned_vcpu(VcpuId(0)).unwrap();
    drop(vcpu);
    let change = vm().invalidate_owned(Span::sized(HVA, PAGE_SIZE), Why::Unmap);
    drop(change);
}

#[test]
fn nested_in_chunks() {
    nested::<false>();
}

#[test]
fn nested_in_single_pages() {
    nested::<true>();
}

/// A map without a VM.
#[test]
fn maps() {
    let map = slat::map::Map::<Npt4, _>::new(Machine::<true>::new()).unwrap();
    let leaf = Leaf {
        pfn: Pfn(512),
        perms: Perms::RWX,
        memory: MemoryType::WriteBack,
        host_writable: true,
        accessed: true,
        dirty: false,
    };
    let _ = map.map(Span::sized(Gfn(512), 512), &leaf).unwrap();
    let _ = map.unmap(Span::sized(Gfn(513), 1)).unwrap();
    let mut mapped = 0;
    map.for_each(Span::new(Gfn(0), Gfn(2048)), |_, place| mapped += u64::from(!place.load().is_hole()));
    assert_eq!(mapped, 511);
    map.age(Span::new(Gfn(0), Gfn(2048)), |_| ());
}
