//! Tests of a VM on top: its guest sees what this process sees, before and after every change.

use crate::fixture::*;
use slat::table::formats::Npt4;
use slat::trace::{Observer, TraceEvent};
use slat::{
    Access, Fault, Format, Gfn, Host, Idle, Level, Next, PAGE_SIZE, Resume, Slot, SlotId, Vcpu, VcpuId, Vm,
};
use slat_mm::{AddressSpace, Arena, Backing, File, HostView, Place, Prot, Swap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

pub type Guest = Vm<Npt4, HostView>;

/// A VM whose frames from 0 on are the test's memory, from its first page on.
pub fn guest_on(space: &Arc<AddressSpace>, idle: &mut Idle, frames: u64) -> Arc<Guest> {
    let vm = Arc::new(Guest::builder(HostView::new(space)).vcpus(2).max_page(Level::M2).build().unwrap());
    space.register(&vm);
    vm.memory().commit(idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), frames, BASE))).unwrap();
    vm
}

/// Checks that this process maps every page that the guest maps: to the same frame, and writable if the guest's
/// is.
pub fn coherent<F: Format>(vm: &Vm<F, HostView>, idle: &mut Idle, frames: u64) {
    for gfn in (0..frames).map(Gfn) {
        let Some(mapping) = vm.memory().translate(idle, gfn) else { continue };
        let pfn = mapping.leaf.pfn + (gfn.0 - mapping.gfns.start.0);
        let host = vm.host().lookup(at(gfn.0), Access::Read);
        let host = host.unwrap_or_else(|| panic!("{gfn:?} is mapped only in the guest"));
        assert_eq!(pfn, host.pfn, "{gfn:?}");
        assert!(
            host.writable || !mapping.leaf.perms.allows(Access::Write),
            "{gfn:?}: writable only in the guest"
        );
    }
}

fn fault(vcpu: &mut Vcpu<'_, Npt4, HostView>, idle: &mut Idle, gfn: u64, access: Access) -> Next {
    vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access }).unwrap()
}

fn arena() -> Arc<Arena> {
    Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap()
}

#[test]
fn a_guest_follows_every_change_of_its_host() {
    let mut idle = Idle::take().unwrap();
    let arena = arena();
    let space = AddressSpace::builder(&arena).build().unwrap();
    space.mmap(Place::Fixed(at(0)), 16 * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
    let vm = guest_on(&space, &mut idle, 16);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for gfn in 0..16 {
        assert_eq!(fault(&mut vcpu, &mut idle, gfn, Access::Write), Next::Resume(Resume::Mapped(Level::K4)));
        space.write(&mut idle, at(gfn), &gfn.to_le_bytes()).unwrap();
    }
    let seen = |idle: &mut Idle, gfn| vm.memory().translate(idle, Gfn(gfn)).map(|mapping| mapping.leaf);
    let writable = |idle: &mut Idle, gfn| seen(idle, gfn).unwrap().perms.allows(Access::Write);

    space.munmap(&mut idle, pages(15, 1)).unwrap();
    assert_eq!(seen(&mut idle, 15), None);
    assert!(vcpu.fault(&mut idle, Fault { gpa: Gfn(15).gpa(), access: Access::Read }).is_err());

    let before = seen(&mut idle, 1).unwrap().pfn;
    space.migrate(&mut idle, pages(1, 1)).unwrap();
    assert_eq!(seen(&mut idle, 1), None);
    let _ = fault(&mut vcpu, &mut idle, 1, Access::Read);
    assert_ne!(seen(&mut idle, 1).unwrap().pfn, before);

    space.mprotect(&mut idle, pages(2, 1), Prot::Read).unwrap();
    assert!(!writable(&mut idle, 2), "still mapped, not writable");
    assert!(vcpu.fault(&mut idle, Fault { gpa: Gfn(2).gpa(), access: Access::Write }).is_err());
    space.mprotect(&mut idle, pages(2, 1), Prot::ReadWrite).unwrap();
    assert_eq!(
        fault(&mut vcpu, &mut idle, 2, Access::Write),
        Next::Resume(Resume::Fixed),
        "a sole owner writes in place"
    );

    let child = space.fork(&mut idle).unwrap();
    assert!(!writable(&mut idle, 3));
    let shared = seen(&mut idle, 3).unwrap().pfn;
    let done = fault(&mut vcpu, &mut idle, 3, Access::Write);
    assert_eq!(done, Next::Resume(Resume::Fixed), "the copy replaced the page, without a gap");
    assert!(writable(&mut idle, 3) && seen(&mut idle, 3).unwrap().pfn != shared);
    assert_eq!(get(&child, &mut idle, 3), 3);
    assert!(!writable(&mut idle, 4), "its neighbour is still shared");

    space.mremap(&mut idle, pages(5, 1), PAGE_SIZE, Place::Fixed(at(20))).unwrap();
    assert_eq!(seen(&mut idle, 5), None);
    coherent(&vm, &mut idle, 16);
    drop(vcpu);
    drop((vm, child, space));
    assert_eq!((arena.stats().in_use, arena.stats().stale_writes), (0, 0));
}

#[test]
fn huge_pages_reach_the_guest_and_are_split_when_a_part_changes() {
    let mut idle = Idle::take().unwrap();
    let arena = arena();
    let space = AddressSpace::builder(&arena).thp(true).build().unwrap();
    space.mmap(Place::Fixed(at(0)), 4 << 20, Prot::ReadWrite, Backing::Anonymous).unwrap();
    let vm = guest_on(&space, &mut idle, 1024);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    assert_eq!(fault(&mut vcpu, &mut idle, 700, Access::Write), Next::Resume(Resume::Mapped(Level::M2)));
    space.migrate(&mut idle, pages(700, 1)).unwrap();
    assert_eq!(vm.memory().translate(&mut idle, Gfn(700)), None);
    assert_eq!(
        vm.memory().translate(&mut idle, Gfn(600)).unwrap().level,
        Level::K4,
        "its neighbours stay as small pages"
    );
    assert_eq!(fault(&mut vcpu, &mut idle, 700, Access::Read), Next::Resume(Resume::Mapped(Level::K4)));
    coherent(&vm, &mut idle, 1024);
}

#[test]
fn two_guests_of_one_address_space_see_one_memory() {
    let mut idle = Idle::take().unwrap();
    let arena = arena();
    let space = AddressSpace::builder(&arena).build().unwrap();
    let file = File::zeroed(&arena, 8 * PAGE_SIZE);
    let shared = Backing::Shared { file, offset: 0 };
    space.mmap(Place::Fixed(at(0)), 8 * PAGE_SIZE, Prot::ReadWrite, shared).unwrap();
    let vms = [guest_on(&space, &mut idle, 8), guest_on(&space, &mut idle, 8)];
    for vm in &vms {
        let _ = fault(&mut vm.vcpu(VcpuId(0)).unwrap(), &mut idle, 3, Access::Write);
    }
    let frames = vms.each_ref().map(|vm| vm.memory().translate(&mut idle, Gfn(3)).unwrap().leaf.pfn);
    assert_eq!(frames[0], frames[1]);
    space.dontneed(&mut idle, pages(0, 8)).unwrap();
    assert!(vms.iter().all(|vm| vm.memory().translate(&mut idle, Gfn(3)).is_none()));
}

/// Tables of the guest and of the host count towards the same limit as the pages.
#[test]
fn a_guest_without_memory_is_told_so_and_goes_on_when_there_is_some() {
    let mut idle = Idle::take().unwrap();
    let arena = Arena::builder().limit(2 << 20).build().unwrap();
    let space = AddressSpace::builder(&arena).build().unwrap();
    space.mmap(Place::Fixed(at(0)), 4 << 20, Prot::ReadWrite, Backing::Anonymous).unwrap();
    let vm = guest_on(&space, &mut idle, 1024);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let mut write =
        |idle: &mut Idle, gfn| vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Write });
    let fits = (0..1024).take_while(|&gfn| write(&mut idle, gfn).is_ok()).count() as u64;
    assert_eq!(fits, 512 - 2 * 64);
    space.dontneed(&mut idle, pages(0, 1)).unwrap();
    assert_eq!(write(&mut idle, fits), Ok(Next::Resume(Resume::Mapped(Level::K4))));
}

/// An observer each call of which panics while it is armed.
#[derive(Default)]
struct Panics(AtomicBool);

impl Observer for Panics {
    fn observe(&self, _: TraceEvent) {
        if self.0.load(SeqCst) {
            std::panic::resume_unwind(Box::new("the observer"));
        }
    }
}

/// A panic in the middle of a change would leave it half-done: faults in a range that was being moved would wait for
/// ever, and `mprotect` would withdraw nothing the next time either.
#[test]
fn an_observer_that_panics_interrupts_no_change() {
    let mut idle = Idle::take().unwrap();
    let arena = arena();
    let swap = Swap::builder().memory(1 << 20).build(&arena).unwrap();
    let space = AddressSpace::builder(&arena).swap(&swap).build().unwrap();
    space.mmap(Place::Fixed(at(0)), 16 * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
    let host = HostView::observed(&space, Panics::default());
    let vm = Arc::new(Vm::<Npt4, _>::builder(host).build().unwrap());
    space.register(&vm);
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 64, BASE))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let mut store =
        |idle: &mut Idle, gfn| vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Write });
    for gfn in 0..16 {
        let _ = store(&mut idle, gfn).unwrap();
        space.write(&mut idle, at(gfn), &gfn.to_le_bytes()).unwrap();
    }
    let leaf = |idle: &mut Idle, gfn| vm.memory().translate(idle, Gfn(gfn)).map(|mapping| mapping.leaf);
    vm.host().observer().0.store(true, SeqCst);
    space.munmap(&mut idle, pages(15, 1)).unwrap();
    assert_eq!(leaf(&mut idle, 15), None);
    space.mprotect(&mut idle, pages(0, 1), Prot::Read).unwrap();
    assert!(!leaf(&mut idle, 0).unwrap().perms.allows(Access::Write));
    assert_eq!(space.mremap(&mut idle, pages(1, 2), 2 * PAGE_SIZE, Place::Fixed(at(32))), Ok(pages(32, 2)));
    assert_eq!(leaf(&mut idle, 1), None);
    let _ = store(&mut idle, 33).unwrap();
    space.dontneed(&mut idle, pages(3, 1)).unwrap();
    assert_eq!(leaf(&mut idle, 3), None);
    assert_eq!(space.pageout(&mut idle, pages(4, 2)), Ok(2));
    assert_eq!(leaf(&mut idle, 4), None);
    let child = space.fork(&mut idle).unwrap();
    let _ = store(&mut idle, 6).unwrap();
    let mut word = [0; 8];
    child.read(&mut idle, at(33), &mut word).unwrap();
    assert_eq!(u64::from_le_bytes(word), 2, "page 2 has moved to 33");
    space.exit(&mut idle).unwrap();
    assert!((0..64).all(|gfn| leaf(&mut idle, gfn).is_none()));
}
