//! Requests to a device: runs of blocks that are written or read at once, and how threads wait for them.
//!
//! ```text
//!            begin          a pool thread, the kernel, or the waiting thread
//! [waiting] ───────▶ [under way] ───────▶ [done: a result for each page]
//! ```
//! A thread starts all requests of a batch, and waits for them afterwards. It executes the first itself, so a
//! batch of neighbouring blocks wakes no other thread. The others go to the kernel if the device is a file and
//! the kernel has `io_uring`, else to the device's thread pool. The waiting thread executes requests that
//! nothing else has started, so progress needs no other thread.

use super::device::{Bytes, Failed, Outcome, PAGE, SwapDevice, read, write};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Most threads of a device.
const THREADS: usize = 8;

/// Direction of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Write,
    Read,
}

/// A request for consecutive pages on a device.
#[derive(Debug)]
pub(super) struct Request {
    device: Arc<dyn SwapDevice>,
    pub(super) direction: Direction,
    pub(super) offset: u64,
    pages: Vec<NonNull<Bytes>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
enum State {
    Waiting,
    UnderWay,
    /// The kernel has done this many bytes from the start; 0 if it failed.
    Returned(usize),
    Done(Outcome),
}

// SAFETY: the thread that started the request keeps the pages until it is done, since `Requests` waits.
unsafe impl Send for Request {}
// SAFETY: as above; only the thread that took the request from `Waiting` accesses the pages.
unsafe impl Sync for Request {}

impl Request {
    /// Creates a request for these pages, from `offset` on the device.
    ///
    /// # Safety
    /// Until it is done the pages stay allocated, and no other thread writes to them, or reads them during a
    /// read.
    pub(super) unsafe fn new(
        device: Arc<dyn SwapDevice>,
        direction: Direction,
        offset: u64,
        pages: Vec<NonNull<Bytes>>,
    ) -> Arc<Self> {
        let (state, changed) = (Mutex::new(State::Waiting), Condvar::new());
        Arc::new(Self { device, direction, offset, pages, state, changed })
    }

    /// Returns the pages in the kernel's form.
    pub(super) fn iovecs(&self) -> Vec<libc::iovec> {
        let iovec = |page: &NonNull<Bytes>| libc::iovec { iov_base: page.as_ptr().cast(), iov_len: PAGE };
        self.pages.iter().map(iovec).collect()
    }

    /// Executes the request, unless that has started.
    fn run(&self) {
        let first = {
            let mut state = self.state.lock();
            let first = match *state {
                State::Waiting => 0,
                State::Returned(bytes) => (bytes / PAGE).min(self.pages.len()),
                State::UnderWay | State::Done(_) => return,
            };
            *state = State::UnderWay;
            first
        };
        // Records the end even if the device panics, so that the waiting thread does not hang.
        let mut ends = EndGuard(self, vec![Ok(()); first]);
        let (rest, offset) = (&self.pages[first..], self.offset + (first * PAGE) as u64);
        if rest.is_empty() {
            return;
        }
        // SAFETY: the thread that started the request keeps the pages; only this thread took it from `Waiting`.
        let outcome = unsafe {
            match self.direction {
                Direction::Write => write(&*self.device, rest, offset),
                Direction::Read => read(&*self.device, rest, offset),
            }
        };
        ends.1.extend(outcome);
    }

    /// Takes the request for the kernel, so that no thread executes it. Returns false if it has started
    /// already.
    pub(super) fn take(&self) -> bool {
        let mut state = self.state.lock();
        let waits = matches!(*state, State::Waiting);
        if waits {
            *state = State::UnderWay;
        }
        waits
    }

    /// Records the kernel's result. The waiting thread executes the rest, and gets its errors.
    pub(super) fn returned(&self, result: i32) {
        *self.state.lock() = State::Returned(usize::try_from(result).unwrap_or(0));
        self.changed.notify_all();
    }

    fn wait(&self) -> Outcome {
        loop {
            self.run();
            let mut state = self.state.lock();
            self.changed.wait_while(&mut state, |state| matches!(state, State::UnderWay));
            if let State::Done(outcome) = &mut *state {
                return mem::take(outcome);
            }
        }
    }
}

/// Ends a request on drop: pages without a result have failed.
struct EndGuard<'r>(&'r Request, Outcome);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        let mut outcome = mem::take(&mut self.1);
        outcome.resize(self.0.pages.len(), Err(Failed::Os(libc::EIO)));
        *self.0.state.lock() = State::Done(outcome);
        self.0.changed.notify_all();
    }
}

/// Started requests. Dropping this waits for them.
#[derive(Debug, Default)]
pub(super) struct Requests(pub(super) Vec<Arc<Request>>);

impl Requests {
    /// Waits, and returns the result of each page, in the order given.
    pub(super) fn wait(mut self) -> Outcome {
        mem::take(&mut self.0).iter().flat_map(|request| request.wait()).collect()
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.0.iter().for_each(|request| drop(request.wait()));
    }
}

/// Threads that execute requests: as many as were ever needed at once, up to [`THREADS`].
#[derive(Debug, Default)]
pub(super) struct ThreadPool {
    queue: Mutex<Queue>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    requests: VecDeque<Arc<Request>>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    over: bool,
}

impl ThreadPool {
    /// Queues these requests, and starts threads if too few are idle.
    pub(super) fn submit(self: &Arc<Self>, requests: &[Arc<Request>]) {
        let mut queue = self.queue.lock();
        queue.requests.extend(requests.iter().cloned());
        while queue.idle < queue.requests.len() && queue.threads.len() < THREADS {
            let pool = self.clone();
            let thread = thread::Builder::new().name("slat-swap".into()).spawn(move || pool.serve());
            // Without a thread, waiting threads do more themselves.
            let Ok(thread) = thread else { break };
            queue.threads.push(thread);
            queue.idle += 1;
        }
        self.more.notify_all();
    }

    fn serve(&self) {
        let mut queue = self.queue.lock();
        loop {
            self.more.wait_while(&mut queue, |queue| queue.requests.is_empty() && !queue.over);
            let Some(request) = queue.requests.pop_front() else { return };
            queue.idle -= 1;
            drop(queue);
            // The waiting thread gets a panic of the device as an error.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| request.run()));
            drop(request);
            queue = self.queue.lock();
            queue.idle += 1;
        }
    }

    /// Ends the threads and waits for them. No more requests come.
    pub(super) fn end(&self) {
        let threads = {
            let mut queue = self.queue.lock();
            queue.over = true;
            mem::take(&mut queue.threads)
        };
        self.more.notify_all();
        for thread in threads {
            let _ = thread.join();
        }
    }
}
