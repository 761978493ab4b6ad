//! Published bugs of other second-stage MMUs, tried here: `proof/verdicts/museum.md` names each. Those of shadow MMUs are
//! in `src/nested/tests/published.rs`.

use crate::common::identity::Identity;
use slat::table::formats::{Ept4, Ept4NoAd, Npt4};
use slat::*;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const HVA: Hva = Hva(0x4000_0000);
const LARGE: u64 = Level::M2.pages();
const SLOT: SlotId = SlotId(0);

/// A slot in which guest and host addresses are congruent modulo 2 MiB if `hva` is a multiple of that.
fn slot(first: u64, pages: u64, hva: Hva) -> Slot {
    Slot::new(SLOT, Gfn(first), pages, hva + first * PAGE_SIZE)
}

fn vm<F: Format>(host: Identity, slots: &[Slot]) -> (Idle, Vm<F, Identity>) {
    let (mut idle, vm) = (Idle::take().unwrap(), Vm::builder(host).build().unwrap());
    vm.memory().commit(&mut idle, |tx| slots.iter().try_for_each(|&slot| tx.create(slot))).unwrap();
    (idle, vm)
}

fn store(gfn: u64) -> Fault {
    Fault { gpa: Gfn(gfn).gpa(), access: Access::Write }
}

/// CVE-2022-1263: a ring was looked for in the vCPU that runs, and there was none.
#[test]
fn with_rings_a_store_is_logged_while_there_is_no_vcpu() {
    let mut idle = Idle::take().unwrap();
    let ring = DirtyLog::ring(RingSize::new(4096).unwrap());
    let vm = Vm::<Ept4, _>::builder(Identity::default()).vcpus(2).dirty_log(ring).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(slot(0, 1024, HVA).log_dirty())).unwrap();
    let told = |idle: &mut Idle| -> Vec<u64> {
        let harvest = vm.memory().harvest_all(idle).unwrap();
        let pages = harvest.iter().map(|page| page.gfn.0).collect();
        harvest.commit();
        pages
    };
    // A device stores before there is any vCPU.
    vm.mark_dirty(Span::sized(HVA + 7 * PAGE_SIZE, 2 * PAGE_SIZE));
    assert_eq!(told(&mut idle), [7, 8]);
    // A vCPU goes and leaves entries in its ring; a device stores; another vCPU comes under the same number.
    let mut first = vm.vcpu(VcpuId(0)).unwrap();
    let _ = first.fault(&mut idle, store(100)).unwrap();
    drop(first);
    vm.memory().mark_dirty(Span::sized(Gfn(50), 1));
    let mut second = vm.vcpu(VcpuId(0)).unwrap();
    let _ = second.fault(&mut idle, store(200)).unwrap();
    drop(second);
    assert_eq!(told(&mut idle), [50, 100, 200]);
    assert_eq!(told(&mut idle), []);
}

/// Linux b64d740ea7dd: aging withdraws leaves without a flush, so a log that begins has a flush to pay though it finds no
/// leaf that hardware may write.
#[test]
fn a_log_that_begins_over_withdrawn_leaves_flushes() {
    for is_withdrawn in [false, true] {
        let of = slot(0, 64, HVA);
        let (mut idle, vm) = vm::<Ept4NoAd>(Identity::default(), &[of]);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        for gfn in 0..64 {
            let _ = vcpu.fault(&mut idle, store(gfn)).unwrap();
        }
        if is_withdrawn {
            let mut aged = 0;
            let before = vm.stats().flushes.paid;
            vm.age(&mut idle, of.hvas(), &mut |seen| aged += seen.pages().count());
            assert_eq!((aged, vm.stats().flushes.paid), (64, before), "aging flushes nothing");
        }
        let before = vm.stats().flushes.paid;
        vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(SLOT, true)).unwrap();
        assert!(vm.stats().flushes.paid > before, "withdrawn: {is_withdrawn}");
        // Each store from here on is logged, also where a load gives the leaf back.
        for gfn in [7, 9] {
            let _ = vcpu.fault(&mut idle, Fault { access: Access::Read, ..store(gfn) }).unwrap();
            assert!(!vm.memory().translate(&mut idle, Gfn(gfn)).unwrap().leaf.perms.allows(Access::Write));
        }
        let _ = vcpu.fault(&mut idle, store(7)).unwrap();
        let harvest = vm.memory().harvest_all(&mut idle).unwrap();
        assert_eq!(harvest.iter().map(|page| page.gfn).collect::<Vec<_>>(), [Gfn(7)]);
    }
}

/// Linux df6556adf27b: of a range that began inside a table's memory, pages beyond the memslot were aged too, or none.
#[test]
fn memslots_at_any_alignment_age_page_by_page() {
    let used = [0, 1, 63, 64, 255, 511, 512, 698, 699];
    for (first, shift) in [(0, 0), (1, 0), (255, 3), (511, 512), (513, 77)] {
        let hva = HVA + shift * PAGE_SIZE;
        // The neighbour adjoins it for the guest, and is elsewhere for the host.
        let neighbour = Slot::new(SlotId(1), Gfn(first + 700), 300, HVA + (1 << 30));
        let (mut idle, vm) = vm::<Ept4NoAd>(Identity::default(), &[slot(first, 700, hva), neighbour]);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        assert_eq!(vcpu.prefault(&mut idle, Span::sized(Gfn(first), 1000), Prefault::OLD), Ok(1000));
        for page in used.into_iter().chain([700, 999]) {
            let _ = vcpu.fault(&mut idle, store(first + page)).unwrap();
        }
        let mut aged = |from: u64, pages: u64| -> Vec<u64> {
            let mut young = Vec::new();
            let hvas = Span::sized(hva + (first + from) * PAGE_SIZE, pages * PAGE_SIZE);
            assert_eq!(
                vm.young(&mut idle, hvas, Young::Test),
                used.iter().any(|page| (from..from + pages).contains(page))
            );
            vm.age(&mut idle, hvas, &mut |seen| {
                young.extend(seen.pages().map(|at| ((at.0 - hva.0) >> PAGE_SHIFT) - first));
            });
            young
        };
        assert_eq!(aged(2, 61), [], "{first}");
        assert_eq!(aged(63, 450), [63, 64, 255, 511, 512], "{first}");
        assert_eq!(aged(0, 63), [0, 1], "{first}");
        assert_eq!(aged(600, 100), [698, 699], "{first}");
        let all = Span::sized(HVA + (1 << 30), 300 * PAGE_SIZE);
        assert!(vm.young(&mut idle, all, Young::Test), "the neighbour was not aged, {first}");
    }
}

/// Linux 6794ad5443a2 and CVE-2018-12207's cure: a large leaf reached out of its memslot, or was executable.
#[test]
fn no_large_leaf_reaches_out_of_its_memslot_or_over_another_offset() {
    for (first, pages, shift) in
        [(0, LARGE, 0), (1, LARGE, 0), (0, LARGE - 1, 0), (1, 3 * LARGE, 0), (0, 2 * LARGE, 1)]
    {
        let of = slot(first, pages, HVA + shift * PAGE_SIZE);
        let (mut idle, vm) = vm::<Npt4>(Identity::of(Level::M2), &[of]);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        for gfn in (first..first + pages).rev() {
            let _ = vcpu.fault(&mut idle, store(gfn)).unwrap();
        }
        let mut large = 0;
        for gfn in first..first + pages {
            let found = vm.memory().translate(&mut idle, Gfn(gfn)).unwrap();
            assert!(of.gfns.covers(&found.gfns), "{of:?}: {found:?}");
            let pfn = found.leaf.pfn.0 + gfn - found.gfns.start.0;
            assert_eq!(pfn, of.hva_of(Gfn(gfn)).0 >> PAGE_SHIFT, "{of:?}");
            large += u64::from(found.level == Level::M2);
        }
        let whole = (first + pages) / LARGE - first.div_ceil(LARGE);
        assert_eq!(large, if shift == 0 { whole * LARGE } else { 0 }, "{of:?}");
    }
}

/// Linux 817fa998362d: which memslot a large page is in was asked of address space 0 alone.
#[test]
fn large_pages_are_recovered_as_the_memslots_of_their_own_space_are() {
    let mut idle = Idle::take().unwrap();
    let builder = Vm::<Npt4, _>::builder(Identity::of(Level::M2)).address_spaces(2).nx_huge_pages(true);
    let vm = builder.build().unwrap();
    let spaces = [SpaceId(0), SpaceId(1)].map(|id| vm.space(id).unwrap());
    // In space 0 the same frames are in a small memslot, at another offset.
    spaces[0].commit(&mut idle, |tx| tx.create(slot(5, 8, HVA + PAGE_SIZE))).unwrap();
    spaces[1].commit(&mut idle, |tx| tx.create(slot(0, LARGE, HVA))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for (nth, space) in [SpaceId(0), SpaceId(1)].into_iter().enumerate() {
        assert!(vcpu.switch_to(space));
        let _ = vcpu.fault(&mut idle, Fault { access: Access::Fetch, ..store(6) }).unwrap();
        let all = Span::new(Gfn(0), Gfn(LARGE));
        assert_eq!(spaces[nth].recover(&mut idle, all), nth as u64);
        let found = spaces[nth].translate(&mut idle, Gfn(6)).unwrap();
        let at = if nth == 0 { HVA + 7 * PAGE_SIZE } else { HVA };
        assert_eq!((found.leaf.pfn.0, found.level.pages()), (at.0 >> PAGE_SHIFT, [1, LARGE][nth]));
    }
}

/// openvmm#1999: a region was looked for by its host address, and another one with that address was unmapped.
#[test]
fn of_memslots_with_the_same_host_memory_only_the_deleted_one_is_unmapped() {
    let slots = [0, 1, 2].map(|nth| Slot::new(SlotId(nth), Gfn(4096 * u64::from(nth)), 64, HVA));
    for deleted in 0..3 {
        let (mut idle, vm) = vm::<Npt4>(Identity::default(), &slots);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let gfns = [0, 1, 2].map(|nth| 4096 * nth + 5);
        for gfn in gfns {
            let _ = vcpu.fault(&mut idle, store(gfn)).unwrap();
        }
        vm.memory().commit(&mut idle, |tx| tx.delete(SlotId(deleted))).unwrap();
        let mapped = gfns.map(|gfn| vm.memory().translate(&mut idle, Gfn(gfn)).is_some());
        assert_eq!(mapped, [0, 1, 2].map(|nth| nth != deleted));
        // A page that the host takes back leaves each remaining slot.
        drop(vm.invalidate(Span::sized(HVA, 64 * PAGE_SIZE), Reason::Unmap).apply(&mut idle).settle());
        assert_eq!(gfns.map(|gfn| vm.memory().translate(&mut idle, Gfn(gfn)).is_some()), [false; 3]);
    }
}

/// Linux 5b0d0d85422d: a prefault tried again for ever while the memslot was being deleted, and the deletion waited for
/// the prefault.
#[test]
fn a_prefault_beside_deletions_of_its_memslot_ends_and_so_do_they() {
    let of = slot(LARGE - 32, 64, HVA);
    let (mut idle, vm) = vm::<Npt4>(Identity::sleeping(), &[of]);
    let ends = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let prefaults = threads.spawn(|| {
            let (mut idle, mut vcpu) = (Idle::take().unwrap(), vm.vcpu(VcpuId(0)).unwrap());
            let mut done = 0;
            while !ends.load(SeqCst) || done == 0 {
                // All of it, a part, or nothing: as the memslot is at each moment.
                done += vcpu.prefault(&mut idle, of.gfns, Prefault::OLD).unwrap_or(0);
            }
        });
        for nth in 0..300_u64 {
            let again = Slot { hva: of.hva + nth % 2 * PAGE_SIZE, ..of };
            vm.memory().commit(&mut idle, |tx| tx.delete(SLOT)).unwrap();
            vm.memory().commit(&mut idle, |tx| tx.create(again)).unwrap();
            if nth.is_multiple_of(50) {
                vm.zap_all(&mut idle).unwrap();
            }
        }
        ends.store(true, SeqCst);
        prefaults.join().unwrap();
    });
    vm.memory().commit(&mut idle, |tx| tx.delete(SLOT)).unwrap();
    assert!((of.gfns.start.0..of.gfns.end.0).all(|gfn| vm.memory().translate(&mut idle, Gfn(gfn)).is_none()));
}
