//! Accesses to no memory are remembered in the table, at the highest level below which there is no slot, and forgotten
//! when slots change.

use crate::common::identity::Identity;
use slat::table::formats::{Ept5, Npt4};
use slat::table::{Entry, Kind};
use slat::*;

const GIB: u64 = Level::G1.pages();

fn slot(id: u32, gfn: u64, pages: u64) -> Slot {
    Slot::new(SlotId(id), Gfn(gfn), pages, Hva(0x40_0000_0000))
}

fn touch<F: Format>(vm: &Vm<F, Identity>, idle: &mut Idle, gfn: u64) -> Next {
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Read }).unwrap()
}

/// Returns the level at which `gfn` is remembered as MMIO, if it is.
fn remembered<F: Format>(vm: &Vm<F, Identity>, gfn: u64) -> Option<u8> {
    let mut table = vm.memory().root();
    for level in (1..=F::LEVELS).rev().filter_map(Level::new) {
        // SAFETY: a table of this VM, which is not given back meanwhile.
        let entry = unsafe { vm.tables().at(table).cast::<Entry>().add(F::index(Gfn(gfn), level)).as_ref() };
        match entry.load().kind::<F>(level) {
            Kind::Table(pfn) => table = pfn,
            Kind::Mmio(_) => return Some(level.number()),
            _ => return None,
        }
    }
    None
}

fn in_format<F: Format>() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<F, _>::builder(Identity::sleeping()).build().unwrap();
    let pages = vm.table_pages(&mut idle).reachable;
    assert_eq!(touch(&vm, &mut idle, 5), Next::Emulate(Emulate::NoMemory));
    assert_eq!(remembered(&vm, 5), Some(F::LEVELS), "no slot anywhere: one word in the root");
    assert_eq!(touch(&vm, &mut idle, GIB - 1), Next::Emulate(Emulate::NoMemory));
    assert_eq!(vm.table_pages(&mut idle).reachable, pages, "and no table");

    // A slot: the remembered words are forgotten, there and elsewhere.
    vm.memory().commit(&mut idle, |tx| tx.create(slot(0, 512, 512))).unwrap();
    assert_eq!(touch(&vm, &mut idle, 600), Next::Resume(Resume::Mapped(Level::K4)));
    assert_eq!(touch(&vm, &mut idle, 5), Next::Emulate(Emulate::NoMemory));
    assert_eq!(remembered(&vm, 5), Some(2), "its neighbour in the same GiB has a slot");
    assert_eq!(touch(&vm, &mut idle, 5 * GIB), Next::Emulate(Emulate::NoMemory));
    assert_eq!(remembered(&vm, 5 * GIB), Some(3));

    // Inside 2 MiB that a slot shares: page by page.
    vm.memory().commit(&mut idle, |tx| tx.create(slot(1, 2048, 100))).unwrap();
    assert_eq!(touch(&vm, &mut idle, 2200), Next::Emulate(Emulate::NoMemory));
    assert_eq!((remembered(&vm, 2200), remembered(&vm, 2201)), (Some(1), None));
    assert_eq!(touch(&vm, &mut idle, 2050), Next::Resume(Resume::Mapped(Level::K4)));

    // The slot grows over it through another one, is deleted, comes back.
    vm.memory().commit(&mut idle, |tx| tx.create(slot(2, 2148, 300))).unwrap();
    assert_eq!(touch(&vm, &mut idle, 2200), Next::Resume(Resume::Mapped(Level::K4)));
    vm.memory().commit(&mut idle, |tx| tx.delete(SlotId(2)).map(drop)).unwrap();
    assert_eq!(touch(&vm, &mut idle, 2200), Next::Emulate(Emulate::NoMemory));
    assert_eq!(touch(&vm, &mut idle, 2200), Next::Emulate(Emulate::NoMemory));
    vm.memory().commit(&mut idle, |tx| tx.move_to(SlotId(0), Gfn(4096)).map(drop)).unwrap();
    assert_eq!(touch(&vm, &mut idle, 600), Next::Emulate(Emulate::NoMemory));
    assert_eq!(touch(&vm, &mut idle, 4096 + 88), Next::Resume(Resume::Mapped(Level::K4)));
    assert_eq!(vm.stats().mmio_faults, 8);

    // To an invalidation it is a hole like any other.
    assert!(remembered(&vm, 600).is_some());
    drop(vm.memory().invalidate(Span::new(Gfn(0), Gfn(1024)), Reason::Clear).apply(&mut idle).settle());
    assert_eq!(remembered(&vm, 600), None);
    assert_eq!(touch(&vm, &mut idle, 600), Next::Emulate(Emulate::NoMemory));
}

#[test]
fn every_format_remembers_and_forgets() {
    in_format::<Npt4>();
    in_format::<Ept5>();
}

#[test]
fn a_write_to_a_read_only_slot_is_mmio_and_not_remembered() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(Identity::sleeping()).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(slot(0, 0, 8).readonly())).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let fault = |access| Fault { gpa: Gpa(0), access };
    assert_eq!(vcpu.fault(&mut idle, fault(Access::Write)), Ok(Next::Emulate(Emulate::ReadOnly)));
    assert_eq!(remembered(&vm, 0), None);
    assert_eq!(vcpu.fault(&mut idle, fault(Access::Read)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
}
