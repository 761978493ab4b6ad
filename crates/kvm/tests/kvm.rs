//! Guests on real KVM. Without `/dev/kvm`, or userfaultfd for kernel faults, each test prints one line and is
//! skipped.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use guest::stage::{DATA, DATA_AT, LOW, Stage, bound};
use guest::{Job, Work};
use slat::slots::{Change, Region};
use slat::{Gfn, Gpa, Idle, PAGE_SIZE, SlotId, Span, Young};
use slat_kvm::KvmError;
use slat_kvm::kvm_bindings::kvm_userspace_memory_region;
use slat_mm::{Backing, Place, Prot};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

#[path = "../examples/guest/mod.rs"]
mod guest;

const PAGES: u64 = 256;

fn idle() -> Idle {
    bound(Duration::from_secs(600));
    Idle::take().expect("a test's thread has its token")
}

fn work(job: Job, pages: u64, salt: u64) -> Work {
    Work { job, start: DATA_AT.0, pages, mask: !0, salt }
}

/// Returns the pages that the log reports as written, numbered from the memslot's first.
fn logged(stage: &Stage, idle: &mut Idle) -> Vec<u64> {
    let harvest = stage.vm.harvest(idle, DATA).unwrap();
    let pages = harvest.iter().map(|page| page.gfn.0 - DATA_AT.gfn().0).collect();
    harvest.commit();
    pages
}

#[test]
fn a_guest_finds_its_memory_after_moves_swap_and_trims() {
    let mut idle = idle();
    let Some(stage) = Stage::new(&mut idle, PAGES, false, |builder| builder) else { return };
    let mut vcpus = [0, 1].map(|number| (number, stage.vcpu(number)));
    let mut wrong = |idle: &mut Idle, job, salt| {
        let found =
            vcpus.iter_mut().map(|(n, vcpu)| stage.run(idle, (*n, vcpu), work(job, PAGES, salt)).unwrap());
        found.sum::<u64>()
    };
    wrong(&mut idle, Job::Fill, 5);
    assert_eq!(stage.space.migrate(&mut idle, stage.data), Ok(PAGES));
    assert_eq!(wrong(&mut idle, Job::Check, 5), 0);
    assert_eq!(stage.space.pageout(&mut idle, stage.data), Ok(PAGES));
    assert!(stage.arena.trim().unwrap() >= PAGES * PAGE_SIZE, "frames that are free go back to the system");
    assert_eq!(wrong(&mut idle, Job::Check, 5), 0);
    assert_eq!(wrong(&mut idle, Job::Check, 6), PAGES * 512, "the guest does check");
    let faults = stage.vm.view_stats().faults;
    assert_eq!(wrong(&mut idle, Job::Check, 5), 0);
    assert_eq!(stage.vm.view_stats().faults, faults, "a mapped page costs no fault");
    assert_eq!(stage.vm.view_stats().errors, 0);
}

#[test]
fn the_dirty_log_has_what_the_guest_and_devices_wrote_and_nothing_else() {
    for kvm_log in [false, true] {
        let mut idle = idle();
        let build = |builder: slat_kvm::Builder| builder.kvm_log(kvm_log);
        let Some(stage) = Stage::new(&mut idle, PAGES, false, build) else { return };
        let mut vcpu = stage.vcpu(0);
        let mut run = |idle: &mut Idle, work| stage.run(idle, (0, &mut vcpu), work).unwrap();
        run(&mut idle, work(Job::Fill, PAGES, 5));
        stage.vm.set(&mut idle, stage.region(Region::LOG_DIRTY)).unwrap();
        logged(&stage, &mut idle);
        assert_eq!(run(&mut idle, work(Job::Check, PAGES, 5)), 0);
        assert_eq!(logged(&stage, &mut idle), [], "loads are not logged");
        // Every third page, and one write by a device across the end of a page.
        run(&mut idle, Work { mask: 3 * PAGE_SIZE, ..work(Job::Touch, 20, 5) });
        stage.vm.write(&mut idle, Gpa(DATA_AT.0 + 101 * PAGE_SIZE - 2), b"device").unwrap();
        let mut expected: Vec<u64> = (0..20).map(|n| 3 * n).chain([100, 101]).collect();
        expected.sort_unstable();
        assert_eq!(logged(&stage, &mut idle), expected);
        assert_eq!(logged(&stage, &mut idle), []);
    }
}

#[test]
fn memslots_are_changed_in_both_or_in_neither() {
    let mut idle = idle();
    let Some(stage) = Stage::new(&mut idle, PAGES, false, |builder| builder) else { return };
    let vm = &stage.vm;
    let other =
        stage.space.mmap(Place::Anywhere, 16 * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
    let region =
        Region { slot: SlotId(7), flags: 0, gpa: Gpa(64 << 20), bytes: 16 * PAGE_SIZE, hva: other.start };
    // Refused by the rules, which are checked first.
    let overlaps = vm.set(&mut idle, Region { gpa: DATA_AT, ..region });
    assert!(matches!(overlaps, Err(KvmError::Slots(error)) if error.errno() == libc::EEXIST));
    // Refused by KVM alone: it has a memslot there that slat does not know.
    let foreign = kvm_userspace_memory_region {
        slot: 100,
        guest_phys_addr: region.gpa.0,
        memory_size: PAGE_SIZE,
        userspace_addr: 0x1000_0000,
        ..Default::default()
    };
    // SAFETY: no vCPU runs.
    unsafe { vm.fd().set_user_memory_region(foreign) }.unwrap();
    let refused = vm.set(&mut idle, region);
    assert!(matches!(refused, Err(KvmError::Kvm { error, .. }) if error.errno() == libc::EEXIST));
    assert_eq!(vm.memory().len(), 2, "the refused call changed the slots");
    let elsewhere = Region { gpa: Gpa(72 << 20), ..region };
    assert_eq!(vm.set(&mut idle, elsewhere).unwrap(), Change::Created);
    let moved = vm.set(&mut idle, region);
    assert!(matches!(moved, Err(KvmError::Kvm { .. })));
    assert_eq!(vm.memory().get(&mut idle, SlotId(7)).unwrap().gpas().start, elsewhere.gpa);
    // SAFETY: no vCPU runs.
    unsafe { vm.fd().set_user_memory_region(kvm_userspace_memory_region { memory_size: 0, ..foreign }) }
        .unwrap();
    assert!(matches!(vm.set(&mut idle, region).unwrap(), Change::Moved(_)));
    assert_eq!(vm.set(&mut idle, region).unwrap(), Change::Nothing);
    assert!(matches!(vm.set(&mut idle, Region::deletion(SlotId(7))).unwrap(), Change::Deleted(_)));
    assert!(matches!(vm.set(&mut idle, Region::deletion(SlotId(7))), Err(KvmError::Slots(_))));
    assert_eq!(vm.memory().len(), 2);
}

/// Two vCPUs work in one memslot while another is created, moved and deleted; the contents of that one are
/// found at its current address.
#[test]
fn memslots_come_move_and_go_under_running_guests() {
    let mut idle = idle();
    let Some(stage) = Stage::new(&mut idle, PAGES, false, |builder| builder) else { return };
    let other =
        stage.space.mmap(Place::Anywhere, 32 * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
    let at = |mib: u64| Region {
        slot: SlotId(7),
        flags: 0,
        gpa: Gpa(mib << 20),
        bytes: 32 * PAGE_SIZE,
        hva: other.start,
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..2 {
            let (stage, over) = (&stage, &over);
            scope.spawn(move || {
                let mut idle = Idle::take().unwrap();
                let mut vcpu = stage.vcpu(number);
                for salt in 0.. {
                    stage.run(&mut idle, (number, &mut vcpu), work(Job::Fill, PAGES, salt)).unwrap();
                    let wrong =
                        stage.run(&mut idle, (number, &mut vcpu), work(Job::Check, PAGES, salt)).unwrap();
                    assert_eq!(wrong, 0);
                    if over.load(Relaxed) {
                        return;
                    }
                }
            });
        }
        let mut vcpu = stage.vcpu(2);
        for round in 0..20 {
            stage.vm.set(&mut idle, at(64)).unwrap();
            let there = |job, mib: u64| Work { start: mib << 20, mask: 0xfff, ..work(job, 32, round) };
            stage.run(&mut idle, (2, &mut vcpu), there(Job::Fill, 64)).unwrap();
            stage.vm.set(&mut idle, at(96)).unwrap();
            stage.space.migrate(&mut idle, stage.data).unwrap();
            assert_eq!(
                stage.run(&mut idle, (2, &mut vcpu), there(Job::Check, 96)).unwrap(),
                0,
                "the memslot has moved"
            );
            stage.vm.set(&mut idle, at(64)).unwrap();
            assert_eq!(
                stage.run(&mut idle, (2, &mut vcpu), there(Job::Check, 64)).unwrap(),
                0,
                "the memslot has moved back"
            );
            stage.vm.set(&mut idle, Region::deletion(SlotId(7))).unwrap();
            assert!(stage.vm.write(&mut idle, Gpa(64 << 20), &[0]).is_err());
        }
        over.store(true, Relaxed);
    });
    assert_eq!(stage.vm.memory().len(), 2);
    assert!(stage.vm.memory().get(&mut idle, LOW).is_some());
}

#[test]
fn huge_pages_are_one_leaf_and_one_mapping() {
    let mut idle = idle();
    let Some(stage) = Stage::new(&mut idle, 4 * 512, true, |builder| builder) else { return };
    let mut vcpu = stage.vcpu(0);
    stage.run(&mut idle, (0, &mut vcpu), work(Job::Fill, 4 * 512, 5)).unwrap();
    let (leaves, view) = (stage.vm.stats().leaves, stage.vm.view_stats());
    assert_eq!(leaves[1], 4, "{leaves:?}");
    assert!(view.faults < 64 && view.mappings < 32, "{view:?}");
    assert_eq!(stage.vm.memory().translate(&mut idle, Gfn(DATA_AT.gfn().0 + 600)).unwrap().gfns.len(), 512);
    stage.space.migrate(&mut idle, stage.data).unwrap();
    assert_eq!(stage.run(&mut idle, (0, &mut vcpu), work(Job::Check, 4 * 512, 5)).unwrap(), 0);
    // Logging splits them: stores are reported page by page.
    stage.vm.set(&mut idle, stage.region(Region::LOG_DIRTY)).unwrap();
    logged(&stage, &mut idle);
    stage.run(&mut idle, (0, &mut vcpu), Work { mask: 700 * PAGE_SIZE, ..work(Job::Touch, 2, 5) }).unwrap();
    assert_eq!(logged(&stage, &mut idle), [0, 700]);
}

#[test]
fn the_view_keeps_its_budget_of_mappings() {
    const BUDGET: u64 = 64;
    let mut idle = idle();
    let many = 3 * 512;
    let Some(stage) = Stage::new(&mut idle, many, false, |builder| builder.mappings(BUDGET as usize)) else {
        return;
    };
    let mut vcpu = stage.vcpu(0);
    stage.run(&mut idle, (0, &mut vcpu), work(Job::Fill, many, 5)).unwrap();
    // Every other page is migrated, so that no two neighbouring pages have neighbouring frames.
    for page in (0..many).step_by(2) {
        stage.space.migrate(&mut idle, Span::sized(stage.data.start + page * PAGE_SIZE, PAGE_SIZE)).unwrap();
    }
    assert_eq!(stage.run(&mut idle, (0, &mut vcpu), work(Job::Check, many, 5)).unwrap(), 0);
    let view = stage.vm.view_stats();
    assert!(view.evicted > 0, "{view:?}");
    let of_all = stage.arena.stats().in_use - guest::OWN / PAGE_SIZE;
    assert!(of_all >= many, "only the view may drop pages: {of_all} frames are in use");
    // The page being mapped stays, with its piece of 2 MiB; so does the guest's own memory.
    assert!(view.mappings <= BUDGET + 512 + guest::OWN / PAGE_SIZE, "{view:?}");
}

#[test]
fn a_page_that_has_aged_is_young_again_when_the_guest_uses_it() {
    let mut idle = idle();
    let Some(stage) = Stage::new(&mut idle, PAGES, false, |builder| builder) else { return };
    let mut vcpu = stage.vcpu(0);
    stage.run(&mut idle, (0, &mut vcpu), work(Job::Fill, PAGES, 5)).unwrap();
    let page = |n: u64| Span::sized(stage.data.start + n * PAGE_SIZE, PAGE_SIZE);
    assert!(stage.space.young(&mut idle, stage.data, Young::ClearAndFlush));
    assert!(!stage.space.young(&mut idle, stage.data, Young::Test));
    stage.run(&mut idle, (0, &mut vcpu), Work { mask: 9 * PAGE_SIZE, ..work(Job::Touch, 2, 5) }).unwrap();
    let young: Vec<u64> =
        (0..PAGES).filter(|&n| stage.space.young(&mut idle, page(n), Young::Test)).collect();
    assert_eq!(young, [0, 9]);
}
