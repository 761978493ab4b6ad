//! Tests of kept copies: a page that came back and was not written leaves again without a store. A written page
//! is always stored again.

use crate::fixture::*;
use crate::swap_device::{Disk, PAGES, filled, intact, noise};
use crate::vm::guest_on;
use slat::{Access, Fault, Gfn, PAGE_SIZE, VcpuId};
use slat_mm::{Place, Swap};
use std::sync::Arc;

fn machine() -> (Machine, Arc<Swap>, Arc<Disk>) {
    machine_of(1 << 20)
}

fn machine_of(bytes: u64) -> (Machine, Arc<Swap>, Arc<Disk>) {
    let disk = Disk::new();
    let swap = Swap::builder().device(disk.clone(), bytes).read_ahead(1);
    let (machine, swap) = Machine::with_swap(swap);
    (filled(machine), swap, disk)
}

#[test]
fn a_page_that_is_only_read_is_stored_once() {
    let (mut machine, swap, disk) = machine();
    for _ in 0..3 {
        assert_eq!(machine.page_out(0, PAGES), PAGES);
        assert_eq!((disk.writes(), swap.stats().stored, swap.stats().references), (PAGES, PAGES, PAGES));
        assert_eq!(intact(&mut machine), PAGES);
    }
    assert_eq!(machine.space.stats().swapped_out, 3 * PAGES);
    assert_eq!(swap.stats().references, PAGES, "kept");
    assert!(machine.all_free());
    assert_eq!(swap.stats().references, 0);
}

#[test]
fn a_written_page_is_stored_again() {
    let (mut machine, swap, disk) = machine();
    machine.page_out(0, PAGES);
    let Machine { idle, space, .. } = &mut machine;
    let vm = guest_on(space, idle, PAGES);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for (gfn, access) in [(0, Access::Read), (1, Access::Write), (2, Access::Read), (2, Access::Write)] {
        let _ = vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access }).unwrap();
    }
    for gfn in 1..3 {
        let leaf = vm.memory().translate(idle, Gfn(gfn)).unwrap().leaf;
        // SAFETY: the guest may write the frame, and nothing else runs on the machine.
        unsafe { space.arena().frame(leaf.pfn).write_bytes(gfn as u8, PAGE_SIZE as usize) };
    }
    assert_eq!(swap.stats().references, PAGES - 2, "no copy of a writable page is kept");
    assert_eq!((space.pageout(idle, pages(0, PAGES)), disk.writes()), (Ok(3), PAGES + 2));
    drop(vcpu);
    drop(vm);
    assert_eq!(
        (machine.bytes(0), machine.bytes(1), machine.bytes(2)),
        (noise(0), vec![1; 4096], vec![2; 4096])
    );
    machine.fill(3, &[5; 4096]);
    machine.bytes(3);
    machine.page_out(3, 1);
    assert_eq!(machine.bytes(3), [5; 4096]);
    assert!(machine.all_free());
    assert_eq!(swap.stats().references, 0);
}

/// Whatever happens to the address or to the page.
#[test]
fn no_copy_is_kept_of_a_page_that_has_gone() {
    let (mut machine, swap, _) = machine();
    assert_eq!((machine.page_out(0, PAGES), intact(&mut machine)), (PAGES, PAGES));
    let kept = || swap.stats().references;
    machine.space.munmap(&mut machine.idle, pages(0, 1)).unwrap();
    assert_eq!(kept(), PAGES - 1);
    machine.space.dontneed(&mut machine.idle, pages(1, 1)).unwrap();
    assert_eq!((kept(), machine.get(1)), (PAGES - 2, 0));
    assert_eq!((machine.page_out(1, 1), machine.get(1)), (1, 0), "the page is zero, not the old contents");
    machine.space.reap(&mut machine.idle, pages(2, 1)).unwrap();
    assert_eq!(kept(), PAGES - 3);
    machine.space.mremap(&mut machine.idle, pages(3, 1), PAGE_SIZE, Place::Fixed(at(100))).unwrap();
    machine.put(100, 9);
    machine.space.mremap(&mut machine.idle, pages(100, 1), PAGE_SIZE, Place::Fixed(at(3))).unwrap();
    assert_eq!((machine.page_out(3, 1), machine.get(3)), (1, 9));
    assert_eq!(machine.space.migrate(&mut machine.idle, pages(4, 1)), Ok(1));
    assert_eq!(
        (machine.page_out(4, 1), machine.bytes(4)),
        (1, noise(4)),
        "another frame with the same contents"
    );

    let child = machine.space.fork(&mut machine.idle).unwrap();
    child.write(&mut machine.idle, at(5), &[1]).unwrap();
    machine.put(6, 7);
    drop(child);
    assert_eq!((machine.page_out(5, 2), machine.bytes(5), machine.get(6)), (2, noise(5), 7));
    machine.space.exit(&mut machine.idle).unwrap();
    assert_eq!(kept(), 0);
    assert!(machine.all_free());
}

#[test]
fn copies_are_kept_while_the_device_is_half_empty() {
    let (mut machine, swap, disk) = machine_of(24 * PAGE_SIZE);
    assert_eq!((machine.page_out(0, PAGES), intact(&mut machine)), (PAGES, PAGES));
    assert_eq!(
        swap.stats().references,
        11,
        "pages that came back while fewer than twelve blocks were in use keep their copies"
    );
    assert_eq!((machine.page_out(0, PAGES), disk.writes()), (PAGES, PAGES + 5));
    assert_eq!(intact(&mut machine), PAGES);
    assert!(machine.all_free());
}

/// The device has less room than its size says. Swapped pages then take the blocks of kept copies.
#[test]
fn kept_copies_make_room() {
    let (mut machine, swap, disk) = machine();
    disk.limit(Some(8 * PAGE_SIZE));
    assert_eq!((machine.page_out(0, 8), intact(&mut machine)), (8, PAGES));
    assert_eq!((swap.stats().references, swap.stats().file_bytes), (8, 8 * PAGE_SIZE));
    assert_eq!(
        (machine.page_out(8, 8), swap.stats().references),
        (8, 8),
        "other pages take the blocks of the kept copies"
    );
    assert_eq!((machine.page_out(0, 8), swap.has_room()), (0, false));
    assert_eq!(intact(&mut machine), PAGES);
    assert!(machine.all_free());
}

/// A copy in memory would use the memory that the swap-out frees.
#[test]
fn no_copy_is_kept_in_memory() {
    let (mut machine, swap) = Machine::with_swap(Swap::builder().memory(1 << 20));
    machine.map(0, 4);
    machine.number(0, 4);
    assert_eq!((machine.page_out(0, 4), machine.get(1)), (4, 1));
    assert_eq!(swap.stats().references, 3);
    assert!(machine.all_free());
}
