//! Pages that are mapped ahead of the guest, as for an access: the result of that access, the log, the report.

use crate::common::identity::Identity;
use slat::table::formats::{Arm64NoAd, Ept4, Ept4NoAd, Npt4, Sv39x4NoAd};
use slat::*;
use std::sync::atomic::Ordering::Relaxed;

const RAM: SlotId = SlotId(0);
/// 1 GiB and a page.
const PAGES: u64 = (1 << 18) + 1;

fn vm<F: Format>(idle: &mut Idle, pages: Level, change: fn(Slot) -> Slot) -> Vm<F, Identity> {
    let vm = Vm::<F, _>::builder(Identity::of(Level::M2)).max_page(pages).build().unwrap();
    let ram = change(Slot::new(RAM, Gfn(0), PAGES, Hva(1 << 38)));
    vm.memory().commit(idle, |tx| tx.create(ram)).unwrap();
    vm
}

const ACCESSES: [Access; 3] = [Access::Read, Access::Write, Access::Fetch];

/// Returns the results of accesses of each kind to prepared pages; and whether the host was asked for them.
fn found<F: Format>(young: bool) -> ([Next; 3], bool) {
    let mut idle = Idle::take().unwrap();
    let vm = vm::<F>(&mut idle, Level::K4, |slot| slot);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let gfns = |access| Span::sized(Gfn(access as u64 * 8), 8);
    for access in ACCESSES {
        assert_eq!(vcpu.prefault(&mut idle, gfns(access), Prefault { access, young }), Ok(8));
        let leaf = vm.memory().translate(&mut idle, gfns(access).start + 3).unwrap().leaf;
        assert!(leaf.perms.allows(access), "{}: {access:?}", F::NAME);
        assert_eq!(leaf.accessed, young, "{}: {access:?}", F::NAME);
        if F::HARDWARE_AD {
            assert_eq!(leaf.dirty, young && access == Access::Write, "{}: {access:?}", F::NAME);
        }
    }
    let asked = vm.host().looked.load(Relaxed);
    let found = ACCESSES
        .map(|access| vcpu.fault(&mut idle, Fault { gpa: gfns(access).start.gpa(), access }).unwrap());
    (found, vm.host().looked.load(Relaxed) > asked)
}

#[test]
fn an_access_to_a_page_that_was_mapped_young_for_it_needs_nothing() {
    let young = [found::<Ept4>, found::<Npt4>, found::<Ept4NoAd>, found::<Arm64NoAd>, found::<Sv39x4NoAd>];
    for found in young {
        assert_eq!(found(true), ([Next::Resume(Resume::Spurious); 3], false));
    }
}

#[test]
fn an_access_to_an_old_page_gives_it_back_where_leaves_have_no_accessed_bit() {
    assert_eq!(found::<Ept4>(false), ([Next::Resume(Resume::Spurious); 3], false));
    assert_eq!(found::<Ept4NoAd>(false), ([Next::Resume(Resume::Fixed); 3], false));
}

#[test]
fn a_page_that_is_mapped_as_for_a_store_is_logged() {
    fn dirty<F: Format>(how: Prefault) -> Vec<u64> {
        let mut idle = Idle::take().unwrap();
        let vm = vm::<F>(&mut idle, Level::K4, Slot::log_dirty);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        // One page is there already, for loads.
        assert_eq!(vcpu.prefault(&mut idle, Span::sized(Gfn(5), 1), Prefault::OLD), Ok(1));
        assert_eq!(vcpu.prefault(&mut idle, Span::sized(Gfn(4), 3), how), Ok(3));
        let writable = |gfn: u64| vm.memory().lockless(&mut idle).translate(Gfn(gfn)).unwrap().leaf.perms;
        assert_eq!([4, 5, 6].map(writable).map(|perms| perms.allows(how.access)), [true; 3]);
        let mut dirty = Vec::new();
        vm.memory().dirty(&mut idle, RAM, |gfn| dirty.push(gfn.0)).unwrap();
        dirty
    }
    for young in [false, true] {
        let [load, store] = [Access::Read, Access::Write].map(|access| Prefault { access, young });
        assert_eq!(dirty::<Ept4>(store), [4, 5, 6]);
        assert_eq!(dirty::<Ept4NoAd>(store), [4, 5, 6]);
        assert_eq!(dirty::<Ept4>(load), []);
        assert_eq!(dirty::<Ept4NoAd>(load), []);
    }
}

#[test]
fn a_prefault_ends_where_the_access_is_a_devices() {
    let mut idle = Idle::take().unwrap();
    let vm = vm::<Npt4>(&mut idle, Level::K4, Slot::readonly);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let gfns = Span::sized(Gfn(PAGES - 2), 4);
    assert_eq!(vcpu.prefault(&mut idle, gfns, Prefault::young(Access::Write)), Ok(0), "a ROM");
    assert_eq!(vcpu.prefault(&mut idle, gfns, Prefault::young(Access::Read)), Ok(2), "no memslot beyond");
}

/// Three vCPUs populate `gfns` together. Returns the spans that they did not populate.
fn together(gfns: Span<Gfn>, pages: Level, stop: bool) -> (Vm<Ept4, Identity>, Population, Vec<Span<Gfn>>) {
    let vm = Vm::<Ept4, _>::builder(Identity::of(Level::M2)).max_page(pages).vcpus(3).build().unwrap();
    let ram = Slot::new(RAM, Gfn(0), PAGES, Hva(1 << 38));
    vm.memory().commit(&mut Idle::take().unwrap(), |tx| tx.create(ram)).unwrap();
    let population = Population::new(gfns, Prefault::young(Access::Write));
    if stop {
        population.stop();
    }
    let rests = std::thread::scope(|scope| {
        let (vm, population) = (&vm, &population);
        let vcpu = |id| {
            scope.spawn(move || {
                let mut idle = Idle::take().unwrap();
                let mut vcpu = vm.vcpu(VcpuId(id)).unwrap();
                std::iter::from_fn(|| vcpu.populate(&mut idle, population)).collect::<Vec<_>>()
            })
        };
        let all = [0, 1, 2].map(vcpu);
        all.into_iter().flat_map(|vcpu| vcpu.join().unwrap()).collect()
    });
    (vm, population, rests)
}

#[test]
fn vcpus_populate_frames_together_and_each_frame_is_counted_once() {
    for pages in [Level::K4, Level::M2] {
        let gfns = Span::new(Gfn(100), Gfn(40_000));
        let (vm, population, rests) = together(gfns, pages, false);
        assert_eq!((population.progress(), rests), ((gfns.len(), gfns.len()), vec![]));
        let mut idle = Idle::take().unwrap();
        for gfn in [100, 511, 512, 20_000, 39_999].map(Gfn) {
            assert!(vm.memory().translate(&mut idle, gfn).unwrap().leaf.perms.allows(Access::Write));
        }
        assert_eq!(vm.memory().translate(&mut idle, Gfn(40_448)), None, "nothing else is mapped");
    }
}

#[test]
fn frames_that_cannot_be_populated_are_returned_to_one_vcpu() {
    // The memslot ends in the middle of a stretch, and the next stretch lies behind it.
    let gfns = Span::new(Gfn(PAGES - 1000), Gfn(PAGES + 1000));
    let (_, population, mut rests) = together(gfns, Level::K4, false);
    rests.sort_by_key(|rest| rest.start);
    let left = Gfn(PAGES);
    assert_eq!(population.progress(), (1000, 2000));
    assert_eq!(rests.first().map(|rest| rest.start), Some(left));
    assert!(rests.windows(2).all(|pair| pair[0].end == pair[1].start), "{rests:?}");
    assert_eq!(rests.iter().map(Span::len).sum::<u64>(), 1000);

    let (vm, population, rests) = together(gfns, Level::K4, true);
    assert_eq!((population.progress(), rests, vm.stats().mapped_faults), ((0, 2000), vec![], 0), "stopped");
}
