//! A preloaded library (`LD_PRELOAD`): it hands the memory of an unmodified VMM to a pager.
//!
//! The VMM maps the RAM of its machine. This library sees the mapping, registers it with a userfaultfd before the VMM
//! gets its address, and sends Firecracker's handshake. The VMM's process keeps the userfaultfd and the connection: an
//! access to a page that no pager has answered yet waits, and does not read zeroes.
//!
//! | variable | meaning |
//! |---|---|
//! | `SLAT_PAGER_SOCKET` | the pager's socket |
//! | `SLAT_PAGER_BYTES` | the size of the RAM: the first writable mapping of exactly this size is taken |

use libc::{c_int, c_void, off64_t, size_t};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use slat_pager::{Features, PAGE, Uffd};
use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The settings in the environment.
struct Wanted {
    socket: OsString,
    bytes: usize,
    is_taken: AtomicBool,
}

impl Wanted {
    fn read() -> Option<Self> {
        let bytes = std::env::var("SLAT_PAGER_BYTES").ok()?.parse().ok()?;
        let socket = std::env::var_os("SLAT_PAGER_SOCKET")?;
        Some(Self { socket, bytes, is_taken: AtomicBool::new(false) })
    }

    /// Registers the mapping, and sends it to the pager.
    fn hand_over(&self, start: usize, memory: Option<BorrowedFd>) -> io::Result<()> {
        let features = match memory {
            Some(_) => Features::REMOVE.and(Features::SHARED).and(Features::MINOR),
            None => Features::REMOVE,
        };
        let uffd = Uffd::new(features)?;
        uffd.register(start as u64, self.bytes as u64, memory.is_some())?;
        let text = format!(
            r#"[{{"base_host_virt_addr":{start},"size":{},"offset":0,"page_size":{PAGE},"page_size_kib":{PAGE}}}]"#,
            self.bytes
        );
        let connection = UnixStream::connect(&self.socket)?;
        let mut fds = vec![uffd.as_fd()];
        fds.extend(memory);
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)), "there is room for two");
        sendmsg(&connection, &[IoSlice::new(text.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
        // Both stay open until the process ends.
        std::mem::forget((uffd, connection));
        // A program that the VMM starts is not a VMM.
        // SAFETY: the VMM maps its RAM before it has threads that look at the environment.
        unsafe { std::env::remove_var("LD_PRELOAD") };
        Ok(())
    }
}

/// As the C library's.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    at: *mut c_void,
    size: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off64_t,
) -> *mut c_void {
    static WANTED: OnceLock<Option<Wanted>> = OnceLock::new();
    // SAFETY: the caller's arguments, as they are. The error number is set as by the C library's.
    let start = unsafe { libc::syscall(libc::SYS_mmap, at, size, prot, flags, fd, offset) };
    // QEMU first reserves addresses without write permission, then maps its RAM over them.
    if start != -1 && prot & libc::PROT_WRITE != 0 {
        let wanted = WANTED.get_or_init(Wanted::read).as_ref().filter(|wanted| wanted.bytes == size);
        if let Some(wanted) = wanted.filter(|wanted| !wanted.is_taken.swap(true, Ordering::Relaxed)) {
            // SAFETY: the caller's descriptor, which was just good enough for a mapping.
            let memory = (flags & libc::MAP_ANONYMOUS == 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) });
            if let Err(error) = wanted.hand_over(start as usize, memory) {
                eprintln!("preload: the memory cannot be handed to the pager: {error}");
                std::process::abort();
            }
        }
    }
    start as *mut c_void
}

/// As the C library's.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    at: *mut c_void,
    size: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off64_t,
) -> *mut c_void {
    // SAFETY: on 64 bits the two are one.
    unsafe { mmap64(at, size, prot, flags, fd, offset) }
}
