//! The kernel's ring (`io_uring`): a thread submits many requests with one call, and the kernel executes them
//! concurrently.
//!
//! A thread of the ring reads the completions and wakes waiting threads. A request that the kernel does not complete,
//! the waiting thread executes itself, so errors are the same with and without a ring.

use super::request::{Direction, Request};
use io_uring::squeue::PushError;
use io_uring::{IoUring, opcode, types::Fd};
use parking_lot::Mutex;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Submission entries. More requests may be in flight.
const ENTRIES: u32 = 256;

/// The data that the kernel reads while a request is in flight; the completion carries its address.
struct Entry {
    request: Arc<Request>,
    iovecs: Vec<libc::iovec>,
}

/// A ring with its completion thread.
pub(super) struct Ring {
    ring: Arc<IoUring>,
    /// Held by the thread that submits.
    submitting: Mutex<()>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}

impl Ring {
    /// Creates a ring if the kernel supports and allows it.
    pub(super) fn new() -> Option<Self> {
        let ring = Arc::new(IoUring::new(ENTRIES).ok()?);
        let answers = ring.clone();
        let thread =
            thread::Builder::new().name("slat-swap-ring".into()).spawn(move || reap(&answers)).ok()?;
        Some(Self { ring, submitting: Mutex::new(()), thread: Some(thread) })
    }

    /// Submits requests. Requests that the kernel does not take are left to the waiting thread.
    pub(super) fn submit(&self, file: BorrowedFd<'_>, start: u64, requests: &[Arc<Request>]) {
        let _alone = self.submitting.lock();
        for request in requests.iter().filter(|request| request.take()) {
            let entry = Box::new(Entry { request: request.clone(), iovecs: request.iovecs() });
            let (fd, offset) = (Fd(file.as_raw_fd()), start + request.offset);
            let (iovecs, count) = (entry.iovecs.as_ptr(), entry.iovecs.len() as u32);
            let asked = match request.direction {
                Direction::Write => opcode::Writev::new(fd, iovecs, count).offset(offset).build(),
                Direction::Read => opcode::Readv::new(fd, iovecs, count).offset(offset).build(),
            };
            let entry = Box::into_raw(entry);
            if self.push(&asked.user_data(entry as u64)).is_err() {
                // SAFETY: made above; the kernel has not seen it.
                unsafe { Box::from_raw(entry) }.request.returned(0);
            }
        }
        // The completion thread submits what this call may have left.
        let _ = self.ring.submit();
    }

    /// Queues an entry, and submits first if the queue is full.
    fn push(&self, asked: &io_uring::squeue::Entry) -> Result<(), PushError> {
        // SAFETY: what it points to lives until its completion is read. `submitting` is held, or the ring is
        // being dropped.
        let push = || unsafe { self.ring.submission_shared().push(asked) };
        push().or_else(|_| {
            let _ = self.ring.submit();
            push()
        })
    }
}

impl Drop for Ring {
    /// No request is in flight: the thread that started it waits for it.
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

/// Reads completions until the last one.
fn reap(ring: &IoUring) {
    loop {
        // SAFETY: only this thread reads completions.
        for answer in unsafe { ring.completion_shared() } {
            let entry = answer.user_data() as *mut Entry;
            if entry.is_null() {
                return;
            }
            // SAFETY: the kernel has finished with it, and completes it once.
            let entry = unsafe { Box::from_raw(entry) };
            entry.request.returned(answer.result());
        }
        match ring.submit_and_wait(1) {
            Err(error) if !matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ResourceBusy) => {
                // Try again, since requests are in flight.
                thread::yield_now();
            }
            _ => {}
        }
    }
}
