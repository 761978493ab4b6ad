//! The kernel's ring (`io_uring`): a thread puts many requests into it with one call, and the kernel carries them out at once.
//!
//! A thread of the ring's own takes the answers out and wakes the threads that wait. What the kernel does not do at once, or not
//! whole, the waiting thread does itself in the plain way, so errors are the same with a ring and without.

use super::request::{Request, Way};
use io_uring::squeue::PushError;
use io_uring::{IoUring, opcode, types::Fd};
use parking_lot::Mutex;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Requests that can be put in at once. There may be more on their way.
const ENTRIES: u32 = 256;

/// What the kernel reads while a request is on its way; it comes back as the answer's number.
struct Entry {
    request: Arc<Request>,
    iovecs: Vec<libc::iovec>,
}

/// See the module's header.
pub(super) struct Ring {
    ring: Arc<IoUring>,
    /// Held by the thread that puts requests in.
    submitting: Mutex<()>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}

impl Ring {
    /// A ring, where the kernel offers it: an old one does not, and one may be told not to.
    pub(super) fn new() -> Option<Self> {
        let ring = Arc::new(IoUring::new(ENTRIES).ok()?);
        let answers = ring.clone();
        let thread =
            thread::Builder::new().name("slat-swap-ring".into()).spawn(move || reap(&answers)).ok()?;
        Some(Self { ring, submitting: Mutex::new(()), thread: Some(thread) })
    }

    /// Asks the kernel. What it does not take stays where it was.
    pub(super) fn submit(&self, file: BorrowedFd<'_>, start: u64, requests: &[Arc<Request>]) {
        let _alone = self.submitting.lock();
        for request in requests.iter().filter(|request| request.take()) {
            let entry = Box::new(Entry { request: request.clone(), iovecs: request.iovecs() });
            let (fd, offset) = (Fd(file.as_raw_fd()), start + request.offset);
            let (iovecs, count) = (entry.iovecs.as_ptr(), entry.iovecs.len() as u32);
            let asked = match request.way {
                Way::Write => opcode::Writev::new(fd, iovecs, count).offset(offset).build(),
                Way::Read => opcode::Readv::new(fd, iovecs, count).offset(offset).build(),
            };
            let entry = Box::into_raw(entry);
            if self.push(&asked.user_data(entry as u64)).is_err() {
                // SAFETY: made just above; the kernel has not seen it.
                unsafe { Box::from_raw(entry) }.request.returned(0);
            }
        }
        // The thread of the answers submits what this call may have left.
        let _ = self.ring.submit();
    }

    /// Puts one in, and makes room for it if need be.
    fn push(&self, asked: &io_uring::squeue::Entry) -> Result<(), PushError> {
        // SAFETY: what it points to stays until its answer is taken out. `submitting` is held, or the ring is being dropped.
        let push = || unsafe { self.ring.submission_shared().push(asked) };
        push().or_else(|_| {
            let _ = self.ring.submit();
            push()
        })
    }
}

impl Drop for Ring {
    /// No request is on its way: each is waited for by the thread that began it.
    fn drop(&mut self) {
        while self.push(&opcode::Nop::new().build().user_data(0)).is_err() {
            thread::yield_now();
        }
        let _ = self.ring.submit();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Takes answers out until the last one comes.
fn reap(ring: &IoUring) {
    loop {
        // SAFETY: this thread alone takes answers out.
        for answer in unsafe { ring.completion_shared() } {
            let entry = answer.user_data() as *mut Entry;
            if entry.is_null() {
                return;
            }
            // SAFETY: the kernel is done with it, and says so once.
            let entry = unsafe { Box::from_raw(entry) };
            entry.request.returned(answer.result());
        }
        match ring.submit_and_wait(1) {
            Err(error) if !matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ResourceBusy) => {
                // It is asked again: requests are on their way.
                thread::yield_now();
            }
            _ => {}
        }
    }
}
