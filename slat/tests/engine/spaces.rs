//! Address spaces: memslots and tables of their own over the same host memory.

use crate::common::identity::Identity;
use slat::table::formats::{Ept4, Npt5};
use slat::*;

/// A vCPU's caches: only the number of full flushes.
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
    (Idle::take().unwrap(), Vm::builder(Identity::sleeping()).vcpus(2).address_spaces(2).build().unwrap())
}

fn at(gfn: u64) -> Fault {
    Fault { gpa: Gfn(gfn).gpa(), access: Access::Write }
}

#[test]
fn each_space_has_slots_tables_and_generations_of_its_own() {
    let (mut idle, vm) = vm::<Ept4>();
    let smm = vm.space(SMM).unwrap();
    let (ram, smram) = (Slot::new(SlotId(0), Gfn(0), 64, RAM), Slot::new(SlotId(0), Gfn(32), 64, RAM));
    vm.memory().commit(&mut idle, |tx| tx.create(ram)).unwrap();
    smm.commit(&mut idle, |tx| tx.create(smram)).expect("neither id nor frames meet the other space's");
    assert_eq!(
        (vm.memory().get(&mut idle, SlotId(0)), smm.get(&mut idle, SlotId(0))),
        (Some(ram), Some(smram))
    );
    assert!(vm.space(SpaceId(2)).is_none());
    assert_ne!(vm.memory().root(), vm.space(SMM).unwrap().root());

    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let mut tlb = Forgot::default();
    assert_eq!(vcpu.fault(&mut idle, at(40)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
    assert_eq!(vcpu.fault(&mut idle, at(80)), Ok(Next::Emulate(Emulate::NoMemory)));
    drop(vcpu.enter(&mut idle, &mut tlb));
    tlb.0 = 0; // the first entry flushes everything
    assert!(vcpu.switch_to(SMM) && vcpu.switch_to(SMM));
    for _ in 0..2 {
        assert_eq!(vcpu.enter(&mut idle, &mut tlb).root(), vm.space(SMM).unwrap().root());
    }
    assert_eq!((vcpu.space(), tlb.0), (SMM, 1), "forgets once, when the root really changes");
    assert_eq!(vcpu.fault(&mut idle, at(80)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
    assert_eq!(
        vcpu.fault(&mut idle, at(40)),
        Ok(Next::Resume(Resume::Mapped(Level::K4))),
        "not mapped here yet"
    );
    assert!(!vcpu.switch_to(SpaceId(9)));

    let pfn = |mapping: Option<Mapping>| mapping.map(|mapping| mapping.leaf.pfn.0 - (RAM.0 >> PAGE_SHIFT));
    assert_eq!(pfn(vm.memory().translate(&mut idle, Gfn(40))), Some(40));
    assert_eq!(pfn(vm.space(SMM).unwrap().translate(&mut idle, Gfn(40))), Some(8));
    assert_eq!(pfn(vm.memory().translate(&mut idle, Gfn(80))), None);

    let (main, other) = (vm.memory().generation().number(), smm.generation().number());
    assert_eq!((main % 2, other % 2), (0, 1), "never the same");
    smm.commit(&mut idle, |tx| tx.delete(SlotId(0))).unwrap();
    assert_eq!(smm.generation().number(), other + 2);
    assert_eq!(vm.memory().generation().number(), main, "the other space's does not count");
    assert!(!smm.generation().is_in_progress());
    assert_eq!(pfn(vm.memory().translate(&mut idle, Gfn(40))), Some(40), "its tables are not touched either");
    assert_eq!(pfn(vm.space(SMM).unwrap().translate(&mut idle, Gfn(40))), None);
}

/// Table pages come from one pool, and a hint beside a table is valid for the table's space: each space counts the
/// versions of its own slots.
#[test]
fn a_table_page_forgets_the_slots_of_the_space_that_had_it_before() {
    const TABLES: u64 = 16;
    let table = Level::M2.pages();
    let (mut idle, vm) = vm::<Npt5>();
    let (mut vcpu, mut second) = (vm.vcpu(VcpuId(0)).unwrap(), vm.vcpu(VcpuId(1)).unwrap());
    // One slot of SMM in many tables. The second fault in each finds the slot by the hint beside the table.
    let smram = Slot::new(SlotId(0), Gfn(0), TABLES * table, RAM);
    vm.space(SMM).unwrap().commit(&mut idle, |tx| tx.create(smram)).unwrap();
    for index in 0..TABLES {
        for vcpu in [&mut vcpu, &mut second] {
            vcpu.switch_to(SMM);
            let gfn = index * table + u64::from(vcpu.id().0);
            assert_eq!(vcpu.fault(&mut idle, at(gfn)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
        }
    }
    vm.zap_all(&mut idle).unwrap();
    vm.collect(&mut idle);
    // A slot of space 0, its first version too, in tables that reuse these pages. It leaves out one frame of each.
    let ram = |index| Slot::new(SlotId(index as u32), Gfn(index * table + 1), table - 1, RAM);
    vm.memory().commit(&mut idle, |tx| (0..TABLES).try_for_each(|index| tx.create(ram(index)))).unwrap();
    vcpu.switch_to(SpaceId(0));
    for index in 0..TABLES {
        assert_eq!(vcpu.fault(&mut idle, at(index * table + 1)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
        assert_eq!(
            vcpu.fault(&mut idle, at(index * table)),
            Ok(Next::Emulate(Emulate::NoMemory)),
            "table {index}: no slot of this space"
        );
    }
}

#[test]
fn the_host_takes_a_page_away_from_every_space() {
    let (mut idle, vm) = vm::<Npt5>();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for (space, gfn) in [(SpaceId(0), 0), (SMM, 100)] {
        let slots = vm.space(space).unwrap();
        slots.commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(gfn), 8, RAM))).unwrap();
        vcpu.switch_to(space);
        for page in 0..8 {
            assert_eq!(vcpu.fault(&mut idle, at(gfn + page)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
        }
    }
    drop(vm.invalidate(Span::sized(RAM + 3 * PAGE_SIZE, PAGE_SIZE), Reason::Unmap).apply(&mut idle).settle());
    for page in 0..8 {
        let here = vm.memory().translate(&mut idle, Gfn(page)).is_some();
        let there = vm.space(SMM).unwrap().translate(&mut idle, Gfn(100 + page)).is_some();
        assert_eq!((here, there), (page != 3, page != 3));
    }
    assert_eq!(vm.stats().leaves[0], 14);
}

/// Every operation on an address space, in each of three, beside two others that must not notice.
#[test]
fn one_scenario_runs_in_each_space() {
    for by_bits in [false, true] {
        for chosen in 0..3 {
            scenario(SpaceId(chosen), by_bits);
        }
    }
}

type Seen = Vec<(Span<Gfn>, Level, Leaf)>;

fn scenario(chosen: SpaceId, by_bits: bool) {
    const PAGES: u64 = 1024;
    let mut idle = Idle::take().unwrap();
    let host = Identity::of(Level::M2);
    let track = if by_bits { Track::DirtyBits } else { Track::Writes };
    let builder = Vm::<Ept4, _>::builder(host).vcpus(1).address_spaces(3);
    let vm = builder.dirty_log(DirtyLog::bitmap().track(track)).build().unwrap();
    let space = vm.space(chosen).unwrap();
    assert_eq!((space.id(), space.root()), (chosen, vm.space(chosen).unwrap().root()));
    let ram = SlotId(0);
    // Other host addresses in each: a change of those reaches only that space.
    for nth in 0..3 {
        let hva = RAM + (u64::from(nth) << 30);
        vm.space(SpaceId(nth))
            .unwrap()
            .commit(&mut idle, |tx| tx.create(Slot::new(ram, Gfn(0), PAGES, hva)))
            .unwrap();
    }
    let all = Span::new(Gfn(0), Gfn(PAGES));
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for one in [0, 1, 2].map(SpaceId) {
        assert!(vcpu.switch_to(one));
        assert_eq!(vcpu.prefault(&mut idle, all, Prefault::young(Access::Write)), Ok(PAGES), "prefault");
    }
    vcpu.switch_to(chosen);
    let seen = |idle: &mut Idle, id: SpaceId| -> Seen {
        let mut seen = Vec::new();
        let space = vm.space(id).unwrap();
        space.lockless(idle).for_each(all, |found| seen.push((found.gfns, found.level, found.leaf)));
        seen
    };
    let others = |idle: &mut Idle| {
        let others = (0..3).map(SpaceId).filter(|id| *id != chosen);
        others.map(|id| seen(idle, id)).collect::<Vec<_>>()
    };
    let before = others(&mut idle);
    assert_eq!(seen(&mut idle, chosen).len(), 2, "large pages");

    // Split, and recovered.
    assert_eq!(space.split(&mut idle, Span::sized(Gfn(0), 1), Level::K4), Ok(1));
    assert_eq!(seen(&mut idle, chosen).len(), 513);
    assert_eq!(space.recover(&mut idle, all), 1);
    assert_eq!(seen(&mut idle, chosen).len(), 2);

    // Aging, by frames and by host addresses.
    let mut young = 0;
    space.lockless(&mut idle).age(all, |pages| young += pages.count());
    assert_eq!(u64::from(young), PAGES);
    assert!(!space.lockless(&mut idle).is_young(all));
    let hvas = space.get(&mut idle, ram).unwrap().hvas();
    assert!(!vm.young(&mut idle, hvas, Young::Test));
    let elsewhere = vm.space(SpaceId((chosen.0 + 1) % 3)).unwrap().get(&mut idle, ram).unwrap().hvas();
    assert!(vm.young(&mut idle, elsewhere, Young::Test), "the others have not been aged");

    // Write protection: a debt, and the next store gets its permission back.
    let protected = space.write_protect(&mut idle, Span::sized(Gfn(0), 512));
    assert_eq!(protected.pages(), 512);
    protected.settle();
    assert!(!space.translate(&mut idle, Gfn(7)).unwrap().leaf.perms.allows(Access::Write));
    assert_eq!(vcpu.fault(&mut idle, at(7)), Ok(Next::Resume(Resume::Fixed)));
    assert_eq!(space.shared(&mut idle).write_protect(Span::sized(Gfn(512), 512)).pages(), 512);
    assert_eq!(vcpu.fault(&mut idle, at(600)), Ok(Next::Resume(Resume::Fixed)));

    // A dirty log: stores, marks, harvest, clear, and its end.
    let slots = space;
    slots.commit(&mut idle, |tx| tx.set_log_dirty(ram, true)).unwrap();
    assert_eq!(seen(&mut idle, chosen).len() as u64, PAGES, "split when the log began");
    for gfn in [5, 600] {
        let _ = vcpu.fault(&mut idle, at(gfn)).unwrap();
    }
    slots.mark_dirty(Span::sized(Gfn(9), 1));
    vm.mark_dirty(Span::sized(hvas.start + 10 * PAGE_SIZE, 1));
    slots.mark_dirty_bits(ram, 64, &[1]).unwrap();
    let expected: &[u64] = if by_bits { &[9, 10, 64] } else { &[5, 9, 10, 64, 600] };
    let mut dirty = Vec::new();
    slots.dirty(&mut idle, ram, |gfn| dirty.push(gfn.0)).unwrap();
    dirty.retain(|gfn| !by_bits || ![5, 600].contains(gfn));
    assert_eq!(dirty, expected);
    assert!(expected.iter().all(|gfn| slots.is_dirty(Gfn(*gfn))));
    slots.clear_dirty(&mut idle, ram, 64, 64, &[1]).unwrap();
    assert!(!slots.is_dirty(Gfn(64)));
    let harvest = slots.harvest(&mut idle, ram).unwrap();
    assert!(harvest.iter().all(|page| page.space == chosen));
    harvest.commit();
    assert_eq!(slots.harvest_all(&mut idle).unwrap().pages(), 0);
    slots.commit(&mut idle, |tx| tx.set_log_dirty(ram, false)).unwrap();
    assert_eq!(seen(&mut idle, chosen).len(), 2, "large again");

    // Zapped: by frames, by host addresses, by a transaction.
    drop(space.invalidate(Span::new(Gfn(0), Gfn(512)), Reason::Unmap).apply(&mut idle).settle());
    assert_eq!(seen(&mut idle, chosen).len(), 1);
    drop(vm.invalidate(Span::new(hvas.start + (2 << 20), hvas.end), Reason::Unmap).apply(&mut idle).settle());
    assert_eq!(seen(&mut idle, chosen), []);
    let _ = vcpu.fault(&mut idle, at(7)).unwrap();
    slots.commit(&mut idle, |tx| tx.cut(ram, Span::sized(Gfn(0), 8), SlotId(1))).unwrap();
    assert_eq!(
        (space.translate(&mut idle, Gfn(7)), vcpu.fault(&mut idle, at(7))),
        (None, Ok(Next::Emulate(Emulate::NoMemory)))
    );
    slots.commit(&mut idle, |tx| tx.delete(ram)).unwrap();
    assert_eq!(seen(&mut idle, chosen), []);
    assert_eq!(others(&mut idle), before, "the others are as they were");
    assert_eq!(vm.space(SpaceId((chosen.0 + 1) % 3)).unwrap().len(), 1);
}
