//! The kernel's answer to each request.

use super::abi::{self, Message};
use super::*;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous};
use std::ptr::null_mut;
use std::time::Duration;

const SIZE: usize = 8 * PAGE;
const BYTES: u64 = PAGE as u64;

/// Makes a userfaultfd, if this kernel offers one to this user.
fn uffd(features: Features) -> Option<Uffd> {
    Uffd::new(features).inspect_err(|error| println!("skipped: no userfaultfd: {error}")).ok()
}

fn anonymous() -> u64 {
    // SAFETY: a new mapping, where the kernel finds room.
    let start =
        unsafe { mmap_anonymous(null_mut(), SIZE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    start.unwrap() as u64
}

fn byte(address: u64) -> u8 {
    // SAFETY: the tests map what they look at, and it stays.
    unsafe { (address as *const u8).read_volatile() }
}

fn event(uffd: &Uffd) -> Message {
    poll(&mut [PollFd::new(uffd, PollFlags::IN)], None).unwrap();
    let mut message = [Message::default()];
    assert_eq!(uffd.read(&mut message).unwrap(), 1);
    message[0]
}

#[test]
fn a_page_is_filled_once() {
    let Some(uffd) = uffd(Features::REMOVE) else { return };
    let start = anonymous();
    assert!(matches!(uffd.copy(start, &[1; PAGE]), (0, Some(Refusal::Unmapped))), "it is not registered");
    uffd.register(start, SIZE as u64, false).unwrap();
    assert!(matches!(uffd.copy(start + BYTES, &[1; 2 * PAGE]), (got, None) if got == 2 * PAGE));
    assert!(matches!(uffd.copy(start + BYTES, &[2; PAGE]), (0, Some(Refusal::Exists))));
    // Up to the present page, which the next request meets.
    assert!(matches!(uffd.copy(start, &[3; 3 * PAGE]), (PAGE, None)));
    assert!(matches!(uffd.zero(start + 3 * BYTES, BYTES), (PAGE, None)));
    assert_eq!([0, 1, 2, 3].map(|page| byte(start + page * BYTES)), [3, 1, 1, 0]);
}

#[test]
fn no_page_is_filled_while_a_removal_event_is_unread() {
    let Some(uffd) = uffd(Features::REMOVE) else { return };
    let start = anonymous();
    uffd.register(start, SIZE as u64, false).unwrap();
    uffd.copy(start, &vec![1; SIZE]);
    // SAFETY: nothing else uses the page.
    let remove = move || unsafe { madvise((start + BYTES) as *mut _, PAGE, Advice::LinuxDontNeed) }.unwrap();
    let removing = std::thread::spawn(remove);
    poll(&mut [PollFd::new(&uffd, PollFlags::IN)], None).unwrap();
    assert!(matches!(uffd.copy(start + 2 * BYTES, &[2; PAGE]), (0, Some(Refusal::Again))));
    let message = event(&uffd);
    assert_eq!(
        (message.event, message.removed()),
        (abi::EVENT_REMOVE, Some(start + BYTES..start + 2 * BYTES))
    );
    removing.join().unwrap();
    assert!(matches!(uffd.zero(start + BYTES, BYTES), (PAGE, None)));
    assert_eq!(byte(start + BYTES), 0);
}

#[test]
fn a_page_of_shared_memory_is_mapped_when_it_is_there() {
    let Some(uffd) = uffd(Features::REMOVE.and(Features::SHARED).and(Features::MINOR)) else { return };
    let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, SIZE as u64).unwrap();
    rustix::io::pwrite(&file, &[5; PAGE], 0).unwrap();
    // SAFETY: a new mapping, where the kernel finds room.
    let start =
        unsafe { mmap(null_mut(), SIZE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0) };
    let start = start.unwrap() as u64;
    uffd.register(start, SIZE as u64, true).unwrap();
    let reading = std::thread::spawn(move || byte(start));
    let message = event(&uffd);
    assert_eq!(
        (message.event, message.words[0] & abi::FAULT_MINOR),
        (abi::EVENT_PAGEFAULT, abi::FAULT_MINOR)
    );
    assert!(matches!(uffd.resume(start, BYTES), (PAGE, None)));
    assert_eq!(reading.join().unwrap(), 5);
    assert!(matches!(uffd.resume(start + BYTES, BYTES), (0, Some(Refusal::Other(_)))), "it is not there");
}

#[test]
fn a_page_that_is_lost_is_poisoned_once() {
    let Some(uffd) = uffd(Features::REMOVE.and(Features::POISON)) else { return };
    let start = anonymous();
    uffd.register(start, SIZE as u64, false).unwrap();
    assert!(matches!(uffd.poison(start, BYTES), (PAGE, None)));
    assert!(matches!(uffd.poison(start, BYTES), (0, Some(Refusal::Exists))));
}

#[test]
fn a_write_to_a_protected_page_is_reported_although_only_missing_pages_were_requested() {
    let Some(uffd) = uffd(Features::REMOVE) else { return };
    assert!(
        uffd.features().unwrap().has(Features::REMOVE) && !uffd.features().unwrap().has(Features::POISON)
    );
    let start = anonymous();
    uffd.register(start, SIZE as u64, false).unwrap();
    assert!(!uffd.track(start, SIZE as u64).unwrap(), "it is private");
    assert!(matches!(uffd.copy_as(start, &[1; PAGE], true), (PAGE, None)));
    assert!(matches!(uffd.copy(start + BYTES, &[1; PAGE]), (PAGE, None)));
    uffd.protect(start, SIZE as u64).unwrap();
    for page in [0, 1] {
        let address = start + page * BYTES;
        // SAFETY: nothing else uses the page.
        let writing = std::thread::spawn(move || unsafe { (address as *mut u8).write_volatile(2) });
        let message = event(&uffd);
        let flags = abi::FAULT_WP | abi::FAULT_WRITE;
        assert_eq!((message.words[0] & flags, message.words[1] / BYTES), (flags, address / BYTES));
        assert_eq!(byte(address), 1);
        uffd.unprotect(address, BYTES).unwrap();
        writing.join().unwrap();
        assert_eq!(byte(address), 2);
    }
    assert!(!uffd.is_changing());
}

#[test]
fn another_descriptor_is_no_userfaultfd() {
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(Uffd::from_fd(file.into()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    let Some(uffd) = uffd(Features::REMOVE) else { return };
    assert!(Uffd::from_fd(uffd.as_fd().try_clone_to_owned().unwrap()).is_ok());
}

/// Clears `O_NONBLOCK`, as the guest's process may at any time.
fn let_it_wait(uffd: &Uffd) {
    let flags = fcntl_getfl(uffd).unwrap();
    fcntl_setfl(uffd, flags - OFlags::NONBLOCK).unwrap();
}

type Read = fn(&Uffd, &mut [Message]) -> io::Result<usize>;

/// Reads in another thread while no event is there and `O_NONBLOCK` is clear. Returns the number of events; `None`: the
/// read waits.
fn read_nothing(read: Read, bound: Duration) -> Option<usize> {
    let uffd = uffd(Features::REMOVE)?;
    let_it_wait(&uffd);
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(read(&uffd, &mut [Message::default(); 4]).unwrap()));
    receive.recv_timeout(bound).ok()
}

#[test]
fn a_read_does_not_wait_when_the_guest_clears_the_flag() {
    if uffd(Features::REMOVE).is_none() {
        return;
    }
    for read in [Uffd::read, Uffd::read_interrupted] as [Read; 2] {
        assert_eq!(read_nothing(read, Duration::from_secs(20)), Some(0));
    }
    // A plain read does.
    let plain: Read = |uffd, messages| {
        // SAFETY: the kernel writes at most so many bytes there, and any bytes are messages.
        let got =
            unsafe { libc::read(uffd.0.as_raw_fd(), messages.as_mut_ptr().cast(), size_of_val(messages)) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    };
    assert_eq!(read_nothing(plain, Duration::from_millis(200)), None);
}

#[test]
fn both_ways_of_reading_return_the_events() {
    for read in [Uffd::read, Uffd::read_interrupted] as [Read; 2] {
        let Some(uffd) = uffd(Features::REMOVE) else { return };
        let start = anonymous();
        uffd.register(start, SIZE as u64, false).unwrap();
        let touching = std::thread::spawn(move || byte(start));
        poll(&mut [PollFd::new(&uffd, PollFlags::IN)], None).unwrap();
        let_it_wait(&uffd);
        let mut messages = [Message::default(); 4];
        assert_eq!(read(&uffd, &mut messages).unwrap(), 1);
        assert_eq!((messages[0].event, messages[0].words[1] / BYTES * BYTES), (abi::EVENT_PAGEFAULT, start));
        // Nothing more, and no wait.
        assert_eq!(read(&uffd, &mut messages).unwrap(), 0);
        assert!(matches!(uffd.copy(start, &[7; PAGE]), (PAGE, None)));
        assert_eq!(touching.join().unwrap(), 7);
    }
}
