//! A process that behaves as Cloud Hypervisor: it sends a machine by a local migration, waits for one, maps its memory,
//! and asks for pages on a connection of its own. It implements the messages independently, so that it does not share a
//! mistake of the pager.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use slat_pager::twin::Image;
use slat_pager::{Features, PAGE, Refusal, Uffd};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

pub const START: u16 = 1;
pub const CONFIG: u16 = 2;
pub const STATE: u16 = 3;
pub const COMPLETE: u16 = 5;
pub const MEMORY_FD: u16 = 7;
pub const COMPLETE_PAUSED: u16 = 8;
pub const PAGE_FAULT: u16 = 9;
pub const OK: (u16, u64) = (1, 0);
pub const ERROR: (u16, u64) = (2, 0);
/// Time limit of a message.
const BOUND: Duration = Duration::from_secs(30);

/// Number, guest-physical address, pages, file, offset in it; in the order of the configuration, which is not that of
/// addresses.
pub const SLOTS: [(u32, u64, usize, usize, u64); 3] =
    [(2, 8 << 30, 70, 0, 0), (4, 0, 96, 1, 0), (9, 4 << 30, 160, 1, 96 * PAGE as u64)];
/// Contents of all pages, one memslot after the other.
pub const IMAGE: Image = Image { seed: 7, pages: 70 + 96 + 160 };
pub const VM_STATE: &[u8] = b"{\"vcpus\":[1,2,3]}";

pub fn config(virtio_mem: bool) -> String {
    let slot = |(slot, gpa, pages, _, offset): (u32, u64, usize, usize, u64)| {
        format!(
            r#"{{"slot":{slot},"gpa":{gpa},"size":{},"zone_id":"mem0","virtio_mem":{virtio_mem},"file_offset":{offset}}}"#,
            pages * PAGE
        )
    };
    let slots = SLOTS.map(slot).join(",");
    format!(
        r#"{{"vm_config":{{"cpus":{{"boot_vcpus":2}}}},"memory_manager_data":{{"guest_ram_mappings":[{slots}]}}}}"#
    )
}

/// Returns the memslot of a page, and its number there.
pub fn place(mut page: usize) -> (usize, usize) {
    let mut slot = 0;
    while page >= SLOTS[slot].2 {
        page -= SLOTS[slot].2;
        slot += 1;
    }
    (slot, page)
}

pub fn gpa(page: usize) -> u64 {
    let (slot, page) = place(page);
    SLOTS[slot].1 + (page * PAGE) as u64
}

/// Returns the bytes of a page of the image.
pub fn content(page: usize) -> Vec<u8> {
    (0..PAGE / 8).flat_map(|word| IMAGE.word(page, 0, word).to_ne_bytes()).collect()
}

/// Makes the memory files of a machine to send; two of its memslots share one.
pub fn files() -> [File; 2] {
    let files: [File; 2] = [0, 1].map(|_| memfd_create("twin", MemfdFlags::CLOEXEC).unwrap().into());
    for page in 0..IMAGE.pages {
        let (slot, at) = place(page);
        let (_, _, _, file, offset) = SLOTS[slot];
        files[file].write_all_at(&content(page), offset + (at * PAGE) as u64).unwrap();
    }
    files
}

/// Accepts the next connection.
pub fn accept(listener: &UnixListener) -> Talk {
    let bound = Timespec { tv_sec: BOUND.as_secs() as i64, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&bound)).unwrap();
    assert_eq!(ready, 1, "the pager does not connect");
    Talk::new(listener.accept().unwrap().0)
}

/// One end of a connection.
pub struct Talk(pub UnixStream);

impl Talk {
    pub fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(BOUND)).unwrap();
        Self(stream)
    }

    pub fn connect(socket: &Path) -> Self {
        let connect =
            || UnixStream::connect(socket).inspect_err(|_| std::thread::sleep(Duration::from_millis(5)));
        Self::new((0..6000).find_map(|_| connect().ok()).expect("nothing listens"))
    }

    pub fn request(&mut self, command: u16, length: u64, payload: &[u8]) {
        let mut head = [0; 16];
        head[..2].copy_from_slice(&command.to_le_bytes());
        head[8..].copy_from_slice(&length.to_le_bytes());
        // If the pager refuses, the connection may be closed already.
        _ = self.0.write_all(&head).and_then(|()| self.0.write_all(payload));
    }

    /// Sends a request with this payload, and returns the answer.
    pub fn ask(&mut self, command: u16, payload: &[u8]) -> (u16, u64) {
        self.request(command, payload.len() as u64, payload);
        self.answer()
    }

    pub fn ask_fd(&mut self, slot: u32, files: &[&File]) -> (u16, u64) {
        self.request(MEMORY_FD, 4, &[]);
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        let fds: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
        // As above.
        _ = sendmsg(&self.0, &[IoSlice::new(&slot.to_le_bytes())], &mut control, SendFlags::NOSIGNAL);
        self.answer()
    }

    /// `(0, 0)`: the connection is closed.
    pub fn answer(&mut self) -> (u16, u64) {
        let mut head = [0; 16];
        if self.0.read_exact(&mut head).is_err() {
            return (0, 0);
        }
        assert_eq!(head[2..8], [0; 6]);
        (u16::from_le_bytes([head[0], head[1]]), u64::from_le_bytes(head[8..].try_into().unwrap()))
    }

    fn say(&mut self, (status, length): (u16, u64)) {
        self.request(status, length, &[]);
    }

    /// Reads the next request, and its payload.
    fn hear(&mut self) -> (u16, Vec<u8>) {
        let mut head = [0; 16];
        self.0.read_exact(&mut head).unwrap();
        let (command, length) =
            (u16::from_le_bytes([head[0], head[1]]), u64::from_le_bytes(head[8..].try_into().unwrap()));
        let mut payload = vec![0; if command == MEMORY_FD { 0 } else { length as usize }];
        self.0.read_exact(&mut payload).unwrap();
        (command, payload)
    }

    fn hear_fd(&mut self) -> (u32, File) {
        let (mut number, mut room) = ([0; 4], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))]);
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let flags = RecvFlags::CMSG_CLOEXEC;
        assert_eq!(
            recvmsg(&self.0, &mut [IoSliceMut::new(&mut number)], &mut control, flags).unwrap().bytes,
            4
        );
        let fds = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
            _ => Vec::new(),
        });
        (u32::from_le_bytes(number), fds.last().unwrap().into())
    }
}

/// Sends a machine up to its state, and returns the connection for the last answer.
pub fn send_all(talk: &mut Talk, files: &[File; 2]) {
    assert_eq!(talk.ask(START, &[]), OK);
    for (slot, _, _, file, _) in SLOTS {
        assert_eq!(talk.ask_fd(slot, &[&files[file]]), OK);
    }
    assert_eq!(talk.ask(CONFIG, config(false).as_bytes()), OK);
    assert_eq!(talk.ask(STATE, VM_STATE), OK);
}

/// A VMM that waited for a machine.
pub struct Vmm {
    main: Talk,
    pub faults: Talk,
    pub config: Vec<u8>,
    /// By memslot.
    files: Vec<File>,
    /// Whether the pager asked for a stopped machine.
    pub paused: bool,
}

impl Vmm {
    /// Reads a pager's messages up to its second connection.
    pub fn meet(listener: &UnixListener) -> Self {
        let mut main = accept(listener);
        assert_eq!(main.hear(), (START, Vec::new()));
        main.say(OK);
        let mut files = BTreeMap::new();
        let config = loop {
            match main.hear() {
                (MEMORY_FD, _) => {
                    let (slot, file) = main.hear_fd();
                    assert!(files.insert(slot, file).is_none());
                }
                (CONFIG, config) => break config,
                other => panic!("{other:?}"),
            }
            main.say(OK);
        };
        main.say(OK);
        let mut faults = accept(listener);
        let mut role = [0; 2];
        faults.0.read_exact(&mut role).unwrap();
        assert_eq!(role, [2, 0]);
        let files = SLOTS.map(|(slot, ..)| files.remove(&slot).unwrap()).into();
        Self { main, faults, config, files, paused: false }
    }

    /// Reads the rest. Calls `devices` while it restores devices.
    pub fn finish(&mut self, devices: impl FnOnce(&mut Self)) -> Vec<u8> {
        let (command, state) = self.main.hear();
        assert_eq!(command, STATE);
        devices(self);
        self.main.say(OK);
        match self.main.hear() {
            (COMPLETE, _) => {}
            (COMPLETE_PAUSED, _) => self.paused = true,
            other => panic!("{other:?}"),
        }
        self.main.say(OK);
        state
    }

    /// Refuses the state.
    pub fn refuse(&mut self) {
        assert_eq!(self.main.hear().0, STATE);
        self.main.say(ERROR);
    }

    /// Asks for pages from this one on.
    pub fn ask(&mut self, page: usize, pages: usize) -> (u16, u64) {
        self.faults
            .ask(PAGE_FAULT, &[gpa(page).to_le_bytes(), ((pages * PAGE) as u64).to_le_bytes()].concat())
    }

    /// Returns the file of a page, and its offset there.
    pub fn file(&self, page: usize) -> (&File, u64) {
        let (slot, at) = place(page);
        (&self.files[slot], SLOTS[slot].4 + (at * PAGE) as u64)
    }

    pub fn read(&self, page: usize) -> Vec<u8> {
        let ((file, place), mut bytes) = (self.file(page), vec![0; PAGE]);
        file.read_exact_at(&mut bytes, place).unwrap();
        bytes
    }

    /// Maps the memory, and serves its faults until it has all pages. Asks for pages one by one in order, beside those
    /// that the guest touches.
    pub fn run(mut self) -> Mapped {
        let uffd = Uffd::new(Features::SHARED.and(Features::MINOR)).unwrap();
        let map = |(slot, file): (usize, &File)| {
            let (size, place) = (SLOTS[slot].2 * PAGE, SLOTS[slot].4);
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping, where the kernel finds room.
            let start = unsafe { mmap(std::ptr::null_mut(), size, prot, MapFlags::SHARED, file, place) };
            let start = start.unwrap() as u64;
            uffd.register(start, size as u64, true).unwrap();
            start
        };
        let starts: Vec<u64> = self.files.iter().enumerate().map(map).collect();
        let mapped = Mapped(starts.clone());
        std::thread::spawn(move || {
            let address = |page| {
                let (slot, at) = place(page);
                starts[slot] + (at * PAGE) as u64
            };
            let mut left: Vec<usize> = (0..IMAGE.pages).rev().collect();
            while let Some(page) = left.last().copied() {
                let mut event = [0; 32];
                // Without a fault, the next page in order.
                let page = if rustix::io::read(&uffd, &mut event) == Ok(32) {
                    assert_eq!(event[0], 0x12, "a page fault");
                    let fault = u64::from_ne_bytes(event[16..24].try_into().unwrap());
                    (0..IMAGE.pages).find(|page| address(*page) == fault / PAGE as u64 * PAGE as u64).unwrap()
                } else {
                    left.pop();
                    page
                };
                // If the pager refuses, the guest stands still.
                if self.ask(page, 1) != OK {
                    return;
                }
                match uffd.resume(address(page), PAGE as u64) {
                    (PAGE, None) => {}
                    (0, Some(Refusal::Exists)) => uffd.wake(address(page), PAGE as u64).unwrap(),
                    other => panic!("{other:?}"),
                }
            }
            // The VMM has all pages, and closes the connection.
        });
        mapped
    }
}

/// A guest's memory, mapped.
pub struct Mapped(Vec<u64>);

impl Mapped {
    /// Touches a page, and waits for it.
    pub fn read(&self, page: usize) -> [u64; PAGE / 8] {
        let (slot, at) = place(page);
        // SAFETY: it is mapped, and nothing writes to it but the pager.
        unsafe { ((self.0[slot] as usize + at * PAGE) as *const [u64; PAGE / 8]).read_volatile() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        for (start, (_, _, pages, ..)) in self.0.iter().zip(SLOTS) {
            // SAFETY: these are its mappings, and no borrow of it is left.
            _ = unsafe { munmap(*start as *mut _, pages * PAGE) };
        }
    }
}
