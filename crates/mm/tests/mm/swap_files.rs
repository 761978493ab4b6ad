//! Tests of swap with pages of files. Pages that the file was created with need no swap.

use crate::fixture::*;
use crate::swap_device::Disk;
use crate::swap_race::{Act, Stage};
use slat::{Access, Idle, PAGE_SIZE, Reason};
use slat_mm::{AddressSpace, Backing, File, MmError, Place, Prot, Serve, Swap, UserFaults};
use std::sync::Arc;

/// A file of 8 pages. It was created with the first 3, numbered from 100, and a part of the fourth.
fn file(machine: &Machine) -> Arc<File> {
    let mut contents: Vec<u8> = (100..103).flat_map(|page| [page; 512]).flat_map(u64::to_le_bytes).collect();
    contents.extend([1, 2, 3]);
    File::with_contents(&machine.arena, contents)
}

/// The file, mapped at page `shared` as shared and at page `private` as private.
fn mapped(machine: &Machine, shared: u64, private: u64) -> Arc<File> {
    let file = file(machine);
    map(machine, &Backing::Shared { file: file.clone(), offset: 0 }, shared);
    map(machine, &Backing::Private { file: file.clone(), offset: 0 }, private);
    file
}

fn map(machine: &Machine, backing: &Backing, page: u64) {
    machine.space.mmap(Place::Fixed(at(page)), 4 * PAGE_SIZE, Prot::ReadWrite, backing.clone()).unwrap();
}

#[test]
fn pages_that_the_file_was_made_with_need_no_swap() {
    let (mut machine, _) = Machine::with_swap(Swap::builder());
    let without = AddressSpace::builder(&machine.arena).build().unwrap();
    machine.space = without;
    machine.recorder = Recorder::register(&machine.space);
    mapped(&machine, 0, 10);
    assert_eq!([0, 1, 3, 12].map(|page| machine.get(page)), [100, 101, 0x03_0201, 102]);
    machine.put(1, 5);
    let resident = machine.arena.stats().in_use;
    assert_eq!(machine.page_out(0, 20), 3, "all but the written page");
    let seen = machine.recorder.take();
    assert!(seen.iter().all(|seen| seen.why == Reason::Reclaim));
    assert_eq!(machine.arena.stats().in_use, resident - 3);
    assert_eq!([0, 1, 2, 3].map(|page| machine.look(page).is_some()), [false, true, false, false]);
    assert_eq!([0, 1, 3, 12, 11].map(|page| machine.get(page)), [100, 5, 0x03_0201, 102, 5]);
    assert!(machine.all_free());
}

#[test]
fn written_pages_go_to_swap_and_are_the_files_when_they_come_back() {
    let (mut machine, swap) = Machine::with_swap(Swap::builder().memory(1 << 20));
    let file = mapped(&machine, 0, 10);
    let other = AddressSpace::builder(&machine.arena).build().unwrap();
    let shared = Backing::Shared { file, offset: 0 };
    other.mmap(Place::Fixed(at(0)), 4 * PAGE_SIZE, Prot::ReadWrite, shared).unwrap();
    (0..4).for_each(|page| machine.put(page, page + 50));
    machine.put(12, 7);
    assert_eq!(
        (machine.page_out(0, 20), swap.stats().references),
        (5, 5),
        "four pages of the file, and a private copy"
    );
    assert!((0..13).all(|page| machine.look(page).is_none()));
    assert_eq!(get(&other, &mut machine.idle, 2), 52, "an address space without swap reads the page back");
    assert_eq!([10, 11, 12, 13].map(|page| machine.get(page)), [50, 51, 7, 53]);
    assert_eq!([0, 1, 2, 3].map(|page| machine.get(page)), [50, 51, 52, 53]);
    assert_eq!(
        (swap.stats().references, machine.space.stats().swapped_in, other.stats().swapped_in),
        (0, 4, 1)
    );
    assert_eq!(machine.page_out(0, 20), 1, "only the private copy: the file's pages are mapped twice");

    machine.space.munmap(&mut machine.idle, pages(10, 4)).unwrap();
    other.munmap(&mut machine.idle, pages(0, 4)).unwrap();
    assert_eq!((machine.page_out(0, 4), swap.stats().references), (4, 4));
    machine.space.munmap(&mut machine.idle, pages(0, 4)).unwrap();
    drop(other);
    assert_eq!(swap.stats().references, 0, "the file ended with its last mapping");
    assert!(machine.all_free());
}

#[test]
fn a_page_that_cannot_be_stored_stays_mapped_and_one_that_cannot_be_read_fails_the_access() {
    let disk = Disk::new();
    let (mut machine, swap) = Machine::with_swap(Swap::builder().device(disk.clone(), 1 << 20));
    mapped(&machine, 0, 10);
    machine.put(0, 6);
    let before = machine.look(0).unwrap().pfn;
    disk.fail(Some(libc::EIO), Some(libc::EIO));
    assert_eq!((machine.page_out(0, 4), machine.look(0).unwrap().pfn), (0, before));
    disk.fail(None, Some(libc::EIO));
    assert_eq!(machine.page_out(0, 4), 1);
    let failed = machine.space.read(&mut machine.idle, at(0), &mut [0]);
    assert_eq!(failed, Err(MmError::SwapIo { hva: at(0), errno: libc::EIO }));
    assert_eq!(machine.get(1), 101, "the neighbour can be read");
    disk.fail(None, None);
    assert_eq!([0, 10].map(|page| machine.get(page)), [6, 6]);
    assert_eq!(swap.stats().references, 0);
    assert!(machine.all_free());
}

#[test]
fn a_pinned_page_and_one_behind_prot_none() {
    let (mut machine, swap) = Machine::with_swap(Swap::builder().memory(1 << 20));
    mapped(&machine, 0, 10);
    (0..2).for_each(|page| machine.put(page, 9));
    let pinned = machine.space.pin(&mut machine.idle, pages(0, 1)).unwrap();
    machine.space.mprotect(&mut machine.idle, pages(1, 1), Prot::None).unwrap();
    assert_eq!((machine.page_out(0, 4), swap.stats().references), (1, 1));
    drop(pinned);
    let denied = machine.space.read(&mut machine.idle, at(1), &mut [0]);
    assert_eq!(denied, Err(MmError::Denied(at(1), Access::Read)));
    assert_eq!([0, 11].map(|page| machine.get(page)), [9, 9]);
    assert!(machine.all_free());
}

/// A handler of minor faults continues with a page that must be read back first.
#[test]
fn a_page_in_swap_is_in_the_file() {
    let (mut machine, swap) = Machine::with_swap(Swap::builder().memory(1 << 20));
    mapped(&machine, 0, 10);
    machine.put(3, 8);
    assert_eq!((machine.page_out(0, 4), swap.stats().references), (1, 1));
    let handler = UserFaults::new(&machine.space);
    handler.register(pages(0, 4), Serve::Minor).unwrap();
    handler.continue_(&mut machine.idle, pages(2, 2)).unwrap();
    assert_eq!(([2, 3].map(|page| machine.get(page)), swap.stats().references), ([102, 8], 0));
    drop(handler);
    assert!(machine.all_free());
}

/// Another thread acts while shared page 0 is stored or read back. Returns whether the page left, and what it
/// holds in the end. Nothing may be left over.
fn beside(out: bool, act: impl FnOnce(&AddressSpace, &mut Idle) + Send + 'static) -> (bool, u64) {
    let stage = Arc::<Stage>::default();
    let swap = Swap::builder().device(stage.clone(), 1 << 20);
    let (mut machine, swap) = Machine::with_swap(swap);
    *stage.space.lock() = Some(machine.space.clone());
    mapped(&machine, 0, 10);
    machine.put(0, 3);
    let act: Act = Box::new(act);
    if out {
        *stage.during_write.lock() = Some(act);
    } else {
        *stage.during_read.lock() = Some(act);
    }
    let gone = machine.page_out(0, 1) == 1;
    let value = machine.get(0);
    assert!(
        stage.during_write.lock().is_none() && stage.during_read.lock().is_none(),
        "the thread did not act"
    );
    machine.space.dontneed(&mut machine.idle, pages(0, 1)).unwrap();
    assert_eq!(machine.get(10), value, "the page is not the file's");
    let value = machine.get(0);
    stage.ends();
    assert_eq!(swap.stats().references, 0);
    assert!(machine.all_free());
    (gone, value)
}

fn put(space: &AddressSpace, idle: &mut Idle, page: u64, value: u64) {
    space.write(idle, at(page), &value.to_le_bytes()).unwrap();
}

#[test]
fn a_files_page_that_is_used_during_its_swap_out_stays_and_keeps_stores() {
    assert_eq!(beside(true, |_, _| {}), (true, 3));
    assert_eq!(beside(true, |space, idle| put(space, idle, 0, 5)), (false, 5));
    assert_eq!(
        beside(true, |space, idle| assert_eq!(get(space, idle, 10), 3)),
        (false, 3),
        "read through the other mapping"
    );
    let there_and_away = |space: &AddressSpace, idle: &mut Idle| {
        put(space, idle, 0, 6);
        space.dontneed(idle, pages(0, 1)).unwrap();
    };
    assert_eq!(beside(true, there_and_away), (false, 6), "a page that was mapped meanwhile stays");
    let another_way = |space: &AddressSpace, idle: &mut Idle| {
        put(space, idle, 0, 7);
        assert_eq!(space.pageout(idle, pages(0, 1)), Ok(0), "the first page-out still has the page");
    };
    assert_eq!(beside(true, another_way), (false, 7));
    assert_eq!(beside(false, |_, _| {}), (true, 3));
    assert_eq!(beside(false, |space, idle| put(space, idle, 0, 5)), (true, 5));
    let written_and_out = |space: &AddressSpace, idle: &mut Idle| {
        put(space, idle, 0, 8);
        assert_eq!(space.pageout(idle, pages(0, 1)), Ok(1));
    };
    assert_eq!(beside(false, written_and_out), (true, 8));
}
