//! The pager refuses the messages of a hostile or faulty VMM with an error, and still serves others.

use crate::daemon::{Daemon, IMAGE, MIB, library, with_template};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use slat_pager::twin::Memory;
use slat_pager::{
    Cache, Features, Firecracker, Guest, Journal, Layout, Options, Parts, Region, Uffd, Wire, WireError,
};
use std::io::{IoSlice, Write};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

const WAIT: Duration = Duration::from_millis(200);
const FINE: &str = r#"[{"base_host_virt_addr":1048576,"size":4096,"offset":0,"new":{"a":[1]}}]"#;

fn send(to: &UnixStream, text: &str, fds: &[BorrowedFd]) {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(to, &[IoSlice::new(text.as_bytes())], &mut control, SendFlags::NOSIGNAL).unwrap();
}

fn error(text: &str, fds: &[BorrowedFd]) -> WireError {
    let (vmm, pager) = UnixStream::pair().unwrap();
    send(&vmm, text, fds);
    Firecracker.handshake(&pager, WAIT).unwrap_err()
}

#[test]
fn a_handshake_without_a_userfaultfd_is_refused() {
    let null = std::fs::File::open("/dev/null").unwrap();
    assert!(matches!(error(FINE, &[]), WireError::Descriptors(0)));
    assert!(matches!(error(FINE, &[null.as_fd(); 4]), WireError::Descriptors(4)));
    assert!(matches!(error(FINE, &[null.as_fd()]), WireError::NoUffd(_)));
}

#[test]
fn a_handshake_that_is_no_handshake_is_refused() {
    assert!(matches!(error("{}", &[]), WireError::Syntax(_)));
    assert!(matches!(error(&FINE[1..], &[]), WireError::Syntax(_)));
    assert!(matches!(error(&FINE[..20], &[]), WireError::Late(WAIT, 20)));
    let (vmm, pager) = UnixStream::pair().unwrap();
    send(&vmm, "[", &[]);
    drop(vmm);
    assert!(matches!(Firecracker.handshake(&pager, WAIT), Err(WireError::Closed(1))));
    // Endless spaces.
    let (mut vmm, pager) = UnixStream::pair().unwrap();
    let writing = std::thread::spawn(move || _ = vmm.write_all(&vec![b' '; 400 << 10]));
    let result = Firecracker.handshake(&pager, Duration::from_secs(10));
    assert!(matches!(result, Err(WireError::Long)), "{result:?}");
    drop(pager);
    writing.join().unwrap();
}

#[test]
fn a_handshake_in_pieces_is_read_and_stays_in_the_socket() {
    let Ok(uffd) = Uffd::new(Features::REMOVE) else { return println!("skipped: no userfaultfd") };
    let (vmm, pager) = UnixStream::pair().unwrap();
    let (head, tail) = FINE.split_at(30);
    send(&vmm, head, &[uffd.as_fd()]);
    let later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        send(&vmm, tail, &[]);
        vmm
    });
    for _ in 0..3 {
        let handshake = Firecracker.handshake(&pager, Duration::from_secs(10)).unwrap();
        assert_eq!((handshake.regions.len(), handshake.regions[0].base), (1, 1 << 20));
    }
    drop(later.join().unwrap());
}

#[test]
fn a_refused_vmm_is_logged_and_others_are_served() {
    let Some(daemon) = Daemon::start("hostile", "") else { return };
    let mode = std::fs::metadata(daemon.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "only this user may connect");
    let refused = |text: &str, what: &str| {
        let uffd = Uffd::new(Features::REMOVE).unwrap();
        let mut vmm = UnixStream::connect(daemon.socket()).unwrap();
        send(&vmm, text, &[uffd.as_fd()]);
        let line = daemon.find(|line| line.contains("refused").then(|| line.to_owned()));
        assert!(line.contains(what), "{line}");
        // Worker and keeper close the connection.
        let closed = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            vmm.write_all(b" ").is_err()
        });
        assert!(closed);
    };
    let with = |base: u64, size: u64, offset: u64| {
        format!(r#"[{{"base_host_virt_addr":{base},"size":{size},"offset":{offset},"page_size":4096}}]"#)
    };
    refused("[1]", "not understood");
    refused("[]", "0 regions");
    refused(&with(4096, 4096, (MIB as u64) << 20), "beyond the image");
    refused(&with(4096, u64::MAX - 4095, 4096), "beyond the address space");
    refused(&with(4097, 4096, 0), "whole pages");
    refused(&with(4096, 4096, 0).replace("4096}", "2097152}"), "whole pages of 2097152 bytes");
    refused(&with(4096, 4096, 0).replace("4096}", "1073741824}"), "1073741824 bytes are not served");
    assert!(daemon.twin("--millis 100").report().is_right());
}

/// The flag `O_NONBLOCK` belongs to the open file, which the guest's process shares with the pager.
#[test]
fn a_guest_whose_process_clears_o_nonblock_is_served_and_its_service_ends() {
    let Ok(uffd) = Uffd::new(Features::REMOVE) else { return println!("skipped: no userfaultfd") };
    let folder = with_template("hostile-nonblock");
    let template = library(&folder).open("twin").unwrap();
    let memory: &Memory = Box::leak(Box::new(Memory::new(IMAGE, false).unwrap()));
    let regions = memory.regions().map(|(base, size, offset)| Region { base, size, offset });
    for region in &regions {
        uffd.register(region.base, region.size, false).unwrap();
    }
    let shared = uffd.as_fd().try_clone_to_owned().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let clearing = std::thread::spawn({
        let is_over = is_over.clone();
        move || {
            while !is_over.load(Ordering::Relaxed) {
                fcntl_setfl(&shared, fcntl_getfl(&shared).unwrap() - OFlags::NONBLOCK).unwrap();
            }
        }
    });
    let layout = Layout::new(regions.to_vec(), template.size()).unwrap();
    let (journal, cache) = (Journal::new(&layout).unwrap(), Arc::new(Cache::new(1 << 20)));
    let parts = Parts { uffd, layout, template, cache, journal, life: None };
    // After a failure it is not dropped, which would wait for its threads.
    let guest = ManuallyDrop::new(Guest::serve(parts, Options::default()).unwrap());
    let (send, receive) = channel();
    let bound = Duration::from_secs(20);
    for page in [0, 100, 200] {
        let send = send.clone();
        // SAFETY: only the pager writes to the memory.
        std::thread::spawn(move || send.send(unsafe { memory.read(page) }[0]));
        assert_eq!(receive.recv_timeout(bound), Ok(IMAGE.word(page, 0, 0)));
    }
    std::thread::spawn(move || send.send(ManuallyDrop::into_inner(guest).stop().filled));
    assert!(receive.recv_timeout(bound).is_ok_and(|filled| filled >= 3), "a thread waits in a read");
    is_over.store(true, Ordering::Relaxed);
    clearing.join().unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_process_that_connects_again_and_again_leaves_room_for_others() {
    let Some(daemon) = Daemon::start("hog", "") else { return };
    let uffd = Uffd::new(Features::REMOVE).unwrap();
    let connect = |_| {
        let vmm = UnixStream::connect(daemon.socket()).unwrap();
        // It may be closed already.
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        let fds = [uffd.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        _ = sendmsg(&vmm, &[IoSlice::new(FINE.as_bytes())], &mut control, SendFlags::NOSIGNAL);
        vmm
    };
    let connections: Vec<_> = (0..100).map(connect).collect();
    let said = daemon.find(|line| line.contains("closes").then(|| line.to_owned()));
    assert!(said.contains(&format!("\"pid\":{}", std::process::id())), "{said}");
    assert!(daemon.twin("--millis 100").report().is_right());
    let is_closed = |mut vmm: &UnixStream| vmm.write_all(b" ").is_err();
    let closed = connections.iter().filter(|vmm| is_closed(vmm)).count();
    assert!((60..100).contains(&closed), "{closed} of 100 are closed");
}
