//! The kernel's userfaultfd interface: numbers and layouts of `linux/userfaultfd.h`.
//!
//! The crate `userfaultfd` is not used: it has no CONTINUE and no POISON, and needs libclang to build.

use libc::Ioctl;
use std::mem::size_of;

/// The only version of the interface.
pub const API: u64 = 0xAA;

/// Returns the ioctl number of a request with this direction (1 write, 2 read, 3 both), number and size of its
/// argument.
const fn request(direction: u32, number: u32, size: usize) -> Ioctl {
    (direction << 30 | (size as u32) << 16 | (API as u32) << 8 | number) as Ioctl
}

/// Request to `/dev/userfaultfd` for a new userfaultfd.
pub const NEW: Ioctl = request(0, 0x00, 0);
pub const HANDSHAKE: Ioctl = request(3, 0x3F, size_of::<Handshake>());
pub const REGISTER: Ioctl = request(3, 0x00, size_of::<Register>());
pub const WAKE: Ioctl = request(2, 0x02, size_of::<Range>());
pub const COPY: Ioctl = request(3, 0x03, size_of::<Copy>());
pub const ZEROPAGE: Ioctl = request(3, 0x04, size_of::<Fill>());
pub const WRITEPROTECT: Ioctl = request(3, 0x06, size_of::<Protect>());
pub const CONTINUE: Ioctl = request(3, 0x07, size_of::<Fill>());
pub const POISON: Ioctl = request(3, 0x08, size_of::<Fill>());

/// Registration mode: a missing page faults.
pub const MODE_MISSING: u64 = 1;
/// Registration mode: a write to a protected page faults.
pub const MODE_WP: u64 = 2;
/// Registration mode: a page that is in the shared memory, but not in the page table, faults.
pub const MODE_MINOR: u64 = 4;

pub const EVENT_PAGEFAULT: u8 = 0x12;
pub const EVENT_FORK: u8 = 0x13;
pub const EVENT_REMOVE: u8 = 0x15;
pub const EVENT_UNMAP: u8 = 0x16;
pub const FAULT_WRITE: u64 = 1;
pub const FAULT_WP: u64 = 2;
pub const FAULT_MINOR: u64 = 4;

#[repr(C)]
pub struct Handshake {
    pub api: u64,
    pub features: u64,
    pub ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Range {
    pub start: u64,
    pub len: u64,
}

#[repr(C)]
pub struct Register {
    pub range: Range,
    pub mode: u64,
    pub ioctls: u64,
}

#[repr(C)]
pub struct Copy {
    pub dst: u64,
    pub src: u64,
    pub len: u64,
    pub mode: u64,
    /// Answer: bytes, or a negative error.
    pub done: i64,
}

/// Mode of COPY and of CONTINUE: protect the page.
pub const FILL_WP: u64 = 2;

#[repr(C)]
pub struct Protect {
    pub range: Range,
    /// 1: protect. 0: end the protection, and wake.
    pub mode: u64,
}

/// The argument of ZEROPAGE, CONTINUE and POISON.
#[repr(C)]
pub struct Fill {
    pub range: Range,
    pub mode: u64,
    /// Answer: bytes, or a negative error.
    pub done: i64,
}

/// An event. The three words depend on its kind: PAGEFAULT has flags and address, REMOVE and UNMAP start and end, FORK
/// a descriptor.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Message {
    pub event: u8,
    pub reserved: [u8; 7],
    pub words: [u64; 3],
}

impl Message {
    /// Returns the removed or unmapped addresses of an event.
    pub fn removed(&self) -> Option<std::ops::Range<u64>> {
        let is_removal = matches!(self.event, EVENT_REMOVE | EVENT_UNMAP);
        is_removal.then(|| self.words[0]..self.words[1])
    }
}

const _: () = assert!(size_of::<Message>() == 32 && COPY as u32 == 0xC028_AA03 && WAKE as u32 == 0x8010_AA02);
