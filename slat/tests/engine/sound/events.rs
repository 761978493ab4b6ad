//! Invalidations end, and pay their debts, however their owner ends them.

use super::common::{By, Tlb, ends, hva5, page, ram, vm, write};
use slat::table::formats::{Npt4, Sv39x4};
use slat::table::{Heap, Own, TableMemory, TablesOf};
use slat::*;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Barrier, Mutex};
use std::thread;

/// Runs `work` on a thread of its own, with that thread's token, while the caller's thread answers for `guests`.
fn beside<R: Send>(
    guests: &mut [(&mut InGuest<'_>, &mut Tlb)],
    work: impl FnOnce(&mut Idle) -> R + Send,
) -> thread::Result<R> {
    thread::scope(|scope| {
        let worker = scope.spawn(|| work(&mut Idle::take().unwrap()));
        while !worker.is_finished() {
            for (guest, tlb) in &mut *guests {
                if guest.kicked() {
                    guest.answer(*tlb);
                }
            }
            thread::yield_now();
        }
        worker.join()
    })
}

#[test]
fn a_forgotten_debt_is_flushed_when_its_invalidation_ends() {
    vm!(Npt4, |hva| Some(page(hva)), idle, vm, vcpu);
    let mut tlb = Tlb::default();
    let mut guest = vcpu.enter(&mut idle, &mut tlb).poll();
    tlb.0.push(5);
    let paid = || vm.stats().flushes.paid;
    let before = paid();
    let next_owes = beside(&mut [(&mut guest, &mut tlb)], |idle| {
        let mut change = vm.invalidate(hva5(), Reason::Unmap);
        forget(change.changed(idle, hva5(), None));
        assert_eq!(paid(), before, "nothing was paid yet");
        drop(change);
        vm.invalidate(hva5(), Reason::Unmap).apply(idle).pages()
    });
    assert_eq!(tlb.0, [], "the vCPU was told before the host frees the frame");
    assert_eq!((next_owes.unwrap(), paid()), (0, before + 1), "it is paid, and paid once");
}

#[test]
fn a_forgotten_debt_is_paid_with_the_next_one_of_its_invalidation() {
    vm!(Npt4, |hva| Some(page(hva)), idle, vm, vcpu);
    let _ = vcpu.fault(&mut idle, write(6)).unwrap();
    let before = vm.stats().flushes.paid;
    let all = Span::sized(Hva(0x4000_0000), 8 << 12);
    let mut change = vm.invalidate(all, Reason::Reclaim);
    forget(change.changed(&mut idle, hva5(), None));
    let debt = change.changed(&mut idle, Span::sized(Hva(0x4000_6000), 4096), None);
    assert_eq!(debt.pages(), 2);
    assert!(debt.settle());
    drop(change);
    assert_eq!(vm.stats().flushes.paid, before + 1);
}

/// Whether every table page is in a table, in the pool, or on its way there.
fn no_table_page_is_lost<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) -> bool {
    vm.collect(idle);
    let pages = vm.table_pages(idle);
    pages.reachable + pages.waiting + pages.free == pages.allocated
}

#[test]
fn tables_in_a_forgotten_debt_are_not_lost() {
    vm!(Npt4, |hva| Some(page(hva)), idle, vm, vcpu);
    let mut change = vm.memory().invalidate(Span::new(Gfn(0), Gfn(1 << 36)), Reason::Unmap);
    forget(change.changed(&mut idle, Span::default(), None));
    drop(change);
    drop(vcpu);
    assert_eq!(vm.memory().translate(&mut idle, Gfn(5)), None);
    assert!(no_table_page_is_lost(&vm, &mut idle), "{:?}", vm.table_pages(&mut idle));
}

#[test]
#[cfg_attr(feature = "oracle-always", ignore = "breaks the contract, which the oracle reports")]
fn an_invalidation_that_is_leaked_leaves_its_flush_to_the_next_one() {
    vm!(Npt4, |hva| Some(page(hva)), idle, vm, _vcpu);
    forget(vm.invalidate(hva5(), Reason::Clear).apply(&mut idle));
    let next = vm.invalidate(hva5(), Reason::Clear);
    assert_eq!(next.apply(&mut idle).pages(), 1);
}

/// A host that panics when it kicks these vCPUs.
#[derive(Default)]
struct KickPanics(Mutex<Vec<VcpuId>>);

impl Host for KickPanics {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        Some(page(hva))
    }

    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Err(HostError::Fault)
    }

    fn kick(&self, vcpu: VcpuId) {
        let panics = self.0.lock().unwrap().contains(&vcpu);
        assert!(!panics, "on purpose");
    }
}

/// Runs `flush` while two vCPUs are in the guest, have used frame 5, and answer when they are kicked; the kicks of
/// `whose` panic. Returns whether `flush` panicked, whether each vCPU had dropped the frame by then, and how many pages
/// the next invalidation of the frame owes.
fn flushed_beside_panicking_kicks(
    whose: &[VcpuId],
    flush: impl FnOnce(&Vm<Npt4, KickPanics>, &mut Idle),
) -> (bool, [bool; 2], u64) {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(KickPanics::default()).vcpus(2).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(ram(0, 0, 8, 0x4000_0000))).unwrap();
    let _ = vm.vcpu(VcpuId(0)).unwrap().fault(&mut idle, write(5)).unwrap();
    let (entered, over) = (Barrier::new(3), AtomicBool::new(false));
    let forgot = [AtomicBool::new(false), AtomicBool::new(false)];
    let out = thread::scope(|scope| {
        for (id, forgot) in (0..).map(VcpuId).zip(&forgot) {
            let (vm, entered, over) = (&vm, &entered, &over);
            scope.spawn(move || {
                let (mut idle, mut tlb) = (Idle::take().unwrap(), Tlb::default());
                let mut vcpu = vm.vcpu(id).unwrap();
                let mut guest = vcpu.enter(&mut idle, &mut tlb).poll();
                tlb.0.push(5);
                entered.wait();
                while !over.load(SeqCst) {
                    if guest.kicked() {
                        guest.answer(&mut tlb);
                        forgot.store(tlb.0.is_empty(), SeqCst);
                    }
                    thread::yield_now();
                }
            });
        }
        entered.wait();
        vm.host().0.lock().unwrap().extend(whose);
        let panicked = catch_unwind(AssertUnwindSafe(|| flush(&vm, &mut idle))).is_err();
        let forgot = forgot.each_ref().map(|forgot| forgot.load(SeqCst));
        vm.host().0.lock().unwrap().clear();
        let owes = vm.invalidate(hva5(), Reason::Unmap).apply(&mut idle).pages();
        over.store(true, SeqCst);
        (panicked, forgot, owes)
    });
    assert!(no_table_page_is_lost(&vm, &mut idle), "{:?}", vm.table_pages(&mut idle));
    out
}

#[test]
fn a_kick_that_panics_loses_no_flush() {
    let unmap = |vm: &Vm<Npt4, KickPanics>, idle: &mut Idle| {
        drop(vm.memory().invalidate(Span::new(Gfn(0), Gfn(1 << 36)), Reason::Unmap).apply(idle).settle());
    };
    let [first, second] = [VcpuId(0), VcpuId(1)];
    for whose in [&[first][..], &[second], &[first, second]] {
        assert_eq!(flushed_beside_panicking_kicks(whose, unmap), (true, [true; 2], 0), "{whose:?}");
    }
    assert_eq!(flushed_beside_panicking_kicks(&[], unmap), (false, [true; 2], 0), "without a panic");
    let protect = |vm: &Vm<Npt4, KickPanics>, idle: &mut Idle| {
        vm.memory().write_protect(idle, Span::sized(Gfn(5), 1)).settle();
    };
    assert_eq!(flushed_beside_panicking_kicks(&[first], protect).1, [true; 2], "of any debt");
}

#[test]
fn a_kick_that_panics_while_a_panic_ends_an_invalidation_aborts_nothing() {
    let panics = |vm: &Vm<Npt4, KickPanics>, idle: &mut Idle| {
        let _applied = vm.invalidate(hva5(), Reason::Unmap).apply(idle);
        panic!("on purpose");
    };
    assert_eq!(flushed_beside_panicking_kicks(&[VcpuId(0)], panics), (true, [true; 2], 0));
}

#[test]
fn a_thread_may_hold_any_number_of_invalidations() {
    assert!(ends(|| {
        vm!(Npt4, |hva| Some(page(hva)), idle, vm, vcpu);
        let mut all: Vec<_> =
            (0..100).map(|i| vm.invalidate(Span::sized(Hva(i << 21), 4096), Reason::Unmap)).collect();
        let _ = vcpu.fault(&mut idle, write(6)).expect("elsewhere nothing waits");
        // The last one is beyond the first places, and faults on its range wait for it as for any other.
        all.push(vm.invalidate(hva5(), Reason::Clear).apply(&mut idle).settle());
        let before = vm.stats().retries;
        thread::scope(|scope| {
            let fault =
                scope.spawn(|| vm.vcpu(VcpuId(1)).unwrap().fault(&mut Idle::take().unwrap(), write(5)));
            while vm.stats().retries == before {
                thread::yield_now();
            }
            assert!(!fault.is_finished());
            drop(all);
            assert_eq!(fault.join().unwrap(), Ok(Next::Resume(Resume::Mapped(Level::K4))));
        });
    }));
}

#[test]
fn four_thousand_and_sixty_four_invalidations_wait_for_none_and_the_next_one_does() {
    assert!(ends(|| {
        vm!(Npt4, |hva| Some(page(hva)), _idle, vm, _vcpu);
        let begin = |i: u64| vm.invalidate(Span::sized(Hva(i << 21), 4096), Reason::Unmap);
        let mut all: Vec<_> = (0..4032).map(begin).collect();
        let begun = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let last = begin(4032);
                begun.store(true, SeqCst);
                drop(last);
            });
            (0..20).for_each(|_| thread::yield_now());
            assert!(!begun.load(SeqCst));
            all.pop();
        });
    }));
}

#[test]
fn a_transaction_inside_an_invalidation_waits_for_no_other() {
    assert!(ends(|| {
        vm!(Npt4, |hva| Some(page(hva)), _idle, vm, _vcpu);
        let all = Barrier::new(48);
        thread::scope(|scope| {
            for i in 0..48 {
                let (vm, all) = (&vm, &all);
                scope.spawn(move || {
                    let _change = vm.invalidate(Span::sized(Hva(u64::from(i) << 21), 4096), Reason::Unmap);
                    all.wait();
                    let slot = ram(1 + i, 64 + u64::from(i), 1, 1 << 40);
                    vm.memory().commit(&mut Idle::take().unwrap(), |tx| tx.create(slot)).unwrap();
                    all.wait();
                });
            }
        });
        assert_eq!(vm.memory().len(), 49);
    }));
}

#[test]
fn an_event_that_may_not_block_waits_for_no_seat() {
    assert!(ends(|| {
        vm!(Npt4, |hva| Some(page(hva)), idle, vm, _vcpu);
        let (held, release) = (Barrier::new(65), Barrier::new(65));
        thread::scope(|scope| {
            let event = Event { may_block: false, ..Event::new(hva5(), Reason::Reclaim) };
            let change = &mut |idle: &mut Idle, told: &mut dyn Pages| {
                for _ in 0..64 {
                    scope.spawn(|| {
                        let (mut idle, slots) = (Idle::take().unwrap(), vm.memory());
                        let _snapshot = slots.snapshot(&mut idle);
                        held.wait();
                        release.wait();
                    });
                }
                held.wait();
                told.changed(idle, hva5(), None);
                release.wait();
            };
            vm.around(&mut idle, event, change).unwrap();
        });
        assert_eq!(vm.memory().translate(&mut idle, Gfn(5)), None, "it was told");
    }));
}

#[test]
fn an_event_that_may_not_block_says_so_where_it_would_have_to_allocate_a_place() {
    vm!(Npt4, |hva| Some(page(hva)), idle, vm, _vcpu);
    let all: Vec<_> =
        (0..64).map(|i| vm.invalidate(Span::sized(Hva(i << 21), 4096), Reason::Unmap)).collect();
    let event = Event { may_block: false, ..Event::new(hva5(), Reason::Reclaim) };
    assert_eq!(vm.around(&mut idle, event, &mut |_, _| panic!("nothing is changed")), Err(Again));
    drop(all);
    assert_eq!(vm.around(&mut idle, event, &mut |idle, told| told.changed(idle, hva5(), None)), Ok(()));
}

/// A host that lends memory for tables once.
struct Once(AtomicBool);

// SAFETY: the heap's own functions.
unsafe impl TableMemory for Once {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        (!self.0.swap(true, SeqCst)).then(|| Heap.lend(pages))?
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        // SAFETY: required of the caller.
        unsafe { Heap.take_back(first, pfn, pages) }
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        Heap.at(pfn)
    }
}

impl Host for Once {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        Some(page(hva))
    }

    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Err(HostError::Fault)
    }
}

#[test]
fn a_zap_all_that_finds_no_memory_for_a_root_loses_none() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Sv39x4, _>::builder(Once(AtomicBool::new(false))).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(ram(0, 0, 1 << 18, 1 << 30))).unwrap();
    let mut table = 0;
    loop {
        let free = vm.table_pages(&mut idle).free;
        assert_eq!(vm.zap_all(&mut idle), Err(table::NoMemory), "{free} pages are free, and no root");
        assert!(no_table_page_is_lost(&vm, &mut idle), "{free}: {:?}", vm.table_pages(&mut idle));
        if free == 0 {
            break;
        }
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let _ = vcpu.fault(&mut idle, write(512 * table)).unwrap();
        table += 1;
    }
    assert!(table > 50, "{table} leaf tables");
}

/// Pages of a slot that takes long to mark: 1 TiB.
const LONG: u64 = 1 << 28;

/// Whether a transaction that removes something, begun while `marks` marks the pages of slot 1 from first to last,
/// returns before the last page is marked.
fn a_transaction_overtakes(marks: impl Fn(&Vm<Npt4, By>, &mut Idle) + Sync) -> bool {
    vm!(Npt4, (|hva| Some(page(hva))) as fn(Hva) -> Option<HostPage>, idle, vm, _vcpu);
    vm.memory().commit(&mut idle, |tx| tx.create(ram(1, LONG, LONG, 1 << 42).log_dirty())).unwrap();
    let is_marked = |idle: &mut Idle, page| {
        let cleaned = vm.memory().clear_dirty(idle, SlotId(1), page, 64, &[u64::MAX]);
        cleaned.unwrap() > 0
    };
    thread::scope(|scope| {
        scope.spawn(|| marks(&vm, &mut Idle::take().unwrap()));
        while !is_marked(&mut idle, 0) {}
        vm.memory().commit(&mut idle, |tx| tx.delete(SlotId(0))).unwrap();
        !is_marked(&mut idle, LONG - 64)
    })
}

/// If all is marked in one section, a transaction never overtakes it. Otherwise it does, unless its thread does not run
/// during all of the marking.
fn a_transaction_overtakes_in_one_of_many_tries(marks: impl Fn(&Vm<Npt4, By>, &mut Idle) + Sync) -> bool {
    (0..30).any(|_| a_transaction_overtakes(&marks))
}

#[test]
fn a_transaction_does_not_wait_for_all_pages_that_a_device_marks() {
    assert!(a_transaction_overtakes_in_one_of_many_tries(|vm, _| {
        vm.memory().mark_dirty(Span::sized(Gfn(LONG), LONG));
    }));
    assert!(a_transaction_overtakes_in_one_of_many_tries(|vm, _| {
        vm.mark_dirty(Span::sized(Hva(1 << 42), LONG << 12));
    }));
}

/// Returns what [`a_transaction_overtakes`] returns for a section as long as the marking.
#[test]
fn negative_control_a_transaction_waits_for_a_reader_that_holds_one_section() {
    assert!(!a_transaction_overtakes(|vm, _| {
        let slots = vm.memory();
        let (ready, done) = (Barrier::new(2), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut idle, slots) = (Idle::take().unwrap(), vm.memory());
                let _snapshot = slots.snapshot(&mut idle);
                ready.wait();
                while !done.load(SeqCst) {
                    thread::yield_now();
                }
            });
            ready.wait();
            slots.mark_dirty(Span::sized(Gfn(LONG), LONG));
            done.store(true, SeqCst);
        });
    }));
}
