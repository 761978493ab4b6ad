//! Stores to tracked frames reach their listeners, whatever else happens to the frames.

use crate::common::identity::Identity;
use slat::table::formats::{Arm64, Ept4, Ept4NoAd, Npt4, Sv39x4};
use slat::*;
use std::sync::{Arc, Mutex};

const RAM: SlotId = SlotId(0);
const HVA: Hva = Hva(1 << 30);
const PAGES: u64 = 2048;

/// The stores that a listener received.
#[derive(Default)]
struct Told(Mutex<Vec<(&'static str, Gpa, usize)>>);

impl WriteListener for Told {
    fn before(&self, _: &mut Idle, store: &TrackedStore<'_>) {
        self.0.lock().unwrap().push(("before", store.gpa, store.bytes.len()));
    }

    fn after(&self, _: &mut Idle, store: &TrackedStore<'_>) {
        self.0.lock().unwrap().push(("after", store.gpa, store.bytes.len()));
    }
}

fn told() -> Arc<Told> {
    Arc::default()
}

fn vm<F: Format>(
    idle: &mut Idle,
    large: bool,
    build: fn(Builder<F, Identity>) -> Builder<F, Identity>,
) -> Vm<F, Identity> {
    let host = Identity::of(if large { Level::M2 } else { Level::K4 });
    let vm = build(Vm::builder(host).vcpus(2)).build().unwrap();
    vm.memory().commit(idle, |tx| tx.create(Slot::new(RAM, Gfn(0), PAGES, HVA))).unwrap();
    vm
}

fn plain<F: Format>(idle: &mut Idle, large: bool) -> Vm<F, Identity> {
    vm(idle, large, |builder| builder)
}

fn one(gfn: u64) -> Span<Gfn> {
    Span::sized(Gfn(gfn), 1)
}

fn access<F: Format>(idle: &mut Idle, vm: &Vm<F, Identity>, gfn: u64, access: Access) -> Next {
    vm.vcpu(VcpuId(0)).unwrap().fault(idle, Fault { gpa: Gfn(gfn).gpa(), access }).unwrap()
}

fn store<F: Format>(idle: &mut Idle, vm: &Vm<F, Identity>, gfn: u64) -> Next {
    access(idle, vm, gfn, Access::Write)
}

fn writable<F: Format>(idle: &mut Idle, vm: &Vm<F, Identity>, gfn: u64) -> bool {
    vm.memory().translate(idle, Gfn(gfn)).is_some_and(|found| found.leaf.perms.allows(Access::Write))
}

/// Tracked from before any fault, and from after a store.
fn stores_fault_until_it_is_lifted<F: Format>() {
    for mapped in [false, true] {
        let mut idle = Idle::take().unwrap();
        let vm = plain::<F>(&mut idle, false);
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let mut fault =
            |idle: &mut Idle, gfn, access| vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access }).unwrap();
        if mapped {
            let _ = fault(&mut idle, 5, Access::Write);
        }
        let tracking = vm.memory().track_writes(&mut idle, one(5), told()).unwrap();
        assert_eq!(
            vm.memory().translate(&mut idle, Gfn(5)).is_some(),
            mapped,
            "what could be read can be read"
        );
        assert_eq!(fault(&mut idle, 5, Access::Write), Next::Emulate(Emulate::Tracked), "{}", F::NAME);
        let _ = fault(&mut idle, 5, Access::Read);
        assert_eq!(fault(&mut idle, 5, Access::Read), Next::Resume(Resume::Spurious), "loads go on");
        // The short path of a fault works beside it, and in other tables.
        for gfn in [4, 6, 511, 512, 600, 7, 1024] {
            assert_eq!(fault(&mut idle, gfn, Access::Write), Next::Resume(Resume::Mapped(Level::K4)));
            assert!(writable(&mut idle, &vm, gfn));
            assert_eq!(fault(&mut idle, 5, Access::Write), Next::Emulate(Emulate::Tracked));
        }
        assert!(!writable(&mut idle, &vm, 5));
        drop(tracking);
        assert_eq!(fault(&mut idle, 5, Access::Write), Next::Resume(Resume::Fixed), "{}", F::NAME);
        assert!(writable(&mut idle, &vm, 5));
    }
}

#[test]
fn stores_fault_until_the_tracker_goes_in_each_format() {
    stores_fault_until_it_is_lifted::<Ept4>();
    stores_fault_until_it_is_lifted::<Ept4NoAd>();
    stores_fault_until_it_is_lifted::<Npt4>();
    stores_fault_until_it_is_lifted::<Arm64<40>>();
    stores_fault_until_it_is_lifted::<Sv39x4>();
}

#[test]
fn a_vcpu_that_maps_page_after_page_maps_no_tracked_one() {
    let mut idle = Idle::take().unwrap();
    let vm = plain::<Npt4>(&mut idle, false);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let mut touch = |idle: &mut Idle, gfn: u64| {
        vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Write }).unwrap()
    };
    // It remembers the table by then.
    (0..8).for_each(|gfn| _ = touch(&mut idle, gfn));
    let tracking = vm.memory().track_writes(&mut idle, Span::new(Gfn(10), Gfn(12)), told()).unwrap();
    let found: Vec<u64> =
        (8..600).filter(|&gfn| touch(&mut idle, gfn) == Next::Emulate(Emulate::Tracked)).collect();
    assert_eq!(found, [10, 11]);
    drop(tracking);
    assert!((0..700).all(|gfn| touch(&mut idle, gfn) != Next::Emulate(Emulate::Tracked)));
}

#[test]
fn trackers_nest_and_may_be_detached() {
    let mut idle = Idle::take().unwrap();
    let vm = plain::<Ept4>(&mut idle, false);
    let (first, second) = (told(), told());
    let outer = vm.memory().track_writes(&mut idle, Span::new(Gfn(0), Gfn(8)), first.clone()).unwrap();
    let inner = vm.memory().track_writes(&mut idle, one(3), second.clone()).unwrap().detach();
    vm.memory()
        .emulate_store(&mut idle, Gpa(0x3ff8), &[0; 8], |hva| assert_eq!(hva, Hva(HVA.0 + 0x3ff8)))
        .unwrap();
    vm.memory().emulate_store(&mut idle, Gpa(0x4000), &[0; 2], |_| ()).unwrap();
    let both = |gpa, len| [("before", Gpa(gpa), len), ("after", Gpa(gpa), len)];
    assert_eq!(*first.0.lock().unwrap(), [both(0x3ff8, 8), both(0x4000, 2)].concat());
    assert_eq!(*second.0.lock().unwrap(), both(0x3ff8, 8));
    drop(outer);
    assert_eq!(store(&mut idle, &vm, 3), Next::Emulate(Emulate::Tracked));
    assert_eq!(store(&mut idle, &vm, 4), Next::Resume(Resume::Mapped(Level::K4)));
    assert!(vm.memory().untrack_writes(inner) && !vm.memory().untrack_writes(inner));
    assert_eq!(store(&mut idle, &vm, 3), Next::Resume(Resume::Mapped(Level::K4)));
}

#[test]
fn a_large_page_is_split_and_comes_back() {
    for whole in [false, true] {
        let mut idle = Idle::take().unwrap();
        let vm = plain::<Ept4>(&mut idle, true);
        assert_eq!(store(&mut idle, &vm, 0), Next::Resume(Resume::Mapped(Level::M2)));
        let gfns = if whole { Span::new(Gfn(0), Gfn(512)) } else { Span::new(Gfn(5), Gfn(7)) };
        let tracking = vm.memory().track_writes(&mut idle, gfns, told()).unwrap();
        let beside = vm.memory().track_writes(&mut idle, one(9), told()).unwrap();
        assert!(vm.memory().translate(&mut idle, Gfn(5)).is_some(), "loads go on");
        assert_eq!(store(&mut idle, &vm, 5), Next::Emulate(Emulate::Tracked));
        assert_eq!(writable(&mut idle, &vm, 300), !whole);
        drop(tracking);
        // Another of its frames is still tracked.
        assert_eq!(vm.memory().recover(&mut idle, Span::new(Gfn(0), Gfn(PAGES))), 0);
        assert_eq!(store(&mut idle, &vm, 9), Next::Emulate(Emulate::Tracked));
        assert_eq!(store(&mut idle, &vm, 5), Next::Resume(Resume::Fixed));
        assert_eq!(vm.memory().translate(&mut idle, Gfn(5)).unwrap().level, Level::K4);
        drop(beside);
        assert_eq!(vm.memory().recover(&mut idle, Span::new(Gfn(0), Gfn(PAGES))), 1);
        assert!(writable(&mut idle, &vm, 9));
    }
}

#[test]
fn no_large_page_is_mapped_over_a_tracked_frame() {
    let mut idle = Idle::take().unwrap();
    let vm = plain::<Ept4>(&mut idle, true);
    let tracking = vm.memory().track_writes(&mut idle, one(700), told()).unwrap();
    assert_eq!(store(&mut idle, &vm, 600), Next::Resume(Resume::Mapped(Level::K4)));
    assert_eq!(store(&mut idle, &vm, 0), Next::Resume(Resume::Mapped(Level::M2)));
    assert_eq!(access(&mut idle, &vm, 700, Access::Read), Next::Resume(Resume::Mapped(Level::K4)));
    drop(tracking);
}

#[test]
fn frames_stay_tracked_whatever_else_happens() {
    type Happens = fn(&mut Idle, &Vm<Ept4NoAd, Identity>);
    let happens: [(&str, Happens); 10] = [
        ("the memslot goes and comes again", |idle, vm| {
            vm.memory().commit(idle, |tx| tx.delete(RAM)).unwrap();
            vm.memory().commit(idle, |tx| tx.create(Slot::new(SlotId(3), Gfn(0), PAGES, HVA))).unwrap();
        }),
        ("the memslot moves away and another comes", |idle, vm| {
            vm.memory().commit(idle, |tx| tx.move_to(RAM, Gfn(1 << 20))).unwrap();
            vm.memory().commit(idle, |tx| tx.create(Slot::new(SlotId(1), Gfn(0), 16, HVA))).unwrap();
        }),
        ("a log begins", |idle, vm| {
            vm.memory().commit(idle, |tx| tx.set_log_dirty(RAM, true)).unwrap();
        }),
        ("a log begins, is harvested and ends", |idle, vm| {
            vm.memory().commit(idle, |tx| tx.set_log_dirty(RAM, true)).unwrap();
            vm.memory().harvest(idle, RAM).unwrap().commit();
            vm.memory().commit(idle, |tx| tx.set_log_dirty(RAM, false)).unwrap();
        }),
        ("the host moves the page", |idle, vm| {
            drop(vm.invalidate(Span::sized(HVA, 8 * PAGE_SIZE), Reason::Migrate).apply(idle).settle());
        }),
        ("the host protects the page for a moment", |idle, vm| {
            drop(vm.invalidate(Span::sized(HVA, 8 * PAGE_SIZE), Reason::Protect).apply(idle).settle());
        }),
        ("all goes", |idle, vm| vm.zap_all(idle).unwrap()),
        ("pages are aged", |idle, vm| vm.memory().lockless(idle).age(Span::new(Gfn(0), Gfn(PAGES)), |_| ())),
        ("pages are mapped ahead", |idle, vm| {
            let mut vcpu = vm.vcpu(VcpuId(1)).unwrap();
            let store = Prefault::young(Access::Write);
            assert_eq!(vcpu.prefault(idle, Span::new(Gfn(0), Gfn(64)), store), Ok(5), "to the tracked one");
            assert_eq!(vcpu.prefault(idle, Span::new(Gfn(0), Gfn(64)), Prefault::OLD), Ok(64), "as loads");
        }),
        ("large pages are looked for", |idle, vm| {
            vm.host().offer(Level::M2);
            assert_eq!(vm.memory().recover(idle, Span::new(Gfn(0), Gfn(512))), 0);
        }),
    ];
    for (what, happens) in happens {
        for mapped in [false, true] {
            let mut idle = Idle::take().unwrap();
            let vm = plain::<Ept4NoAd>(&mut idle, false);
            if mapped {
                let _ = store(&mut idle, &vm, 5);
            }
            let tracking = vm.memory().track_writes(&mut idle, one(5), told()).unwrap();
            happens(&mut idle, &vm);
            assert_eq!(store(&mut idle, &vm, 5), Next::Emulate(Emulate::Tracked), "{what}");
            let _ = access(&mut idle, &vm, 5, Access::Read);
            assert_eq!(store(&mut idle, &vm, 5), Next::Emulate(Emulate::Tracked), "{what}");
            assert!(!writable(&mut idle, &vm, 5) && vm.memory().tracks_writes(Gfn(5)), "{what}");
            drop(tracking);
            assert_ne!(store(&mut idle, &vm, 5), Next::Emulate(Emulate::Tracked), "{what}");
            assert!(writable(&mut idle, &vm, 5), "{what}");
        }
    }
}

#[test]
fn an_emulated_store_is_logged() {
    fn dirty<F: Format>(log: DirtyLog) -> Vec<Gfn> {
        let mut idle = Idle::take().unwrap();
        let host = Identity::default();
        let vm = Vm::<F, _>::builder(host).dirty_log(log).build().unwrap();
        vm.memory()
            .commit(&mut idle, |tx| tx.create(Slot::new(RAM, Gfn(0), PAGES, HVA).log_dirty()))
            .unwrap();
        let tracking = vm.memory().track_writes(&mut idle, Span::new(Gfn(5), Gfn(8)), told()).unwrap();
        for gfn in [5, 6] {
            assert_eq!(store(&mut idle, &vm, gfn), Next::Emulate(Emulate::Tracked));
            let _ = access(&mut idle, &vm, gfn, Access::Read);
        }
        vm.memory().emulate_store(&mut idle, Gfn(6).gpa(), &[1], |_| ()).unwrap();
        drop(tracking);
        let harvest = vm.memory().harvest(&mut idle, RAM).unwrap();
        let dirty = harvest.iter().map(|page| page.gfn).collect();
        harvest.commit();
        dirty
    }
    assert_eq!(dirty::<Ept4>(DirtyLog::bitmap()), [Gfn(6)]);
    assert_eq!(dirty::<Ept4>(DirtyLog::bitmap().track(Track::DirtyBits)), [Gfn(6)]);
}

#[test]
fn stores_that_cannot_be_emulated_are_refused() {
    let mut idle = Idle::take().unwrap();
    let vm = plain::<Ept4>(&mut idle, false);
    let rom = Slot::new(SlotId(1), Gfn(1 << 20), 4, HVA).readonly();
    vm.memory().commit(&mut idle, |tx| tx.create(rom)).unwrap();
    let heard = told();
    let tracking =
        vm.memory().track_writes(&mut idle, Span::new(Gfn(0), Gfn(1 << 21)), heard.clone()).unwrap();
    let mut refused = |gpa, len| {
        vm.memory()
            .emulate_store(&mut idle, Gpa(gpa), &vec![0; len], |_| panic!("it is not made"))
            .unwrap_err()
    };
    assert_eq!(refused(0x1ffe, 4), writes::StoreError::CrossesPage);
    assert_eq!(refused(PAGES << PAGE_SHIFT, 4), writes::StoreError::NoMemory);
    assert_eq!(refused(1 << 32, 4), writes::StoreError::NoMemory);
    assert!(heard.0.lock().unwrap().is_empty());
    assert_eq!(
        store(&mut idle, &vm, 1 << 20),
        Next::Emulate(Emulate::ReadOnly),
        "a store to read-only memory is a device's"
    );
    drop(tracking);
}

#[test]
fn each_address_space_tracks_by_itself() {
    let mut idle = Idle::take().unwrap();
    let vm = vm::<Ept4>(&mut idle, false, |builder| builder.address_spaces(2));
    let smm = vm.space(SpaceId(1)).unwrap();
    smm.commit(&mut idle, |tx| tx.create(Slot::new(RAM, Gfn(0), PAGES, HVA))).unwrap();
    let tracking = smm.track_writes(&mut idle, one(5), told()).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let fault = Fault { gpa: Gfn(5).gpa(), access: Access::Write };
    assert_eq!(vcpu.fault(&mut idle, fault), Ok(Next::Resume(Resume::Mapped(Level::K4))), "an alias");
    assert!(vcpu.switch_to(SpaceId(1)));
    assert_eq!(vcpu.fault(&mut idle, fault), Ok(Next::Emulate(Emulate::Tracked)));
    drop(tracking);
}
