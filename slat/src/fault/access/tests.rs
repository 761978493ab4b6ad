//! A guest in software: its accesses set A and D, for aging and dirty logs.

use crate::dirty::{DirtyLog, Track};
use crate::table::formats::{Arm64L48, Ept4, Ept4NoAd, Npt4, Pae, Sv48x4};
use crate::*;
use alloc::vec::Vec;

/// Gives out each page of host memory, in pages of up to 2 MiB.
struct Ram(Level);

impl Host for Ram {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), level: self.0, ..HostPage::PLAIN })
    }
}

const BASE: Hva = Hva(1 << 30);
const PAGES: u64 = 2048;
const ALL: Span<Gfn> = Span { start: Gfn(0), end: Gfn(PAGES) };

fn vm<F: Format>(idle: &mut Idle, size: Level, slot: impl Fn(Slot) -> Slot) -> Vm<F, Ram> {
    let log = DirtyLog::bitmap().track(Track::DirtyBits);
    let vm = Vm::builder(Ram(size)).dirty_log(log).build().unwrap();
    let ram = slot(Slot::new(SlotId(0), Gfn(0), PAGES, BASE));
    vm.memory().commit(idle, |tx| tx.create(ram)).unwrap();
    vm
}

/// One access by the guest: faults until a walk succeeds.
fn make<F: Format>(vcpu: &mut Vcpu<F, Ram>, idle: &mut Idle, gfn: u64, access: Access) -> Mapping {
    for _ in 0..4 {
        match vcpu.access(idle, Gfn(gfn).gpa(), access) {
            Ok(mapping) => return mapping,
            Err(fault) => drop(vcpu.fault(idle, fault).unwrap()),
        }
    }
    panic!("faults on {gfn:#x} for ever")
}

fn young<F: Format>(vm: &Vm<F, Ram>, idle: &mut Idle) -> u64 {
    let mut young = 0;
    vm.memory().lockless(idle).age(ALL, |seen| young += u64::from(seen.count()));
    young
}

/// The dirty pages, which are then clean.
fn dirty<F: Format>(vm: &Vm<F, Ram>, idle: &mut Idle) -> Vec<u64> {
    let harvest = vm.memory().harvest(idle, SlotId(0)).unwrap();
    let pages = harvest.iter().map(|page| page.gfn.0).collect();
    harvest.commit();
    pages
}

fn sees_accesses_and_stores<F: Format>() {
    let mut idle = Idle::take().unwrap();
    let vm = vm::<F>(&mut idle, Level::K4, Slot::log_dirty);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for gfn in [3, 700, 701] {
        make(&mut vcpu, &mut idle, gfn, Access::Write);
    }
    assert_eq!(dirty(&vm, &mut idle), [3, 700, 701], "{}", F::NAME);
    assert!(young(&vm, &mut idle) >= 3);
    for round in 0..3 {
        assert_eq!(young(&vm, &mut idle), 0, "{} {round}", F::NAME);
        assert_eq!(dirty(&vm, &mut idle), [0; 0], "{} {round}", F::NAME);
        make(&mut vcpu, &mut idle, 3, Access::Read);
        make(&mut vcpu, &mut idle, 701, Access::Write);
        assert_eq!(young(&vm, &mut idle), 2, "{} {round}", F::NAME);
        assert_eq!(dirty(&vm, &mut idle), [701], "{} {round}: each store after a harvest", F::NAME);
    }
}

#[test]
fn aging_and_dirty_logs_see_what_a_guest_in_software_does() {
    sees_accesses_and_stores::<Ept4>();
    sees_accesses_and_stores::<Ept4NoAd>();
    sees_accesses_and_stores::<Npt4>();
    sees_accesses_and_stores::<Pae>();
    sees_accesses_and_stores::<Arm64L48>();
    sees_accesses_and_stores::<Sv48x4>();
}

#[test]
fn a_walk_returns_the_leaf_that_hardware_would_use() {
    let mut idle = Idle::take().unwrap();
    let vm = vm::<Ept4>(&mut idle, Level::M2, |slot| slot);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let load = make(&mut vcpu, &mut idle, 0x203, Access::Read);
    assert_eq!((load.gfns, load.level), (Span::sized(Gfn(0x200), 512), Level::M2));
    assert_eq!(load.leaf.pfn, Pfn((BASE.0 >> PAGE_SHIFT) + 0x200));
    assert!(load.leaf.accessed && !load.leaf.dirty, "a load sets A alone");
    let store = make(&mut vcpu, &mut idle, 0x2ff, Access::Write);
    assert!(store.leaf.dirty && store.gfns == load.gfns);
    assert_eq!(vm.memory().translate(&mut idle, Gfn(0x203)), Some(store));
}

#[test]
fn a_walk_that_ends_in_a_fault_says_so() {
    let mut idle = Idle::take().unwrap();
    let vm = vm::<Ept4>(&mut idle, Level::K4, Slot::readonly);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let fault = |gpa, access| Err(Fault { gpa: Gpa(gpa), access });
    assert_eq!(vcpu.access(&mut idle, Gpa(0x5123), Access::Read), fault(0x5123, Access::Read));
    make(&mut vcpu, &mut idle, 5, Access::Fetch);
    assert_eq!(vcpu.access(&mut idle, Gpa(0x5123), Access::Write), fault(0x5123, Access::Write));
    // In no memslot; beyond the format; the highest address.
    for gpa in [PAGES << 12, 1 << 48, u64::MAX] {
        assert_eq!(vcpu.access(&mut idle, Gpa(gpa), Access::Read), fault(gpa, Access::Read));
    }
    // The pages that the host takes back are gone.
    let _change = vm.invalidate(Span::sized(BASE, PAGES << 12), Reason::Unmap).apply(&mut idle).settle();
    assert_eq!(vcpu.access(&mut idle, Gpa(0x5123), Access::Read), fault(0x5123, Access::Read));
}

/// How many pages an aging pass finds, and which a harvest finds, once a guest that looks its mappings up without a walk
/// has made accesses again.
fn found_of_translated<F: Format>() -> (u64, Vec<u64>) {
    let mut idle = Idle::take().unwrap();
    let vm = vm::<F>(&mut idle, Level::K4, Slot::log_dirty);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let mut store = |idle: &mut Idle| {
        let mapped = vm.memory().translate(idle, Gfn(3)).filter(|found| found.leaf.accessed);
        if mapped.is_none_or(|found| !found.leaf.perms.allows(Access::Write)) {
            let _ = vcpu.fault(idle, Fault { gpa: Gfn(3).gpa(), access: Access::Write }).unwrap();
        }
    };
    store(&mut idle);
    dirty(&vm, &mut idle);
    young(&vm, &mut idle);
    store(&mut idle);
    let young = young(&vm, &mut idle);
    (young, dirty(&vm, &mut idle))
}

/// The table in the book's chapter on these bits, and a negative control of the tests above.
#[test]
fn without_a_walk_only_formats_without_bits_see_accesses() {
    assert_eq!(found_of_translated::<Ept4>(), (0, Vec::new()));
    assert_eq!(found_of_translated::<Ept4NoAd>(), (1, [3].to_vec()));
}
