//! Tests of splitting and recovery at every single write. Each look-up gives the old or the new translation, and
//! changes by the host at any moment take effect.

use super::recover::recover_along;
use crate::notify::begun::{Begun, Range};
use crate::sync::mode::Shared;
use crate::sync::prim::{AtomicBool, AtomicPtr, AtomicU64, Relaxed};
use crate::table::entry::Word;
use crate::table::format::Kind;
use crate::table::format::{Access, Format};
use crate::table::formats::{Ept4, Npt4};
use crate::table::history::watched;
use crate::walk::Walk;
use crate::why::Reason;
use crate::*;
use core::cell::Cell;

const HVA: Hva = Hva(0x7f00_0000_0000);
/// The page that the host moves.
const MOVED: Gfn = Gfn(77);
const ALL: Span<Gfn> = Span::new(Gfn(0), Gfn(512));

/// A host of huge pages, one small page of which may have moved elsewhere. Then all pages are small.
struct OneMoves {
    moved: AtomicBool,
    lookups: AtomicU64,
}

impl OneMoves {
    fn page(&self, hva: Hva) -> HostPage {
        let gfn = (hva.0 - HVA.0) >> PAGE_SHIFT;
        let moved = self.moved.load(Relaxed);
        let pfn = if moved && gfn == MOVED.0 { 0x10_0000 } else { 0x1000 + gfn };
        let level = if moved { Level::K4 } else { Level::M2 };
        HostPage { pfn: Pfn(pfn), level, ..HostPage::PLAIN }
    }
}

impl Host for OneMoves {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        let page = self.page(hva);
        self.lookups.fetch_add(1, Relaxed);
        Some(page)
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(self.page(hva))
    }
}

/// Makes a VM with one large page mapped.
fn vm<F: Format>(idle: &mut Idle) -> Vm<F, OneMoves> {
    let host = OneMoves { moved: AtomicBool::new(false), lookups: AtomicU64::new(0) };
    let vm = Vm::<F, _>::builder(host).build().unwrap();
    vm.memory().commit(idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, HVA))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let fault = Fault { gpa: Gpa(0), access: Access::Write };
    assert_eq!(vcpu.fault(idle, fault), Ok(Next::Resume(Resume::Mapped(Level::M2))));
    drop(vcpu);
    vm
}

/// Returns the frame that the hardware finds for `gfn`.
fn seen<F: Format>(vm: &Vm<F, OneMoves>, gfn: Gfn) -> Option<Pfn> {
    // SAFETY: only `collect` frees tables, and it is not called meanwhile.
    let at = unsafe { vm.spaces[0].radix.descend(vm.tables(), gfn) };
    let inside = gfn.0 & (at.level.pages() - 1);
    F::is_present(at.word).then(|| F::pfn(at.word) + inside)
}

/// Returns the number of pages for which the hardware does not find the host's frame.
fn wrong<F: Format>(vm: &Vm<F, OneMoves>) -> usize {
    let frame = |gfn: Gfn| vm.host().page(HVA + gfn.0 * PAGE_SIZE).pfn;
    (0..512).map(Gfn).filter(|&gfn| seen(vm, gfn) != Some(frame(gfn))).count()
}

/// Returns the number of writes by a split, and how many of them left a wrong look-up.
fn watch_split<F: Format>(split: impl FnOnce(&Vm<F, OneMoves>, &mut Idle)) -> (usize, usize) {
    let mut idle = Idle::take().unwrap();
    let vm = vm::<F>(&mut idle);
    let (mut writes, mut bad) = (0, 0);
    let watch = || {
        writes += 1;
        bad += usize::from(wrong(&vm) > 0);
    };
    watched(watch, || split(&vm, &mut idle));
    assert_eq!(vm.memory().translate(&mut idle, Gfn(0)).unwrap().level, Level::K4, "it was split");
    (writes, bad)
}

#[test]
fn at_every_write_of_a_split_each_look_up_is_right() {
    let split =
        |vm: &Vm<Npt4, _>, idle: &mut Idle| assert_eq!(vm.memory().split(idle, ALL, Level::K4), Ok(1));
    assert_eq!(watch_split(split), (513, 0));
    let split =
        |vm: &Vm<Ept4, _>, idle: &mut Idle| assert_eq!(vm.memory().split(idle, ALL, Level::K4), Ok(1));
    assert_eq!(watch_split(split), (513, 0));
}

/// Moves one page, as a primary MMU does, on another thread, in the middle of this thread's work.
fn move_one<F: Format>(vm: &Vm<F, OneMoves>) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut idle = Idle::take().unwrap();
            let _change = vm
                .invalidate(Span::sized(HVA + MOVED.0 * PAGE_SIZE, PAGE_SIZE), Reason::Migrate)
                .apply(&mut idle)
                .settle();
            vm.host().moved.store(true, Relaxed);
        });
    });
}

/// Recovers while the host moves a page after write number `at` (0: before the first). Returns whether the page's old
/// frame is mapped in the end, and the number of writes.
fn stale_after_recovery(at: usize) -> (bool, usize) {
    let mut idle = Idle::take().unwrap();
    let vm = vm::<Npt4>(&mut idle);
    vm.memory().split(&mut idle, ALL, Level::K4).unwrap();
    let old = seen(&vm, MOVED).unwrap();
    let (writes, lookups) = (Cell::new(0), vm.host().lookups.load(Relaxed));
    let watch = || {
        writes.set(writes.get() + 1);
        if writes.get() == at {
            move_one(&vm);
        }
    };
    let mut change = Begun::begin(&vm, Range::Gfns(SpaceId(0), ALL), Reason::Migrate);
    if at == 0 {
        move_one(&vm);
    }
    let mut walk = Walk::<_, _, Shared>::on_any_seat(&vm, &vm.spaces[0], &mut idle);
    let recovered = watched(watch, || recover_along(&mut walk, &mut change, ALL));
    drop(walk);
    change.settle(true);
    drop(change);
    assert!(vm.host().lookups.load(Relaxed) > lookups, "the host was asked");
    assert!(recovered == 1 || at < 2, "no thread came between");
    (vm.host().moved.load(Relaxed) && seen(&vm, MOVED) == Some(old), writes.get())
}

#[test]
fn a_page_that_moves_at_any_write_of_a_recovery_does_not_come_back() {
    for at in 0..=2 {
        let (stale, writes) = stale_after_recovery(at);
        assert!(!stale, "moved after write {at}");
        assert_eq!(writes, 2, "frozen and thawed");
    }
}

/// A host that moves a page while a recovery asks it. Returns whether the page's old frame is mapped in the end.
fn stale_where_the_host_moves_it_when_asked() -> bool {
    struct Asked(OneMoves, AtomicPtr<Vm<Npt4, Asked>>);
    impl Host for Asked {
        fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
            let page = self.0.lookup(hva, access);
            let vm = self.1.swap(core::ptr::null_mut(), Relaxed);
            // SAFETY: the test below sets it to the VM that asks, for the duration of the recovery.
            if let Some(vm) = unsafe { vm.as_ref() } {
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let mut idle = Idle::take().unwrap();
                        let hvas = Span::sized(HVA + MOVED.0 * PAGE_SIZE, PAGE_SIZE);
                        let _change = vm.invalidate(hvas, Reason::Migrate).apply(&mut idle).settle();
                        self.0.moved.store(true, Relaxed);
                    });
                });
            }
            page
        }

        fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
            self.0.resolve(idle, hva, access)
        }
    }
    let mut idle = Idle::take().unwrap();
    let host = OneMoves { moved: AtomicBool::new(false), lookups: AtomicU64::new(0) };
    let vm = Vm::<Npt4, _>::builder(Asked(host, AtomicPtr::default())).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, HVA))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let _ = vcpu.fault(&mut idle, Fault { gpa: Gpa(0), access: Access::Write }).unwrap();
    vm.memory().split(&mut idle, ALL, Level::K4).unwrap();
    let old = vm.memory().translate(&mut idle, MOVED).unwrap().leaf.pfn;

    let mut change = Begun::begin(&vm, Range::Gfns(SpaceId(0), ALL), Reason::Migrate);
    let mut walk = Walk::<_, _, Shared>::on_any_seat(&vm, &vm.spaces[0], &mut idle);
    vm.host().1.store((&raw const vm).cast_mut(), Relaxed);
    recover_along(&mut walk, &mut change, ALL);
    drop(walk);
    change.settle(true);
    drop(change);
    let now =
        vm.memory().translate(&mut idle, MOVED).map(|found| found.leaf.pfn + (MOVED.0 - found.gfns.start.0));
    now == Some(old)
}

#[test]
fn a_page_that_moves_while_the_host_is_asked_does_not_come_back() {
    assert!(!stale_where_the_host_moves_it_when_asked());
}

#[test]
fn a_frozen_link_differs_from_other_frozen_words() {
    let frozen = Word::frozen_link(Pfn(7));
    assert!(matches!(frozen.kind::<Ept4>(Level::M2), Kind::Frozen(mark) if Word::was_link(mark)));
    assert!(frozen != Word::frozen_link(Pfn(8)) && !Word::was_link(u64::from(u32::MAX)));
}
