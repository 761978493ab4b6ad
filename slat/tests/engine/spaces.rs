//! Address spaces: memslots and tables of their own over the same host memory.

use slat::table::formats::{Ept4, Npt5};
use slat::table::memory::TableMemory;
use slat::*;

/// A host whose frame is the address.
struct Identity;

// SAFETY: the defaults keep the contract.
unsafe impl TableMemory for Identity {}

impl Host for Identity {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }
}

/// What a vCPU caches: only how often it was told to forget everything.
#[derive(Default)]
struct Forgot(u32);

impl Translations for Forgot {
    fn flush_all(&mut self) {
        self.0 += 1;
    }

    fn flush(&mut self, _: Span<Gfn>) {}
}

const SMM: SpaceId = SpaceId(1);
const RAM: Hva = Hva(0x4000_0000);

fn vm<F: Format>() -> (Idle, Vm<F, Identity>) {
    (Idle::take().unwrap(), Vm::builder(Identity).vcpus(2).address_spaces(2).build().unwrap())
}

fn at(gfn: u64) -> Fault {
    Fault { gpa: Gfn(gfn).gpa(), access: Access::Write }
}

#[test]
fn each_space_has_slots_tables_and_generations_of_its_own() {
    let (mut idle, vm) = vm::<Ept4>();
    let smm = vm.slots_in(SMM).unwrap();
    let (ram, smram) = (Slot::new(SlotId(0), Gfn(0), 64, RAM), Slot::new(SlotId(0), Gfn(32), 64, RAM));
    vm.slots().commit(&mut idle, |tx| tx.create(ram)).unwrap();
    smm.commit(&mut idle, |tx| tx.create(smram)).expect("neither id nor frames meet the other space's");
    assert_eq!(
        (vm.slots().get(&mut idle, SlotId(0)), smm.get(&mut idle, SlotId(0))),
        (Some(ram), Some(smram))
    );
    assert!(vm.slots_in(SpaceId(2)).is_none() && vm.root_in(SpaceId(2)).is_none());
    assert_ne!(vm.root(), vm.root_in(SMM).unwrap());

    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let mut tlb = Forgot::default();
    assert_eq!(vcpu.fault(&mut idle, at(40)), Ok(Done::Mapped(Level::K4)));
    assert_eq!(vcpu.fault(&mut idle, at(80)), Ok(Done::Mmio));
    drop(vcpu.enter(&mut idle, &mut tlb));
    tlb.0 = 0; // the first entry forgets all
    assert!(vcpu.switch_to(SMM) && vcpu.switch_to(SMM));
    for _ in 0..2 {
        assert_eq!(vcpu.enter(&mut idle, &mut tlb).root(), vm.root_in(SMM).unwrap());
    }
    assert_eq!((vcpu.space(), tlb.0), (SMM, 1), "forgets once, when the root really changes");
    assert_eq!(vcpu.fault(&mut idle, at(80)), Ok(Done::Mapped(Level::K4)));
    assert_eq!(vcpu.fault(&mut idle, at(40)), Ok(Done::Mapped(Level::K4)), "not mapped here yet");
    assert!(!vcpu.switch_to(SpaceId(9)));

    let pfn = |mapping: Option<Mapping>| mapping.map(|mapping| mapping.leaf.pfn.0 - (RAM.0 >> PAGE_SHIFT));
    assert_eq!(pfn(vm.translate(&mut idle, Gfn(40))), Some(40));
    assert_eq!(pfn(vm.translate_in(&mut idle, SMM, Gfn(40))), Some(8));
    assert_eq!(pfn(vm.translate(&mut idle, Gfn(80))), None);

    let (main, other) = (vm.slots().generation().number(), smm.generation().number());
    assert_eq!((main % 2, other % 2), (0, 1), "never the same");
    smm.commit(&mut idle, |tx| tx.delete(SlotId(0))).unwrap();
    assert_eq!(smm.generation().number(), other + 2);
    assert_eq!(vm.slots().generation().number(), main, "the other space's does not count");
    assert!(!smm.generation().is_in_progress());
    assert_eq!(pfn(vm.translate(&mut idle, Gfn(40))), Some(40), "its tables are not touched either");
    assert_eq!(pfn(vm.translate_in(&mut idle, SMM, Gfn(40))), None);
}

/// Table pages come from one pool, and what is remembered beside one is good for the space that it serves: each space counts
/// the versions of its own slots.
#[test]
fn a_table_page_forgets_the_slots_of_the_space_that_had_it_before() {
    const TABLES: u64 = 16;
    let table = Level::M2.pages();
    let (mut idle, vm) = vm::<Npt5>();
    let (mut vcpu, mut second) = (vm.vcpu(VcpuId(0)).unwrap(), vm.vcpu(VcpuId(1)).unwrap());
    // One slot of SMM in many tables. The second fault in each finds the slot by way of the table, and leaves it there.
    let smram = Slot::new(SlotId(0), Gfn(0), TABLES * table, RAM);
    vm.slots_in(SMM).unwrap().commit(&mut idle, |tx| tx.create(smram)).unwrap();
    for index in 0..TABLES {
        for vcpu in [&mut vcpu, &mut second] {
            vcpu.switch_to(SMM);
            let gfn = index * table + u64::from(vcpu.id().0);
            assert_eq!(vcpu.fault(&mut idle, at(gfn)), Ok(Done::Mapped(Level::K4)));
        }
    }
    vm.zap_all(&mut idle).unwrap();
    vm.collect(&mut idle);
    // A slot of space 0, its first version too, in tables that are made of the same pages. It leaves out one frame of each.
    let ram = |index| Slot::new(SlotId(index as u32), Gfn(index * table + 1), table - 1, RAM);
    vm.slots().commit(&mut idle, |tx| (0..TABLES).try_for_each(|index| tx.create(ram(index)))).unwrap();
    vcpu.switch_to(SpaceId(0));
    for index in 0..TABLES {
        assert_eq!(vcpu.fault(&mut idle, at(index * table + 1)), Ok(Done::Mapped(Level::K4)));
        assert_eq!(
            vcpu.fault(&mut idle, at(index * table)),
            Ok(Done::Mmio),
            "table {index}: no slot of this space"
        );
    }
}

#[test]
fn the_host_takes_a_page_away_from_every_space() {
    let (mut idle, vm) = vm::<Npt5>();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for (space, gfn) in [(SpaceId(0), 0), (SMM, 100)] {
        let slots = vm.slots_in(space).unwrap();
        slots.commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(gfn), 8, RAM))).unwrap();
        vcpu.switch_to(space);
        for page in 0..8 {
            assert_eq!(vcpu.fault(&mut idle, at(gfn + page)), Ok(Done::Mapped(Level::K4)));
        }
    }
    vm.invalidate(Span::sized(RAM + 3 * PAGE_SIZE, PAGE_SIZE), Why::Unmap).apply(&mut idle).settle();
    for page in 0..8 {
        let here = vm.translate(&mut idle, Gfn(page)).is_some();
        let there = vm.translate_in(&mut idle, SMM, Gfn(100 + page)).is_some();
        assert_eq!((here, there), (page != 3, page != 3));
    }
    assert_eq!(vm.stats().leaves[0], 14);
}
