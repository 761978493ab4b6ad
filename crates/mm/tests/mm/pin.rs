//! Tests of pins: the page that a device uses stays in place, whatever its owner does.

use crate::fixture::*;
use slat::{Access, Level, PAGE_SIZE, Pfn};
use slat_mm::{MmError, Prot};

/// The number that the device sees in a frame.
fn device_reads(machine: &Machine, pfn: Pfn) -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: the frame belongs to the arena and is pinned, and the read takes eight bytes.
    unsafe { machine.arena.frame(pfn).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    u64::from_le_bytes(bytes)
}

#[test]
fn pages_are_brought_in_writable_and_stay_where_they_are() {
    for huge in [false, true] {
        let mut machine = if huge { Machine::huge() } else { Machine::new() };
        machine.map(0, 512);
        machine.put(1, 1);
        let device = machine.space.pin(&mut machine.idle, pages(0, 3)).unwrap();
        let frames: Vec<Pfn> = device.frames().to_vec();
        let now = [0, 1, 2].map(|page| machine.look(page).unwrap().pfn);
        assert_eq!(frames, now);
        assert_eq!(device_reads(&machine, frames[1]), 1);
        assert_eq!(machine.space.migrate(&mut machine.idle, pages(0, 3)), Ok(0));
        machine.recorder.take();
        machine.put(1, 11);
        assert_eq!(device_reads(&machine, frames[1]), 11, "one page for the guest and the device");
        drop(device);
        assert!(
            machine.space.migrate(&mut machine.idle, pages(0, 3)).unwrap() > 0,
            "the pages are still held"
        );
        assert_eq!(machine.get(1), 11);
        assert!(machine.all_free());
    }
}

#[test]
fn munmap_leaves_the_frame_to_the_device() {
    let mut machine = Machine::new();
    machine.map(0, 2);
    machine.number(0, 2);
    let (first, second) = (
        machine.space.pin(&mut machine.idle, pages(1, 1)).unwrap(),
        machine.space.pin(&mut machine.idle, pages(1, 1)).unwrap(),
    );
    let pfn = first.frames()[0];
    machine.space.munmap(&mut machine.idle, pages(0, 2)).unwrap();
    assert_eq!((machine.look(1), machine.arena.references(pfn)), (None, 2));
    drop(first);
    assert_eq!(device_reads(&machine, pfn), 1, "the other pin still holds the page");
    drop(second);
    assert_eq!(machine.arena.references(pfn), 0);
    assert!(machine.all_free());
}

#[test]
fn a_fork_copies_what_a_device_uses() {
    for huge in [false, true] {
        let mut machine = if huge { Machine::huge() } else { Machine::new() };
        machine.map(0, 512);
        machine.number(0, 2);
        let device = machine.space.pin(&mut machine.idle, pages(1, 1)).unwrap();
        let pfn = device.frames()[0];
        let child = machine.space.fork(&mut machine.idle).unwrap();
        machine.put(1, 100);
        assert_eq!(device_reads(&machine, pfn), 100, "the parent's write reached the device's page");
        assert_eq!(get(&child, &mut machine.idle, 1), 1);
        assert_eq!(get(&child, &mut machine.idle, 0), 0);
        drop((child, device));
        assert!(machine.all_free());
    }
}

#[test]
fn a_pin_is_no_share_when_a_write_comes_back() {
    let mut machine = Machine::new();
    machine.map(0, 1);
    let device = machine.space.pin(&mut machine.idle, pages(0, 1)).unwrap();
    for prot in [Prot::Read, Prot::ReadWrite] {
        machine.space.mprotect(&mut machine.idle, pages(0, 1), prot).unwrap();
    }
    machine.put(0, 5);
    assert_eq!(device_reads(&machine, device.frames()[0]), 5);
    assert_eq!((machine.space.stats().cow_breaks, machine.space.stats().reuses), (0, 1));
}

#[test]
fn an_unwritable_page_is_not_pinned() {
    let mut machine = Machine::new();
    machine.map(0, 3);
    machine.space.mprotect(&mut machine.idle, pages(2, 1), Prot::Read).unwrap();
    let refused = machine.space.pin(&mut machine.idle, pages(0, 3)).map(drop);
    assert_eq!(refused, Err(MmError::Denied(at(2), slat::Access::Write)));
    assert_eq!(machine.arena.references(machine.look(0).unwrap().pfn), 1, "no page is pinned");
    let refused = machine.space.pin(&mut machine.idle, pages(2, 2)).map(drop);
    assert!(refused.is_err());
    assert!(machine.space.pin(&mut machine.idle, slat::Span::sized(at(0) + 1, PAGE_SIZE)).is_err());
    assert_eq!(machine.look(0).unwrap().level, Level::K4);
    assert!(machine.all_free());
}

#[test]
fn a_page_that_is_pinned_for_reading_stays_where_it_is_and_may_be_read_only() {
    let mut machine = Machine::new();
    machine.map(0, 4);
    machine.number(0, 4);
    machine.space.mprotect(&mut machine.idle, pages(0, 4), Prot::Read).unwrap();
    assert!(machine.space.pin(&mut machine.idle, pages(1, 1)).is_err(), "a pin for writing");
    let guard = machine.space.pin_page(&mut machine.idle, pages(1, 1).start + 8, Access::Read).unwrap();
    let device = machine.space.pin_for(&mut machine.idle, pages(2, 2), Access::Read).unwrap();
    assert_eq!([device_reads(&machine, guard.frame()), device_reads(&machine, device.frames()[1])], [1, 3]);
    assert_eq!(guard.as_ptr(), machine.arena.frame(guard.frame()).wrapping_add(8));
    assert_eq!(machine.space.migrate(&mut machine.idle, pages(1, 3)), Ok(0));
    drop((guard, device));
    assert_eq!(machine.space.migrate(&mut machine.idle, pages(1, 3)), Ok(3), "no pin holds them now");
    assert!(machine.all_free());
}

#[test]
fn a_share_that_is_pinned_for_reading_stays_a_share_and_keeps_what_was_there() {
    let mut machine = Machine::new();
    machine.map(0, 1);
    machine.put(0, 7);
    let child = machine.space.fork(&mut machine.idle).unwrap();
    let before = machine.look(0).unwrap().pfn;
    let guard = machine.space.pin_page(&mut machine.idle, pages(0, 1).start, Access::Read).unwrap();
    assert_eq!(guard.frame(), before, "the page was not copied");
    machine.put(0, 8);
    assert_ne!(machine.look(0).unwrap().pfn, before);
    assert_eq!((device_reads(&machine, guard.frame()), machine.get(0)), (7, 8));
    drop((child, guard));
    assert!(machine.all_free());
}
