//! Leaves that were in use and are then withdrawn from the hardware, to learn of the next access: in every format,
//! including formats with Accessed bits, which do not need it.

use crate::common::identity::Identity;
use slat::table::formats::{Ept4, Ept4NoAd, Ept5, Npt4, Npt5, Pae};
use slat::table::{Entry, Kind, Word};
use slat::*;
use std::sync::atomic::Ordering::SeqCst;

const SLOT: SlotId = SlotId(0);
const HVA: Hva = Hva(0x40_0000_0000);
const PAGES: u64 = 8 * 512;

fn vm<F: Format>(idle: &mut Idle) -> Vm<F, Identity> {
    let vm = Vm::builder(Identity::default()).build().unwrap();
    vm.memory().commit(idle, |tx| tx.create(Slot::new(SLOT, Gfn(0), PAGES, HVA))).unwrap();
    vm
}

fn touch<F: Format>(vcpu: &mut Vcpu<'_, F, Identity>, idle: &mut Idle, gfn: u64, access: Access) -> Next {
    vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access }).unwrap()
}

fn leaf<F: Format>(vm: &Vm<F, Identity>, idle: &mut Idle, gfn: u64) -> Option<Leaf> {
    vm.memory().translate(idle, Gfn(gfn)).map(|mapping| mapping.leaf)
}

fn hvas(from: u64, pages: u64) -> Span<Hva> {
    Span::sized(HVA + from * PAGE_SIZE, pages * PAGE_SIZE)
}

/// Runs a scenario once for every format.
macro_rules! in_every_format {
    ($scenario:ident) => {
        let mut idle = Idle::take().unwrap();
        $scenario::<Ept4>(&mut idle);
        $scenario::<Ept5>(&mut idle);
        $scenario::<Npt4>(&mut idle);
        $scenario::<Npt5>(&mut idle);
        $scenario::<Pae>(&mut idle);
        $scenario::<Ept4NoAd>(&mut idle);
    };
}

/// Returns the lowest entry for `gfn`, as the hardware finds it, and its word.
fn entry<F: Format>(vm: &Vm<F, Identity>, gfn: u64) -> (&Entry, Word, Level) {
    let (mut table, mut level) = (vm.memory().root(), F::ROOT_LEVEL);
    loop {
        // SAFETY: a table page of this VM, which is not taken apart meanwhile, and an index inside it.
        let entry = unsafe { vm.tables().at(table).cast::<Entry>().add(F::index(Gfn(gfn), level)).as_ref() };
        let word = entry.load();
        let Kind::Table(below) = word.kind::<F>(level) else { return (entry, word, level) };
        (table, level) = (below, level.down());
    }
}

/// Withdraws the leaf of `gfn`, as aging does without Accessed bits in the hardware.
fn withdraw<F: Format>(vm: &Vm<F, Identity>, gfn: u64) {
    let (entry, word, _) = entry(vm, gfn);
    // SAFETY: a withdrawn word links nothing.
    unsafe { entry.cas_raw(word, Word::withdrawn(&F::read_leaf(word))) }.unwrap();
}

fn is_withdrawn<F: Format>(vm: &Vm<F, Identity>, gfn: u64) -> bool {
    let (_, word, level) = entry(vm, gfn);
    word.kind::<F>(level) == Kind::Withdrawn
}

#[test]
fn of_a_large_page_withdrawn_come_small_pages_withdrawn() {
    fn large<F: Format>(idle: &mut Idle) {
        let vm = vm::<F>(idle);
        vm.host().offer(Level::M2);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        for gfn in [1024, 2048] {
            assert_eq!(
                touch(&mut vcpu, idle, gfn + 9, Access::Write),
                Next::Resume(Resume::Mapped(Level::M2))
            );
            withdraw(&vm, gfn);
        }
        assert_eq!(touch(&mut vcpu, idle, 1024 + 77, Access::Read), Next::Resume(Resume::Fixed));
        assert!(!is_withdrawn(&vm, 1024) && is_withdrawn(&vm, 2048));

        assert_eq!(vm.memory().split(idle, Span::new(Gfn(1024), Gfn(2560)), Level::K4), Ok(2));
        assert_eq!([1024, 1535, 2048, 2559].map(|gfn| is_withdrawn(&vm, gfn)), [false, false, true, true]);
        let frame = |gfn| Pfn((HVA.0 >> PAGE_SHIFT) + gfn);
        assert_eq!([1535, 2559].map(|gfn| leaf(&vm, idle, gfn).unwrap().pfn), [1535, 2559].map(frame));
        assert_eq!(vm.stats().leaves, [1024, 0, 0]);
        assert_eq!(touch(&mut vcpu, idle, 2559, Access::Read), Next::Resume(Resume::Fixed), "each by itself");
        assert!(is_withdrawn(&vm, 2558) && !is_withdrawn(&vm, 2559));
    }
    in_every_format!(large);
}

#[test]
fn an_access_gives_a_withdrawn_leaf_back_and_no_host_is_asked() {
    fn give_back<F: Format>(idle: &mut Idle) {
        let vm = vm::<F>(idle);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        for (gfn, access) in [(0, Access::Read), (1, Access::Write), (2, Access::Fetch)] {
            let _ = touch(&mut vcpu, idle, gfn, Access::Write);
            let before = leaf(&vm, idle, gfn).unwrap();
            withdraw(&vm, gfn);
            assert_eq!(
                leaf(&vm, idle, gfn),
                Some(Leaf { accessed: false, ..before }),
                "still mapped, not young"
            );
            vm.host().shift.store(1000, SeqCst);
            let stats = vm.stats();
            assert_eq!(
                touch(&mut vcpu, idle, gfn, access),
                Next::Resume(Resume::Fixed),
                "{} {access:?}",
                F::NAME
            );
            assert_eq!(leaf(&vm, idle, gfn), Some(before), "the same page, young again");
            assert_eq!(touch(&mut vcpu, idle, gfn, access), Next::Resume(Resume::Spurious));
            let now = vm.stats();
            assert_eq!(now.permission_faults, stats.permission_faults + 1);
            assert_eq!((now.flushes, now.leaves), (stats.flushes, stats.leaves), "no flush, nothing new");
            vm.host().shift.store(0, SeqCst);
        }
    }
    in_every_format!(give_back);
}

/// A TLB may hold the old word of a withdrawn leaf: an invalidation that takes from the leaf owes the same as for a
/// present one.
#[test]
fn an_edit_of_a_withdrawn_leaf_owes_a_flush_and_lasts() {
    fn take<F: Format>(idle: &mut Idle) {
        let vm = vm::<F>(idle);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        for gfn in 0..3 {
            let _ = touch(&mut vcpu, idle, gfn, Access::Write);
            withdraw(&vm, gfn);
        }

        let debt = vm.memory().write_protect(idle, Span::sized(Gfn(0), 1));
        assert_eq!(debt.pages(), 1);
        debt.settle();
        assert!(is_withdrawn(&vm, 0));
        assert_eq!(touch(&mut vcpu, idle, 0, Access::Read), Next::Resume(Resume::Fixed));
        assert!(
            !leaf(&vm, idle, 0).unwrap().perms.allows(Access::Write),
            "a load gives no more than was left"
        );
        assert_eq!(touch(&mut vcpu, idle, 0, Access::Write), Next::Resume(Resume::Fixed));
        withdraw(&vm, 0);
        vm.memory().write_protect(idle, Span::sized(Gfn(0), 1)).settle();
        assert_eq!(touch(&mut vcpu, idle, 0, Access::Write), Next::Resume(Resume::Fixed), "both at once");
        assert!(leaf(&vm, idle, 0).unwrap().perms.allows(Access::Write));

        let change = vm.invalidate(hvas(1, 1), Reason::Protect);
        let debt = change.apply(idle);
        assert_eq!(debt.pages(), 1);
        drop(debt.settle());
        assert!(is_withdrawn(&vm, 1) && !leaf(&vm, idle, 1).unwrap().host_writable);
        assert_eq!(touch(&mut vcpu, idle, 1, Access::Fetch), Next::Resume(Resume::Fixed));
        let left = leaf(&vm, idle, 1).unwrap();
        assert_eq!((left.perms, left.host_writable), (Perms::RX, false));

        let change = vm.invalidate(hvas(2, 1), Reason::Clear);
        let debt = change.apply(idle);
        assert_eq!(debt.pages(), 1);
        let change = debt.settle();
        vm.host().shift.store(9, SeqCst);
        drop(change);
        assert_eq!((leaf(&vm, idle, 2), vm.stats().leaves), (None, [2, 0, 0]));
        assert_eq!(touch(&mut vcpu, idle, 2, Access::Read), Next::Resume(Resume::Mapped(Level::K4)));
        assert_eq!(leaf(&vm, idle, 2).unwrap().pfn, Pfn((HVA.0 >> PAGE_SHIFT) + 2 + 9));
    }
    in_every_format!(take);
}

#[test]
fn a_store_to_a_withdrawn_leaf_is_logged_and_a_load_is_not() {
    fn log<F: Format>(idle: &mut Idle) {
        let vm = vm::<F>(idle);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        for gfn in 0..4 {
            let _ = touch(&mut vcpu, idle, gfn, Access::Write);
            withdraw(&vm, gfn);
        }
        vm.memory().commit(idle, |tx| tx.set_log_dirty(SLOT, true)).unwrap();
        assert_eq!(touch(&mut vcpu, idle, 1, Access::Read), Next::Resume(Resume::Fixed));
        assert_eq!(touch(&mut vcpu, idle, 2, Access::Write), Next::Resume(Resume::Fixed));
        let mut marked = Vec::new();
        vm.memory().dirty(idle, SLOT, |gfn| marked.push(gfn.0)).unwrap();
        assert_eq!(marked, [2]);
        let writable = |gfn| leaf(&vm, idle, gfn).unwrap().perms.allows(Access::Write);
        assert_eq!([0, 1, 2, 3].map(writable), [false, false, true, false], "only what is marked");
    }
    in_every_format!(log);
}
