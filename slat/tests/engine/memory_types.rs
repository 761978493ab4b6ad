//! Memory types, and pages that do not execute: the settings of slot and host, through every way in which a leaf is
//! made or changed.

use crate::common::own::Own;
use slat::slots::Rule;
use slat::table::formats::*;
use slat::*;
use std::sync::Mutex;

const RAM: Hva = Hva(0x40_0000_0000);
const LARGE: u64 = Level::M2.pages();

/// Frame = address; the test sets everything else.
struct Says(Mutex<HostPage>);

impl Host for Says {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..*self.0.lock().unwrap() })
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }
}

fn says(page: HostPage) -> Says {
    Says(Mutex::new(page))
}

fn slot() -> Slot {
    Slot::new(SlotId(0), Gfn(0), 4 * LARGE, RAM)
}

/// A VM whose only slot is `slot`.
fn vm<F: Format>(host: Says, slot: Slot, nx_huge_pages: bool) -> (Idle, Vm<F, Says>) {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<F, _>::builder(host).nx_huge_pages(nx_huge_pages).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
    (idle, vm)
}

fn fault(gfn: u64, access: Access) -> Fault {
    Fault { gpa: Gfn(gfn).gpa(), access }
}

fn leaf<F: Format>(vm: &Vm<F, Says>, idle: &mut Idle, gfn: u64) -> Leaf {
    vm.memory().translate(idle, Gfn(gfn)).unwrap().leaf
}

/// For each type of slot and page, the narrower one is mapped, small and large; then split, and recovered.
fn the_narrower_is_mapped<F: Format>() {
    for (of_slot, of_page) in MemoryType::ALL.into_iter().flat_map(|a| MemoryType::ALL.map(|b| (a, b))) {
        for level in [Level::K4, Level::M2] {
            let host = says(HostPage { level, memory: of_page, ..HostPage::PLAIN });
            let (mut idle, vm) = vm::<F>(host, slot().memory(of_slot), false);
            let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
            let narrower = of_slot.max(of_page);
            // The second fault of a vCPU may take the short path.
            for gfn in [0, 1, LARGE, LARGE + 1] {
                let _ = vcpu.fault(&mut idle, fault(gfn, Access::Write)).unwrap();
                let found = leaf(&vm, &mut idle, gfn);
                assert_eq!((found.memory, found.perms), (narrower, Perms::RWX), "{} {level:?}", F::NAME);
            }
            if level == Level::M2 {
                let both = Span::new(Gfn(0), Gfn(2 * LARGE));
                assert_eq!(vm.memory().split(&mut idle, both, Level::K4), Ok(2));
                assert_eq!(leaf(&vm, &mut idle, LARGE + 7).memory, narrower, "split");
                assert_eq!(vm.memory().recover(&mut idle, both), 2);
                assert_eq!(leaf(&vm, &mut idle, LARGE).memory, narrower, "large again");
            }
        }
    }
}

#[test]
fn of_slot_and_page_the_narrower_type_is_mapped() {
    the_narrower_is_mapped::<Ept4>();
    the_narrower_is_mapped::<Npt4>();
    the_narrower_is_mapped::<Arm64L48>();
    the_narrower_is_mapped::<Arm64NoAd>();
    the_narrower_is_mapped::<Sv39x4>();
}

#[test]
fn a_fetch_through_a_slot_that_does_not_execute_is_mmio() {
    for nx_huge_pages in [false, true] {
        let host = says(HostPage { level: Level::M2, ..HostPage::PLAIN });
        let (mut idle, vm) = vm::<Ept4>(host, slot().no_execute(), nx_huge_pages);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        assert_eq!(
            vcpu.fault(&mut idle, fault(5, Access::Fetch)),
            Ok(Next::Emulate(Emulate::ReadOnly)),
            "a hole"
        );
        let _ = vcpu.fault(&mut idle, fault(5, Access::Write)).unwrap();
        assert_eq!(
            vcpu.fault(&mut idle, fault(5, Access::Fetch)),
            Ok(Next::Emulate(Emulate::ReadOnly)),
            "a leaf"
        );
        let everything = Span::new(Gfn(0), Gfn(4 * LARGE));
        vm.memory().split(&mut idle, everything, Level::K4).unwrap();
        assert_eq!(leaf(&vm, &mut idle, 5).perms, Perms::READ.with(Perms::WRITE), "split");
        vm.memory().recover(&mut idle, everything);
        assert_eq!(leaf(&vm, &mut idle, 5).perms, Perms::READ.with(Perms::WRITE), "large again");
        assert_eq!(vcpu.fault(&mut idle, fault(5, Access::Fetch)), Ok(Next::Emulate(Emulate::ReadOnly)));
    }
}

#[test]
fn a_fetch_that_the_host_refuses_is_an_error_until_it_allows_it() {
    for level in [Level::K4, Level::M2] {
        let page = HostPage { level, execute: false, ..HostPage::PLAIN };
        let (mut idle, vm) = vm::<Npt4>(says(page), slot(), false);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let refused = Err(FaultError::Host(HostError::Fault));
        assert_eq!(vcpu.fault(&mut idle, fault(5, Access::Fetch)), refused, "a hole");
        let _ = vcpu.fault(&mut idle, fault(5, Access::Write)).unwrap();
        assert_eq!(vcpu.fault(&mut idle, fault(5, Access::Fetch)), refused, "a leaf");
        assert_eq!(leaf(&vm, &mut idle, 5).perms, Perms::READ.with(Perms::WRITE));
        vm.host().0.lock().unwrap().execute = true;
        let _ = vcpu.fault(&mut idle, fault(5, Access::Fetch)).unwrap();
        assert_eq!(leaf(&vm, &mut idle, 5).perms, Perms::RWX);
    }
}

/// A page becomes writable, and has another type since: the old translations are flushed before the new one is mapped.
#[test]
#[cfg_attr(feature = "oracle-always", ignore = "breaks the contract, which the oracle reports")]
fn a_page_that_is_writable_now_and_of_another_type_is_not_upgraded_in_place() {
    let device = HostPage { memory: MemoryType::Device, ..HostPage::PLAIN };
    let no_execute = HostPage { execute: false, ..HostPage::PLAIN };
    for (then, in_place) in [(HostPage::PLAIN, true), (device, false), (no_execute, false)] {
        let (mut idle, vm) = vm::<Ept4>(says(HostPage { writable: false, ..HostPage::PLAIN }), slot(), false);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let _ = vcpu.fault(&mut idle, fault(5, Access::Read)).unwrap();
        *vm.host().0.lock().unwrap() = then;
        let _ = vcpu.fault(&mut idle, fault(5, Access::Write)).unwrap();
        let found = leaf(&vm, &mut idle, 5);
        assert_eq!((found.memory, found.perms.allows(Access::Fetch)), (then.memory, then.execute));
        assert!(found.perms.allows(Access::Write));
        assert_eq!(vm.stats().permission_faults, u64::from(in_place));
    }
}

#[test]
#[cfg_attr(feature = "oracle-always", ignore = "breaks the contract, which the oracle reports")]
fn a_change_of_type_that_is_told_page_by_page_leaves_no_leaf_of_the_old_type() {
    let (mut idle, vm) = vm::<Ept4>(says(HostPage { writable: false, ..HostPage::PLAIN }), slot(), false);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let page = Span::sized(RAM + 5 * PAGE_SIZE, PAGE_SIZE);
    for (to, stays) in [
        (HostPage { pfn: Pfn(77), writable: false, ..HostPage::PLAIN }, true),
        (
            HostPage { pfn: Pfn(77), writable: false, memory: MemoryType::WriteCombining, ..HostPage::PLAIN },
            false,
        ),
        (HostPage { pfn: Pfn(77), writable: false, execute: false, ..HostPage::PLAIN }, false),
    ] {
        let _ = vcpu.fault(&mut idle, fault(5, Access::Read)).unwrap();
        let mut change = vm.invalidate(page, Reason::ChangePte);
        change.changed(&mut idle, page, Some(to)).settle();
        drop(change);
        assert_eq!(vm.memory().translate(&mut idle, Gfn(5)).is_some(), stays, "{to:?}");
    }
}

#[test]
fn a_leaf_withdrawn_to_learn_of_an_access_comes_back_as_it_was() {
    let (mut idle, vm) =
        vm::<Ept4NoAd>(says(HostPage::PLAIN), slot().memory(MemoryType::Uncached).no_execute(), false);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let _ = vcpu.fault(&mut idle, fault(5, Access::Write)).unwrap();
    let before = leaf(&vm, &mut idle, 5);
    vcpu.prefault(&mut idle, Span::new(Gfn(6), Gfn(7)), Prefault::OLD).unwrap();
    assert_eq!(
        leaf(&vm, &mut idle, 6),
        Leaf { pfn: before.pfn + 1, accessed: false, dirty: false, ..before }
    );
    assert_eq!(vcpu.fault(&mut idle, fault(6, Access::Write)), Ok(Next::Resume(Resume::Fixed)));
    assert_eq!(leaf(&vm, &mut idle, 6), Leaf { pfn: before.pfn + 1, ..before });
}

#[test]
fn a_format_that_knows_ordinary_memory_only_refuses_the_rest() {
    let (mut idle, vm) = vm::<Own>(says(HostPage::PLAIN), slot(), false);
    let device = Slot::new(SlotId(1), Gfn(1 << 20), 1, RAM).memory(MemoryType::Device);
    let refused = vm.memory().commit(&mut idle, |tx| tx.create(device)).unwrap_err();
    assert_eq!((refused.rule, refused.errno()), (Rule::MemoryType(MemoryType::Device), 22));
    assert_eq!(
        refused.to_string(),
        "memslot 1 at 0x100000000..0x100001000: this VM's page-table format has no memory type Device"
    );
    vm.host().0.lock().unwrap().memory = MemoryType::Uncached;
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let answer = vcpu.fault(&mut idle, fault(5, Access::Read));
    assert_eq!(answer, Err(FaultError::Host(HostError::Fault)));
}

#[test]
fn a_request_in_the_kernels_terms_leaves_type_and_permission_alone() {
    let (mut idle, vm) =
        vm::<Ept4>(says(HostPage::PLAIN), slot().memory(MemoryType::Device).no_execute(), false);
    let mut region = slots::Region::from(slot());
    region.flags = slots::Region::LOG_DIRTY;
    vm.memory().commit(&mut idle, |tx| tx.set(region)).unwrap();
    let now = vm.memory().get(&mut idle, SlotId(0)).unwrap();
    assert_eq!(now, slot().memory(MemoryType::Device).no_execute().log_dirty());
}
