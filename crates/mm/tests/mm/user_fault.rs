//! Tests of faults that a user's thread serves: who is told, sleeps and is woken, and which page is found.

use crate::fixture::*;
use slat::{Access, Hva, Idle, PAGE_SIZE, Span};
use slat_mm::{
    AddressSpace, Backing, FaultKind, File, MmError, NoFault, Place, Prot, Serve, Stopped, UserFaults,
};
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

/// A page whose words all are `value`.
pub fn page_with(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(PAGE_SIZE as usize / 8)
}

/// Waits until this many threads sleep and this many events are unread.
pub fn until(faults: &UserFaults, waiting: (usize, usize)) {
    while faults.waiting() != waiting {
        thread::yield_now();
    }
}

/// Returns the bytes that another thread reads at `page`, or its error.
pub fn reader<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    space: &Arc<AddressSpace>,
    page: u64,
) -> ScopedJoinHandle<'scope, Result<u64, MmError>> {
    let space = space.clone();
    scope.spawn(move || {
        let mut bytes = [0; 8];
        space.read(&mut Idle::take().unwrap(), at(page), &mut bytes).map(|()| u64::from_le_bytes(bytes))
    })
}

fn file_mapping(machine: &Machine, file: &Arc<File>, first: u64) -> Span<Hva> {
    let backing = Backing::Shared { file: file.clone(), offset: 0 };
    machine.space.mmap(Place::Fixed(at(first)), 8 * PAGE_SIZE, Prot::ReadWrite, backing).unwrap()
}

#[test]
fn a_missing_page_is_copied_in_while_the_thread_sleeps() {
    let mut machine = Machine::new();
    let memory = machine.map(0, 8);
    let faults = UserFaults::new(&machine.space);
    faults.register(memory, Serve::Missing).unwrap();
    assert_eq!(faults.read(&mut machine.idle, Some(Duration::ZERO)), Err(NoFault::TimedOut));
    thread::scope(|scope| {
        let reader = reader(scope, &machine.space, 3);
        let fault = faults.read(&mut machine.idle, None).unwrap();
        assert_eq!((fault.page, fault.access, fault.kind), (at(3), Access::Read, FaultKind::Missing));
        assert_eq!(fault.thread, reader.thread().id());
        assert_eq!(machine.look(3), None);
        faults.copy(&mut machine.idle, fault.page, &page_with(33)).unwrap();
        assert_eq!(reader.join().unwrap(), Ok(33));
    });
    assert!(machine.look(3).unwrap().writable, "the page is writable at once, as the mapping allows");
    faults.zero_page(&mut machine.idle, pages(4, 1)).unwrap();
    assert_eq!([machine.get(3), machine.get(4)], [33, 0]);
    assert_eq!(machine.recorder.take().len(), 0, "a page that comes in sends no notification");
    drop(faults);
    assert!(machine.all_free());
}

#[test]
fn one_call_resolves_a_range_and_wakes_all_its_sleepers() {
    let mut machine = Machine::huge();
    let memory = machine.map(0, 1024);
    let faults = UserFaults::new(&machine.space);
    faults.register(memory, Serve::Missing).unwrap();
    thread::scope(|scope| {
        let readers = [500, 511, 512, 600, 600].map(|page| reader(scope, &machine.space, page));
        let outside = reader(scope, &machine.space, 601);
        until(&faults, (6, 6));
        let contents: Vec<u8> = (500..601).flat_map(page_with).collect();
        faults.copy(&mut machine.idle, at(500), &contents).unwrap();
        assert_eq!(readers.map(|reader| reader.join().unwrap()), [500, 511, 512, 600, 600].map(Ok));
        assert_eq!(faults.waiting(), (1, 1), "the event of a woken thread is withdrawn");
        faults.zero_page(&mut machine.idle, pages(601, 1)).unwrap();
        assert_eq!(outside.join().unwrap(), Ok(0));
    });
    assert_eq!(machine.look(500).unwrap().level, slat::Level::K4, "a page came that was not copied");
    drop(faults);
    assert!(machine.all_free());
}

#[test]
fn a_minor_fault_finds_the_page_in_the_file() {
    let mut machine = Machine::new();
    let file = File::zeroed(&machine.arena, 8 * PAGE_SIZE);
    let memory = file_mapping(&machine, &file, 0);
    file_mapping(&machine, &file, 100);
    let faults = UserFaults::new(&machine.space);
    faults.register(memory, Serve::Minor).unwrap();
    machine.put(102, 22);
    let absent = faults.continue_(&mut machine.idle, pages(2, 2));
    assert_eq!(absent, Err(Stopped { at: at(3), why: MmError::NotInFile(at(3)) }));
    assert_eq!(machine.get(2), 22, "the page before it is mapped");
    machine.put(103, 33);
    thread::scope(|scope| {
        let reader = reader(scope, &machine.space, 3);
        let fault = faults.read(&mut machine.idle, None).unwrap();
        assert_eq!((fault.page, fault.kind), (at(3), FaultKind::Minor));
        machine.put(103, 34);
        faults.continue_(&mut machine.idle, pages(3, 1)).unwrap();
        assert_eq!(reader.join().unwrap(), Ok(34));
    });
    assert_eq!(machine.get(4), 0, "this registration does not cover missing pages");
    let there = MmError::AlreadyThere(at(3));
    assert_eq!(faults.continue_(&mut machine.idle, pages(3, 1)), Err(Stopped { at: at(3), why: there }));
    let past = faults.continue_(&mut machine.idle, pages(8, 1)).unwrap_err();
    assert_eq!(past.why, MmError::NotServed(at(8)));
    drop((faults, file));
    assert!(machine.all_free());
}

#[test]
fn a_page_copied_into_a_shared_mapping_is_the_files() {
    let mut machine = Machine::new();
    let file = File::zeroed(&machine.arena, 6 * PAGE_SIZE);
    let memory = file_mapping(&machine, &file, 0);
    file_mapping(&machine, &file, 100);
    let faults = UserFaults::new(&machine.space);
    faults.register(memory, Serve::Both).unwrap();
    faults.copy(&mut machine.idle, at(1), &page_with(11)).unwrap();
    assert_eq!(machine.get(101), 11);
    machine.put(102, 22);
    let there = faults.copy(&mut machine.idle, at(2), &page_with(0)).unwrap_err();
    assert_eq!(there.why, MmError::AlreadyThere(at(2)), "the page is in the file, though not mapped here");
    let past = faults.zero_page(&mut machine.idle, pages(6, 1)).unwrap_err();
    assert_eq!(past.why, MmError::PastEnd(at(6)));
    let mut byte = [0];
    assert_eq!(machine.space.read(&mut machine.idle, at(6), &mut byte), Err(MmError::PastEnd(at(6))));
    let kinds = thread::scope(|scope| {
        let readers = [2, 3].map(|page| reader(scope, &machine.space, page));
        until(&faults, (2, 2));
        let mut kinds = [0; 2].map(|_| faults.read(&mut machine.idle, None).unwrap());
        kinds.sort_by_key(|fault| fault.page);
        faults.continue_(&mut machine.idle, pages(2, 1)).unwrap();
        faults.zero_page(&mut machine.idle, pages(3, 1)).unwrap();
        assert_eq!(readers.map(|reader| reader.join().unwrap()), [Ok(22), Ok(0)]);
        kinds.map(|fault| fault.kind)
    });
    assert_eq!(kinds, [FaultKind::Minor, FaultKind::Missing]);
    drop((faults, file));
    assert!(machine.all_free());
}

#[test]
fn a_file_holds_its_initial_contents() {
    let mut machine = Machine::new();
    let file = File::with_contents(&machine.arena, page_with(5));
    let backing = Backing::Shared { file, offset: 0 };
    let memory = machine.space.mmap(Place::Fixed(at(0)), PAGE_SIZE, Prot::Read, backing).unwrap();
    let faults = UserFaults::new(&machine.space);
    faults.register(memory, Serve::Minor).unwrap();
    let there = faults.zero_page(&mut machine.idle, memory).unwrap_err();
    assert_eq!(there.why, MmError::AlreadyThere(at(0)));
    faults.continue_(&mut machine.idle, memory).unwrap();
    assert_eq!(machine.get(0), 5);
    assert!(!machine.look(0).unwrap().writable, "the page allows more than the mapping");
}

#[test]
fn a_page_that_is_there_stays_and_ends_the_range() {
    let mut machine = Machine::new();
    let memory = machine.map(0, 8);
    machine.put(2, 2);
    let faults = UserFaults::new(&machine.space);
    faults.register(memory, Serve::Missing).unwrap();
    let contents: Vec<u8> = (10..14).flat_map(page_with).collect();
    let stopped = faults.copy(&mut machine.idle, at(0), &contents);
    assert_eq!(stopped, Err(Stopped { at: at(2), why: MmError::AlreadyThere(at(2)) }));
    assert_eq!([0, 1, 2].map(|page| machine.get(page)), [10, 11, 2]);
    assert_eq!(machine.look(3), None);
    for (first, len, why) in [
        (3, 5, MmError::BadRange(Span::sized(at(3), 5))),
        (3, 0, MmError::BadRange(Span::sized(at(3), 0))),
        (8, 4096, MmError::NotServed(at(8))),
    ] {
        let stopped = faults.copy(&mut machine.idle, at(first), &vec![0; len]).unwrap_err();
        assert_eq!(stopped, Stopped { at: at(first), why });
    }
    drop(faults);
    assert!(machine.all_free());
}

/// A page that came another way wakes no thread. This is the negative control of all tests that wait for a
/// wake. The handler learns that the page is there, and its wake then wakes the thread.
#[test]
fn a_page_that_came_another_way_leaves_its_sleeper_to_the_handler() {
    let mut machine = Machine::new();
    let file = File::zeroed(&machine.arena, 8 * PAGE_SIZE);
    let memory = file_mapping(&machine, &file, 0);
    file_mapping(&machine, &file, 100);
    let faults = UserFaults::new(&machine.space);
    faults.register(memory, Serve::Missing).unwrap();
    thread::scope(|scope| {
        let reader = reader(scope, &machine.space, 1);
        until(&faults, (1, 1));
        machine.put(101, 11);
        assert_eq!(faults.waiting(), (1, 1));
        let there = faults.zero_page(&mut machine.idle, pages(1, 1)).unwrap_err();
        assert_eq!(there.why, MmError::AlreadyThere(at(1)));
        assert_eq!(reader.join().unwrap(), Ok(11));
    });
}

#[test]
fn a_wake_without_a_page_posts_the_fault_again() {
    let mut machine = Machine::new();
    let memory = machine.map(0, 8);
    let faults = UserFaults::new(&machine.space);
    faults.register(memory, Serve::Missing).unwrap();
    thread::scope(|scope| {
        let reader = reader(scope, &machine.space, 5);
        for _ in 0..10 {
            let fault = faults.read(&mut machine.idle, None).unwrap();
            assert_eq!((fault.page, faults.waiting()), (at(5), (1, 0)));
            faults.wake(Span::sized(at(4), PAGE_SIZE));
            assert_eq!(faults.waiting(), (1, 0), "the thread sleeps at another page");
            faults.wake(Span::sized(at(5) + 7, 1));
        }
        until(&faults, (1, 1));
        faults.copy(&mut machine.idle, at(5), &page_with(55)).unwrap();
        assert_eq!(reader.join().unwrap(), Ok(55));
    });
}

#[test]
fn a_sleeper_is_served_as_usual_when_the_handler_goes() {
    let mut machine = Machine::new();
    let memory = machine.map(0, 8);
    machine.map(8, 8);
    let faults = UserFaults::new(&machine.space);
    faults.register(memory, Serve::Missing).unwrap();
    thread::scope(|scope| {
        let readers = [1, 6, 7].map(|page| reader(scope, &machine.space, page));
        until(&faults, (3, 3));
        faults.unregister(&mut machine.idle, pages(4, 3)).unwrap();
        until(&faults, (2, 2));
        let [first, middle, last] = readers;
        assert_eq!(middle.join().unwrap(), Ok(0));
        let other = scope.spawn(|| {
            let mut idle = Idle::take().unwrap();
            let read = [(); 3].map(|()| faults.read(&mut idle, None).map(|fault| fault.page));
            faults.unregister(&mut idle, pages(0, 16)).unwrap();
            read
        });
        until(&faults, (2, 0));
        faults.close(&mut machine.idle);
        let mut read = other.join().unwrap();
        read[..2].sort_by_key(|page| page.unwrap());
        assert_eq!(read, [Ok(at(1)), Ok(at(7)), Err(NoFault::Closed)]);
        assert_eq!([first, last].map(|reader| reader.join().unwrap()), [Ok(0), Ok(0)]);
    });
    assert_eq!(machine.get(2), 0, "no handler is asked now");
    drop(faults);

    let faults = UserFaults::new(&machine.space);
    faults.register(pages(8, 8), Serve::Missing).unwrap();
    thread::scope(|scope| {
        let reader = reader(scope, &machine.space, 9);
        until(&faults, (1, 1));
        drop(faults);
        assert_eq!(reader.join().unwrap(), Ok(0));
    });
    assert!(machine.all_free());
}

#[test]
fn a_mapping_that_goes_takes_its_registration_and_its_sleepers_along() {
    let mut machine = Machine::new();
    let memory = machine.map(0, 16);
    let faults = UserFaults::new(&machine.space);
    faults.register(memory, Serve::Missing).unwrap();
    let child = machine.space.fork(&mut machine.idle).unwrap();
    assert_eq!(get(&child, &mut machine.idle, 1), 0, "a child is not registered");
    machine.space.mprotect(&mut machine.idle, memory, Prot::Read).unwrap();
    thread::scope(|scope| {
        let readers = [1, 9, 15].map(|page| reader(scope, &machine.space, page));
        until(&faults, (3, 3));
        machine.space.munmap(&mut machine.idle, pages(0, 4)).unwrap();
        machine.space.mremap(&mut machine.idle, pages(8, 4), 4 * PAGE_SIZE, Place::Fixed(at(32))).unwrap();
        let [unmapped, moved, kept] = readers;
        assert_eq!(unmapped.join().unwrap(), Err(MmError::NotMapped(at(1))));
        assert_eq!(moved.join().unwrap(), Err(MmError::NotMapped(at(9))));
        for page in [1, 9, 33] {
            let gone = faults.copy(&mut machine.idle, at(page), &page_with(0)).unwrap_err();
            assert_eq!(gone.why, MmError::NotServed(at(page)));
        }
        assert_eq!(machine.get(33), 0, "the moved page is served as usual");
        machine.space.mremap(&mut machine.idle, pages(12, 4), 8 * PAGE_SIZE, Place::Anywhere).unwrap();
        assert_eq!(faults.waiting(), (1, 1), "a mapping that grows in place stays registered");
        faults.zero_page(&mut machine.idle, pages(15, 2)).unwrap();
        assert_eq!(kept.join().unwrap(), Ok(0));
    });
    drop((faults, child));
    assert!(machine.all_free());
}

#[test]
fn invalid_registrations_are_refused() {
    let machine = Machine::new();
    let memory = machine.map(0, 8);
    let file = File::zeroed(&machine.arena, 8 * PAGE_SIZE);
    let backing = Backing::Private { file, offset: 0 };
    let private = machine.space.mmap(Place::Fixed(at(8)), 4096, Prot::Read, backing).unwrap();
    let (faults, other) = (UserFaults::new(&machine.space), UserFaults::new(&machine.space));
    for (span, what, why) in [
        (memory, Serve::Minor, MmError::Unservable(memory)),
        (memory, Serve::Both, MmError::Unservable(memory)),
        (pages(0, 9), Serve::Missing, MmError::Unservable(private)),
        (pages(0, 10), Serve::Missing, MmError::NotMapped(at(9))),
        (Span::sized(at(0), 5), Serve::Missing, MmError::BadRange(Span::sized(at(0), 5))),
    ] {
        assert_eq!(faults.register(span, what), Err(why));
    }
    faults.register(pages(2, 2), Serve::Missing).unwrap();
    faults.register(pages(3, 2), Serve::Missing).unwrap();
    assert_eq!(other.register(memory, Serve::Missing), Err(MmError::ServedByOther(pages(2, 1))));
    drop(faults);
    assert_eq!(other.register(memory, Serve::Missing), Ok(()));
}
