//! The path of a fault, from outside: outcomes, permissions, large pages, slots, invalidation.

use crate::common::identity::Identity;
use slat::slots::Rule;
use slat::table::formats::{Ept4, Npt4};
use slat::*;
use std::sync::atomic::Ordering::SeqCst;

const HVA: Hva = Hva(0x4000_0000);

fn vm<F: Format>(pages: u64) -> (Idle, Vm<F, Identity>) {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<F, Identity>::builder(Identity::default()).vcpus(2).build().unwrap();
    let slot = Slot::new(SlotId(7), Gfn(0), pages, HVA);
    vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
    (idle, vm)
}

fn at(gfn: u64, access: Access) -> Fault {
    Fault { gpa: Gfn(gfn).gpa(), access }
}

#[test]
fn outcomes_mapped_spurious_mmio() {
    let (mut idle, vm) = vm::<Ept4>(64);
    let mut vcpu = vm.vcpu(VcpuId(1)).unwrap();
    assert_eq!(vcpu.fault(&mut idle, at(3, Access::Read)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
    assert_eq!(
        vcpu.fault(&mut idle, at(3, Access::Write)),
        Ok(Next::Resume(Resume::Spurious)),
        "mapped writable at once"
    );
    assert_eq!(
        vcpu.fault(&mut idle, at(64, Access::Read)),
        Ok(Next::Emulate(Emulate::NoMemory)),
        "past the slot"
    );
    assert_eq!(
        vcpu.fault(&mut idle, at(1 << 40, Access::Read)),
        Ok(Next::Emulate(Emulate::NoMemory)),
        "past the format"
    );
    let stats = vm.stats();
    assert_eq!(
        (stats.mapped_faults, stats.spurious_faults, stats.mmio_faults, stats.leaves[0]),
        (1, 1, 2, 1)
    );
    assert!(vm.vcpu(VcpuId(1)).is_none(), "one holder");
    assert!(vm.vcpu(VcpuId(2)).is_none(), "the VM has two");
}

#[test]
fn a_host_that_sleeps_is_asked_outside_of_the_walk() {
    let (mut idle, vm) = vm::<Npt4>(64);
    vm.host().sleeps.store(true, SeqCst);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    assert_eq!(vcpu.fault(&mut idle, at(9, Access::Read)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
    assert_eq!(vm.host().resolved.load(SeqCst), 1);
    assert_eq!(vm.memory().translate(&mut idle, Gfn(9)).unwrap().leaf.pfn, Pfn((HVA.0 >> 12) + 9));
}

/// A write to a page that the host had read-only and makes writable in place, whether the host sleeps or not.
#[test]
fn a_page_made_writable_in_place_is_upgraded() {
    for sleeps in [false, true] {
        let (mut idle, vm) = vm::<Npt4>(64);
        vm.host().readonly.store(true, SeqCst);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let _ = vcpu.fault(&mut idle, at(5, Access::Read)).unwrap();
        assert!(!vm.memory().translate(&mut idle, Gfn(5)).unwrap().leaf.perms.allows(Access::Write));
        vm.host().sleeps.store(sleeps, SeqCst);
        let done = vcpu.fault(&mut idle, at(5, Access::Write)).unwrap();
        assert_eq!(done, Next::Resume(Resume::Fixed));
        let leaf = vm.memory().translate(&mut idle, Gfn(5)).unwrap().leaf;
        assert!(leaf.perms.allows(Access::Write) && leaf.host_writable && leaf.dirty);
        assert_eq!(vm.stats().leaves, [1, 0, 0]);
    }
}

/// As above, for a small part of a large page: it is mapped by itself, and the rest stays.
#[test]
fn a_part_of_a_large_page_made_writable_is_mapped_by_itself() {
    let (mut idle, vm) = vm::<Npt4>(512);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    vm.host().offer(Level::G1);
    vm.host().readonly.store(true, SeqCst);
    assert_eq!(vcpu.fault(&mut idle, at(5, Access::Read)), Ok(Next::Resume(Resume::Mapped(Level::M2))));
    vm.host().offer(Level::K4);
    assert_eq!(vcpu.fault(&mut idle, at(5, Access::Write)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
    assert_eq!(vm.stats().leaves, [512, 0, 0]);
}

#[test]
fn a_withdrawn_write_gets_its_permission_back_without_the_host() {
    let (mut idle, vm) = vm::<Ept4>(64);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for gfn in 0..4 {
        let _ = vcpu.fault(&mut idle, at(gfn, Access::Write)).unwrap();
    }
    let debt = vm.memory().write_protect(&mut idle, Span::new(Gfn(1), Gfn(3)));
    assert_eq!(debt.pages(), 2);
    assert!(debt.settle());
    let writable = |idle: &mut Idle, gfn| {
        vm.memory().translate(idle, Gfn(gfn)).unwrap().leaf.perms.allows(Access::Write)
    };
    assert_eq!([0, 1, 2, 3].map(|gfn| writable(&mut idle, gfn)), [true, false, false, true]);
    vm.host().shift.store(1000, SeqCst); // asking it would show
    assert_eq!(vcpu.fault(&mut idle, at(1, Access::Write)), Ok(Next::Resume(Resume::Fixed)));
    assert_eq!(vm.memory().translate(&mut idle, Gfn(1)).unwrap().leaf.pfn, Pfn((HVA.0 >> 12) + 1));
    assert_eq!(vm.stats().permission_faults, 1);
}

#[test]
fn large_pages_where_slot_and_host_agree() {
    let (mut idle, vm) = vm::<Ept4>((1 << 18) + 700); // 1 GiB and a bit
    vm.host().offer(Level::G1);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let mut map = |idle: &mut Idle, gfn| vcpu.fault(idle, at(gfn, Access::Write)).unwrap();
    assert_eq!(map(&mut idle, 77), Next::Resume(Resume::Mapped(Level::G1)));
    assert_eq!(
        map(&mut idle, (1 << 18) + 3),
        Next::Resume(Resume::Mapped(Level::M2)),
        "the next GiB is not all in the slot"
    );
    assert_eq!(
        map(&mut idle, (1 << 18) + 600),
        Next::Resume(Resume::Mapped(Level::K4)),
        "nor the last 2 MiB"
    );
    assert_eq!(vm.stats().leaves, [1, 1, 1]);
    assert_eq!(vm.stats().mapped_bytes(), (1 << 30) + (2 << 20) + 4096);
    let mapping = vm.memory().translate(&mut idle, Gfn(512 * 3 + 1)).unwrap();
    assert_eq!((mapping.level, mapping.leaf.pfn), (Level::G1, Pfn(HVA.0 >> 12)));

    // One page of it is zapped: the large leaf is split, twice, and all others stay.
    assert_eq!(vm.invalidate(Span::sized(HVA + 4096 * 77, 4096), Reason::Clear).apply(&mut idle).pages(), 1);
    assert_eq!(vm.memory().translate(&mut idle, Gfn(77)), None);
    assert_eq!(vm.memory().translate(&mut idle, Gfn(76)).unwrap().leaf.pfn, Pfn((HVA.0 >> 12) + 76));
    assert_eq!(vm.stats().leaves, [1 + 511, 1 + 511, 0]);
    assert_eq!(vm.stats().splits, [1, 1]);
}

/// Invalidations publish exactly their range: if the neighbours were covered, this would wait for ever.
#[test]
fn faults_beside_an_open_invalidation_go_on() {
    let (mut idle, vm) = vm::<Ept4>(2048);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let one = vm.invalidate(Span::sized(HVA + 4096 * 700, 4096), Reason::Clear).apply(&mut idle).settle();
    let other = vm.memory().invalidate(Span::new(Gfn(0), Gfn(3)), Reason::Protect).apply(&mut idle).settle();
    for gfn in [3, 511, 699, 701, 1024] {
        assert_eq!(
            vcpu.fault(&mut idle, at(gfn, Access::Write)),
            Ok(Next::Resume(Resume::Mapped(Level::K4)))
        );
    }
    assert_eq!(vm.stats().retries, 0);
    // A page as large as the host offers would cover the changing range: a smaller one does not.
    vm.host().offer(Level::G1);
    assert_eq!(vcpu.fault(&mut idle, at(1536, Access::Write)), Ok(Next::Resume(Resume::Mapped(Level::M2))));
    drop((one, other));
    assert_eq!(
        vcpu.fault(&mut idle, at(700, Access::Write)),
        Ok(Next::Resume(Resume::Mapped(Level::K4))),
        "its table has small pages"
    );
}

#[test]
fn an_incongruent_slot_is_mapped_small() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, Identity>::builder(Identity::default()).build().unwrap();
    vm.host().offer(Level::G1);
    let slot = Slot::new(SlotId(0), Gfn(0), 4096, HVA + 4096);
    vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    assert_eq!(vcpu.fault(&mut idle, at(600, Access::Read)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
    assert_eq!(vm.memory().translate(&mut idle, Gfn(600)).unwrap().leaf.pfn, Pfn((HVA.0 >> 12) + 601));
}

#[test]
fn protect_keeps_the_page_and_withdraws_writing() {
    let (mut idle, vm) = vm::<Ept4>(64);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let _ = vcpu.fault(&mut idle, at(2, Access::Write)).unwrap();
    let applied = vm.invalidate(Span::sized(HVA, 64 * 4096), Reason::Protect).apply(&mut idle);
    assert!(applied.owes());
    let change = applied.settle();
    vm.host().readonly.store(true, SeqCst);
    drop(change);
    let leaf = vm.memory().translate(&mut idle, Gfn(2)).unwrap().leaf;
    assert!(!leaf.perms.allows(Access::Write) && !leaf.host_writable && leaf.dirty);
    assert_eq!(vm.stats().flushes.paid, 1);
    let again = vm.invalidate(Span::sized(HVA, 64 * 4096), Reason::Protect);
    assert!(!again.apply(&mut idle).owes(), "nothing left to take: nothing owed");
}

#[test]
fn unmapping_a_range_frees_its_tables_and_clearing_keeps_them() {
    let (mut idle, vm) = vm::<Npt4>(1 << 18);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let mut fill = |idle: &mut Idle| {
        for gfn in (0..1 << 18).step_by(512) {
            let _ = vcpu.fault(idle, at(gfn, Access::Write)).unwrap();
        }
    };
    fill(&mut idle);
    let full = vm.stats();
    assert_eq!(full.leaves[0], 512);
    for (why, freed) in [(Reason::Clear, false), (Reason::Unmap, true)] {
        let change = vm.invalidate(Span::sized(HVA, 1 << 30), why).apply(&mut idle).settle();
        drop(change);
        vm.collect(&mut idle);
        let stats = vm.stats();
        assert_eq!((stats.leaves[0], stats.tables_waiting), (0, 0), "{why:?}");
        assert_eq!(full.table_bytes - stats.table_bytes >= 512 * 4096, freed, "{why:?}");
        fill(&mut idle);
        assert_eq!(vm.stats().leaves[0], 512);
    }
}

#[test]
fn a_deleted_slot_takes_its_mappings_along() {
    let (mut idle, vm) = vm::<Ept4>(2048);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for gfn in 0..600 {
        let _ = vcpu.fault(&mut idle, at(gfn, Access::Write)).unwrap();
    }
    let slot = vm.memory().commit(&mut idle, |tx| tx.delete(SlotId(7))).unwrap();
    assert_eq!(slot.gfns.len(), 2048);
    assert_eq!(vm.stats().leaves, [0; 3]);
    assert_eq!(vcpu.fault(&mut idle, at(1, Access::Read)), Ok(Next::Emulate(Emulate::NoMemory)));
    // The same frames elsewhere: no stale hint may survive.
    let moved = Slot::new(SlotId(8), Gfn(0), 2048, HVA + (1 << 21));
    vm.memory().commit(&mut idle, |tx| tx.create(moved)).unwrap();
    let _ = vcpu.fault(&mut idle, at(1, Access::Read)).unwrap();
    assert_eq!(vm.memory().translate(&mut idle, Gfn(1)).unwrap().leaf.pfn, Pfn((HVA.0 >> 12) + 513));
}

#[test]
fn readonly_slots_map_reads_and_refuse_writes() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Ept4, Identity>::builder(Identity::default()).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 8, HVA).readonly())).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    assert_eq!(vcpu.fault(&mut idle, at(0, Access::Write)), Ok(Next::Emulate(Emulate::ReadOnly)));
    assert_eq!(vcpu.fault(&mut idle, at(0, Access::Read)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
    assert_eq!(vcpu.fault(&mut idle, at(0, Access::Write)), Ok(Next::Emulate(Emulate::ReadOnly)));
    assert!(!vm.memory().translate(&mut idle, Gfn(0)).unwrap().leaf.perms.allows(Access::Write));
}

#[test]
fn slot_operations_are_refused_for_the_right_reason() {
    let (mut idle, vm) = vm::<Npt4>(64);
    let slot = |id, gfn, pages, hva| Slot::new(SlotId(id), Gfn(gfn), pages, Hva(hva));
    let mut refuse = |slot: Slot| vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap_err().rule;
    assert_eq!(refuse(slot(1, 100, 0, 0)), Rule::Empty);
    assert_eq!(refuse(slot(1, 100, 1, 5)), Rule::HostAddress(Hva(5)));
    let top = 0u64.wrapping_sub(4096);
    assert_eq!(refuse(slot(1, 100, 2, top)), Rule::HostAddress(Hva(top)));
    assert_eq!(refuse(slot(1, (1 << 36) - 1, 2, 0)), Rule::Reach(Gfn(1 << 36)));
    assert_eq!(refuse(slot(7, 100, 1, 0)), Rule::Exists);
    assert!(matches!(refuse(slot(1, 63, 2, 0)), Rule::Overlaps(Slot { id: SlotId(7), .. })));
    let missing = vm.memory().commit(&mut idle, |tx| tx.delete(SlotId(3))).unwrap_err();
    assert_eq!(missing.to_string(), "memslot 3: there is none of this id");
    vm.memory().commit(&mut idle, |tx| tx.create(slot(1, 64, 1, 0))).expect("adjacent is fine");
    assert_eq!(vm.memory().len(), 2);
}

/// 4 KiB of tables for each 2 MiB densely mapped, and one more table per level: 0.2% at most.
#[test]
fn tables_cost_two_thousandths_of_a_dense_guest() {
    let pages = 1 << 18;
    let (mut idle, vm) = vm::<Npt4>(pages);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for gfn in 0..pages {
        let _ = vcpu.fault(&mut idle, at(gfn, Access::Write)).unwrap();
    }
    drop(vcpu);
    let stats = vm.stats();
    assert_eq!(stats.mapped_bytes(), pages * 4096);
    let notes = stats.lent_bytes / 64;
    let bound = stats.mapped_bytes() / 500 + 4 * 4096;
    assert!(stats.table_bytes + notes <= bound, "{} of {bound}", stats.table_bytes + notes);
}

/// A transaction inside an invalidation does not wait for its end. A vCPU that faults through the slots that it
/// published does: the invalidation covers host addresses, whatever slot maps them.
#[test]
fn slots_made_and_moved_inside_an_invalidation_wait_for_its_end() {
    let (mut idle, vm) = vm::<Ept4>(64);
    let page = HVA + 3 * 4096;
    let change = vm.invalidate(Span::sized(page, 4096), Reason::Migrate).apply(&mut idle).settle();
    vm.memory()
        .commit(&mut idle, |tx| {
            tx.create(Slot::new(SlotId(8), Gfn(2000), 64, HVA))?; // an alias
            tx.move_to(SlotId(7), Gfn(1000))
        })
        .unwrap();
    std::thread::scope(|scope| {
        let faults = [(0, 1003), (1, 2003)].map(|(id, gfn)| {
            let vm = &vm;
            scope.spawn(move || {
                let mut idle = Idle::take().unwrap();
                let mut vcpu = vm.vcpu(VcpuId(id)).unwrap();
                assert_eq!(
                    vcpu.fault(&mut idle, at(gfn + 1, Access::Read)),
                    Ok(Next::Resume(Resume::Mapped(Level::K4)))
                );
                vcpu.fault(&mut idle, at(gfn, Access::Read))
            })
        });
        // Each fault on the page counts its wait once; the neighbour's did not wait.
        while vm.stats().retries < 2 {
            std::thread::yield_now();
        }
        assert_eq!(vm.memory().translate(&mut idle, Gfn(1003)), None);
        vm.host().shift.store(77, SeqCst); // the host moves the page
        drop(change);
        for fault in faults {
            assert_eq!(fault.join().unwrap(), Ok(Next::Resume(Resume::Mapped(Level::K4))));
        }
    });
    for gfn in [1003, 2003] {
        assert_eq!(
            vm.memory().translate(&mut idle, Gfn(gfn)).unwrap().leaf.pfn,
            Pfn((page.0 >> 12) + 77),
            "gfn {gfn}"
        );
    }
}

/// A user may leak the guard of a vCPU in the guest. The next fault detects that.
#[test]
#[cfg_attr(feature = "oracle-always", ignore = "breaks the contract, which the oracle reports")]
fn a_vcpu_whose_guard_was_leaked_is_back_when_it_faults() {
    struct Nothing;
    impl Translations for Nothing {
        fn flush_all(&mut self) {}
        fn flush(&mut self, _: Span<Gfn>) {}
    }
    let (mut idle, vm) = vm::<Ept4>(64);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    std::mem::forget(vcpu.enter(&mut idle, &mut Nothing));
    let _ = vcpu.fault(&mut idle, at(3, Access::Read)).unwrap();
    // Would wait for an answer from the guest.
    vm.memory().commit(&mut idle, |tx| tx.delete(SlotId(7))).unwrap();
}

/// While an invalidation stays open, faults elsewhere take the short path with what was found since; a table that is
/// unhooked meanwhile is not used again.
#[test]
fn a_memo_beside_an_open_invalidation_ends_with_the_next() {
    let (mut idle, vm) = vm::<Npt4>(2048);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let page = |page: u64| Span::sized(HVA + page * PAGE_SIZE, PAGE_SIZE);
    let mut map = |idle: &mut Idle, gfn| {
        assert_eq!(
            vcpu.fault(idle, at(gfn, Access::Write)),
            Ok(Next::Resume(Resume::Mapped(Level::K4))),
            "{gfn}"
        );
        assert_eq!(
            vm.memory().translate(idle, Gfn(gfn)).map(|mapping| mapping.leaf.pfn),
            Some(Pfn((HVA.0 >> 12) + gfn))
        );
    };
    for gfn in [0, 512, 1024] {
        map(&mut idle, gfn);
    }
    // One page of the first table is invalidated for the whole test.
    let open = vm.invalidate(page(0), Reason::Clear).apply(&mut idle).settle();
    for gfn in [1, 513, 2, 514, 515, 3] {
        map(&mut idle, gfn);
    }
    // The table that was used last is unhooked; then another one, in between.
    for (last, why) in [(516, Reason::Unmap), (4, Reason::Remap)] {
        map(&mut idle, last);
        drop(vm.memory().invalidate(Span::sized(Gfn(512), 512), why).apply(&mut idle).settle());
        vm.collect(&mut idle);
        assert!(vm.memory().translate(&mut idle, Gfn(513)).is_none());
        for gfn in [513, last + 1, 514, 1024 + last, 515] {
            map(&mut idle, gfn);
        }
    }
    assert_eq!(vm.stats().retries, 0, "no invalidation was in the way");
    drop(open);
    map(&mut idle, 0);
}
