//! A vCPU's guards may leak or unwind; its number and its CPU may change.

use super::common::{By, Tlb, ends, hva5, page, ram, vm, write};
use slat::slots::Hint;
use slat::table::formats::{Ept4NoAd, Npt4};
use slat::{
    CpuId, Gfn, Idle, Next, Prefault, Reason, Resume, SlotId, SpaceId, Span, Translations, Vcpu, VcpuId, Vm,
};
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

/// A TLB that panics on a flush.
struct Panics;

impl Translations for Panics {
    fn flush_all(&mut self) {
        panic!("on purpose");
    }

    fn flush(&mut self, _: Span<Gfn>) {
        panic!("on purpose");
    }
}

/// The TLB of one processor.
#[derive(Debug)]
struct OfCpu(CpuId, Tlb);

impl OfCpu {
    fn new(cpu: u64) -> Self {
        Self(CpuId(cpu), Tlb::default())
    }
}

impl Translations for OfCpu {
    fn cpu(&self) -> CpuId {
        self.0
    }

    fn flush_all(&mut self) {
        self.1.flush_all();
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        self.1.flush(gfns);
    }
}

/// Waits for `flag`, for at most `ms` milliseconds. Returns whether it is set.
fn is_set_within(ms: u64, flag: &AtomicBool) -> bool {
    let until = Instant::now() + Duration::from_millis(ms);
    while !flag.load(SeqCst) && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
    flag.load(SeqCst)
}

/// If the deletion does not wait for the reader, the read is of freed memory: `AddressSanitizer` reports it.
#[test]
#[cfg_attr(feature = "oracle-always", ignore = "breaks the contract, which the oracle reports")]
fn slots_outlive_a_reader_whose_guard_was_leaked() {
    let vm = Vm::<Npt4, _>::builder(By::new(|_| None)).build().unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut idle = Idle::take().unwrap();
            let slots = 0..2000;
            for _ in 0..20 {
                let create = |i| ram(i, u64::from(i) * 2, 1, 1 << 30);
                let mut all = slots.clone();
                vm.memory().commit(&mut idle, |tx| all.try_for_each(|i| tx.create(create(i)))).unwrap();
                let mut all = slots.clone();
                vm.memory()
                    .commit(&mut idle, |tx| all.try_for_each(|i| tx.delete(SlotId(i)).map(drop)))
                    .unwrap();
            }
            stop.store(true, SeqCst);
        });
        let (mut idle, mut gfn) = (Idle::take().unwrap(), 0);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        while !stop.load(SeqCst) {
            forget(vcpu.enter(&mut idle, &mut Tlb::default()));
            gfn = (gfn + 7919) % 8000;
            let _ = vcpu.prefault(&mut idle, Span::new(Gfn(gfn), Gfn(gfn + 1)), Prefault::OLD);
        }
    });
}

#[test]
#[cfg_attr(feature = "oracle-always", ignore = "breaks the contract, which the oracle reports")]
fn a_deletion_waits_for_a_reader_whose_guard_was_leaked() {
    static INSIDE: AtomicBool = AtomicBool::new(false);
    static DELETED: AtomicBool = AtomicBool::new(false);
    static EARLY: AtomicBool = AtomicBool::new(false);
    let host = |hva| {
        if INSIDE.swap(true, SeqCst) || DELETED.load(SeqCst) {
            return None;
        }
        EARLY.store(is_set_within(300, &DELETED), SeqCst);
        Some(page(hva))
    };
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(By::new(host)).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(ram(0, 0, 8, 0x4000_0000))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    forget(vcpu.enter(&mut idle, &mut Tlb::default()));
    thread::scope(|scope| {
        scope.spawn(|| {
            is_set_within(5000, &INSIDE);
            vm.memory().commit(&mut Idle::take().unwrap(), |tx| tx.delete(SlotId(0))).unwrap();
            DELETED.store(true, SeqCst);
        });
        let _ = vcpu.prefault(&mut idle, Span::new(Gfn(1), Gfn(2)), Prefault::OLD);
    });
    assert!(!EARLY.load(SeqCst), "deleted while a reader was in its section");
}

/// Whether a flush of frame 5 ends that waits for vCPU 0, whose guard was leaked, while the vCPU runs `next`.
fn flush_ends(next: impl FnOnce(&mut Idle, &mut Vcpu<'_, Npt4, By>) + Send + 'static) -> bool {
    ends(|| {
        vm!(Npt4, page_of, idle, vm, vcpu);
        forget(vcpu.enter(&mut idle, &mut Tlb::default()));
        thread::scope(|scope| {
            let flush = scope.spawn(|| {
                drop(vm.invalidate(hva5(), Reason::Unmap).apply(&mut Idle::take().unwrap()).settle());
            });
            while vm.memory().translate(&mut idle, Gfn(5)).is_some() {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(20)); // the flush has begun by now, most likely
            next(&mut idle, &mut vcpu);
            flush.join().unwrap();
        });
    })
}

#[allow(clippy::unnecessary_wraps, reason = "a host may have no page")]
fn page_of(hva: slat::Hva) -> Option<slat::HostPage> {
    Some(page(hva))
}

#[test]
#[cfg_attr(feature = "oracle-always", ignore = "breaks the contract, which the oracle reports")]
fn a_flush_ends_when_a_vcpu_whose_guard_was_leaked_does_anything() {
    assert!(flush_ends(|idle, vcpu| assert!(
        vcpu.prefault(idle, Span::new(Gfn(5), Gfn(6)), Prefault::OLD).is_ok()
    )));
    assert!(flush_ends(|idle, vcpu| assert!(
        vcpu.prefault(idle, Span::new(Gfn(1), Gfn(2)), Prefault::OLD).is_ok()
    )));
    assert!(flush_ends(|idle, vcpu| assert_eq!(
        vcpu.prefault(idle, Span::new(Gfn(7), Gfn(7)), Prefault::OLD),
        Ok(0)
    )));
    assert!(flush_ends(|idle, vcpu| assert!(vcpu.fault(idle, write(5)).is_ok())));
    assert!(flush_ends(|idle, vcpu| drop(vcpu.enter(idle, &mut Tlb::default()))));
}

#[test]
#[cfg_attr(feature = "oracle-always", ignore = "breaks the contract, which the oracle reports")]
fn a_prefault_that_takes_tables_back_does_not_wait_for_its_own_vcpu() {
    assert!(ends(|| {
        let mut idle = Idle::take().unwrap();
        let vm = Vm::<Npt4, _>::builder(By::new(page_of)).table_budget(16 << 12).build().unwrap();
        vm.memory().commit(&mut idle, |tx| tx.create(ram(0, 0, 64 << 9, 0x4000_0000))).unwrap();
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        for table in 0..40 {
            forget(vcpu.enter(&mut idle, &mut Tlb::default()));
            let gfn = Gfn(table << 9);
            assert_eq!(vcpu.prefault(&mut idle, Span::new(gfn, gfn + 1), Prefault::OLD), Ok(1));
        }
        assert!(vm.stats().tables_reclaimed > 0, "the budget was used up");
    }));
}

#[test]
fn a_tlb_that_panics_on_entry_leaves_the_vcpu_outside() {
    assert!(ends(|| {
        vm!(Npt4, |hva| Some(page(hva)), idle, vm, vcpu);
        let entry = catch_unwind(AssertUnwindSafe(|| drop(vcpu.enter(&mut idle, &mut Panics))));
        assert!(entry.is_err(), "the first entry forgets all");
        drop(vcpu.enter(&mut idle, &mut Tlb::default()));

        drop(vm.invalidate(hva5(), Reason::Clear).apply(&mut idle).settle());
        let entry = catch_unwind(AssertUnwindSafe(|| drop(vcpu.enter(&mut idle, &mut Panics))));
        assert!(entry.is_err());
        vcpu.prefault(&mut idle, Span::new(Gfn(5), Gfn(6)), Prefault::OLD).unwrap();
        drop(vm.invalidate(hva5(), Reason::Clear).apply(&mut idle).settle());
    }));
}

#[test]
fn the_next_entry_flushes_what_a_panicking_tlb_kept() {
    vm!(Npt4, |hva| Some(page(hva)), idle, vm, vcpu);
    let mut tlb = Tlb::default();
    for flushed in [false, true] {
        if flushed {
            drop(vm.invalidate(hva5(), Reason::Clear).apply(&mut idle).settle());
        }
        tlb.0.push(5);
        assert!(catch_unwind(AssertUnwindSafe(|| drop(vcpu.enter(&mut idle, &mut Panics)))).is_err());
        drop(vcpu.enter(&mut idle, &mut tlb));
        assert!(tlb.0.is_empty(), "after a flush of one page: {flushed}");
    }
}

#[test]
fn a_fault_after_a_prefault_that_panicked_is_the_guests() {
    static PANICS: AtomicBool = AtomicBool::new(false);
    let host = |hva| {
        assert!(!PANICS.load(SeqCst), "on purpose");
        Some(page(hva))
    };
    vm!(Ept4NoAd, host, idle, _vm, vcpu);
    vcpu.prefault(&mut idle, Span::new(Gfn(1), Gfn(2)), Prefault::OLD).unwrap(); // withdrawn
    PANICS.store(true, SeqCst);
    let prefault =
        catch_unwind(AssertUnwindSafe(|| vcpu.prefault(&mut idle, Span::new(Gfn(2), Gfn(3)), Prefault::OLD)));
    assert!(prefault.is_err());
    PANICS.store(false, SeqCst);
    assert_eq!(vcpu.fault(&mut idle, write(1)), Ok(Next::Resume(Resume::Fixed)));
}

#[test]
fn a_number_taken_again_forgets_what_its_last_holder_cached() {
    vm!(Npt4, |hva| Some(page(hva)), idle, vm, vcpu);
    let mut tlb = Tlb::default(); // of the processor that runs this vCPU
    assert!(vcpu.switch_to(SpaceId(1)));
    drop(vcpu.enter(&mut idle, &mut tlb));
    tlb.0.push(5); // used in space 1
    drop(vcpu);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap(); // in space 0
    drop(vcpu.enter(&mut idle, &mut tlb));
    assert!(tlb.0.is_empty(), "space 1's translation is used in space 0");
}

#[test]
fn a_vcpu_that_comes_back_to_a_processor_forgets_what_it_left_there() {
    vm!(Npt4, |hva| Some(page(hva)), idle, vm, vcpu);
    let [mut a, mut b] = [OfCpu::new(0), OfCpu::new(1)];
    drop(vcpu.enter(&mut idle, &mut a));
    a.1.0.push(5); // used there
    drop(vm.invalidate(hva5(), Reason::Unmap).apply(&mut idle).settle());
    drop(vcpu.enter(&mut idle, &mut b));
    drop(vcpu.enter(&mut idle, &mut a));
    assert!(a.1.0.is_empty(), "processor A translates to a frame that was given back: {a:?}");
}

#[test]
fn a_processor_forgets_what_a_panic_on_another_kept_from_it() {
    vm!(Npt4, |hva| Some(page(hva)), idle, vm, vcpu);
    let mut a = OfCpu::new(7);
    drop(vcpu.enter(&mut idle, &mut a));
    a.1.0.push(5); // used there
    drop(vm.invalidate(hva5(), Reason::Unmap).apply(&mut idle).settle());
    // Its own processor is another one; it flushes ranges, and cannot flush everything.
    let mut b = ForgetsRanges;
    assert!(catch_unwind(AssertUnwindSafe(|| drop(vcpu.enter(&mut idle, &mut b)))).is_err());
    drop(vcpu.enter(&mut idle, &mut a));
    assert!(a.1.0.is_empty(), "processor A translates to a frame that was given back: {a:?}");
}

/// The TLB of processor 0, which panics on a full flush.
struct ForgetsRanges;

impl Translations for ForgetsRanges {
    fn flush_all(&mut self) {
        panic!("on purpose");
    }

    fn flush(&mut self, _: Span<Gfn>) {}
}

#[test]
fn a_vcpu_that_stays_on_a_processor_keeps_what_is_cached_there() {
    vm!(Npt4, |hva| Some(page(hva)), idle, vm, vcpu);
    let _ = &vm;
    let mut a = OfCpu::new(7);
    drop(vcpu.enter(&mut idle, &mut a));
    a.1.0.push(5);
    drop(vcpu.enter(&mut idle, &mut a));
    assert_eq!(a.1.0, [5]);
}

#[test]
fn a_hint_answers_for_the_slots_that_it_is_asked_about() {
    let (mut idle, hint) = (Idle::take().unwrap(), Hint::default());
    let vms = [0x4000_0000, 0x9000_0000].map(|hva| {
        let vm = Vm::<Npt4, _>::builder(By::new(|_| None)).address_spaces(2).build().unwrap();
        for space in [SpaceId(0), SpaceId(1)] {
            let slot = ram(0, 0, 8, hva + (u64::from(space.0) << 20));
            vm.space(space).unwrap().commit(&mut idle, |tx| tx.create(slot)).unwrap();
        }
        vm
    });
    for _ in 0..2 {
        for (vm, space) in [(0, 0), (1, 0), (1, 1), (0, 1)] {
            let slots = vms[vm].space(SpaceId(space)).unwrap();
            let snapshot = slots.snapshot(&mut idle);
            assert!(snapshot.find(Gfn(3)).is_some());
            assert_eq!(snapshot.find_with(&hint, Gfn(3)), snapshot.find(Gfn(3)), "VM {vm}, space {space}");
            assert_eq!(snapshot.find_with(&hint, Gfn(3)), snapshot.find(Gfn(3)), "again");
        }
    }
}
