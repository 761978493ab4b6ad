//! Requests to a device: runs of blocks that are written or read at once, and those that wait for them.
//!
//! ```text
//!            begin          a thread of the pool, the kernel, or the thread that waits
//! [waiting] ───────▶ [under way] ───────▶ [done: what became of each page]
//! ```
//! A thread begins all requests of a batch, and waits for them afterwards. It carries the first out itself, so a batch whose blocks
//! are neighbours wakes no other thread. The others go to the kernel, where the device is a file and the kernel has `io_uring`; else
//! to the threads of the device's pool. What none of these has begun the waiting thread takes: where no thread can be had all goes on.

use super::device::{Bytes, Failed, Outcome, PAGE, SwapDevice, read, write};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Threads of a device, at most.
const THREADS: usize = 8;

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Write,
    Read,
}

/// Pages in a row on a device.
#[derive(Debug)]
pub(super) struct Request {
    device: Arc<dyn SwapDevice>,
    pub(super) way: Way,
    pub(super) offset: u64,
    pages: Vec<NonNull<Bytes>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
enum State {
    Waiting,
    UnderWay,
    /// The kernel has done so many bytes from the beginning, and none where it failed.
    Returned(usize),
    Done(Outcome),
}

// SAFETY: the thread that began the request keeps the pages for it until it is done: `Requests` waits.
unsafe impl Send for Request {}
// SAFETY: as above; each is used by the one thread that took the request from `Waiting`.
unsafe impl Sync for Request {}

impl Request {
    /// These pages, to or from the device at `offset` on.
    ///
    /// # Safety
    /// Until it is done the pages stay, no other thread writes to them, and none reads them where they are read in.
    pub(super) unsafe fn new(
        device: Arc<dyn SwapDevice>,
        way: Way,
        offset: u64,
        pages: Vec<NonNull<Bytes>>,
    ) -> Arc<Self> {
        let (state, changed) = (Mutex::new(State::Waiting), Condvar::new());
        Arc::new(Self { device, way, offset, pages, state, changed })
    }

    /// The pages as the kernel wants them.
    pub(super) fn iovecs(&self) -> Vec<libc::iovec> {
        let iovec = |page: &NonNull<Bytes>| libc::iovec { iov_base: page.as_ptr().cast(), iov_len: PAGE };
        self.pages.iter().map(iovec).collect()
    }

    /// Carries it out, unless that has begun.
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
        // Also where the device panics: then the thread that waits must not.
        let mut ends = Ends(self, vec![Ok(()); first]);
        let (rest, offset) = (&self.pages[first..], self.offset + (first * PAGE) as u64);
        if rest.is_empty() {
            return;
        }
        // SAFETY: the thread that began the request keeps the pages for it; this thread alone took it from `Waiting`.
        let outcome = unsafe {
            match self.way {
                Way::Write => write(&*self.device, rest, offset),
                Way::Read => read(&*self.device, rest, offset),
            }
        };
        ends.1.extend(outcome);
    }

    /// The kernel is asked: no thread carries it out meanwhile. False where it is too late for that.
    pub(super) fn take(&self) -> bool {
        let mut state = self.state.lock();
        let waits = matches!(*state, State::Waiting);
        if waits {
            *state = State::UnderWay;
        }
        waits
    }

    /// The kernel has answered. Where it has not done everything the thread that waits does the rest, and learns why.
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

/// The end of a request: those pages that nothing is known of failed.
struct Ends<'r>(&'r Request, Outcome);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let mut outcome = mem::take(&mut self.1);
        outcome.resize(self.0.pages.len(), Err(Failed::Os(libc::EIO)));
        *self.0.state.lock() = State::Done(outcome);
        self.0.changed.notify_all();
    }
}

/// Requests that were begun. Dropping it waits for them.
#[derive(Debug, Default)]
pub(super) struct Requests(pub(super) Vec<Arc<Request>>);

impl Requests {
    /// What became of each page, in the order in which they were given.
    pub(super) fn wait(mut self) -> Outcome {
        mem::take(&mut self.0).iter().flat_map(|request| request.wait()).collect()
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.0.iter().for_each(|request| drop(request.wait()));
    }
}

/// Threads that carry out requests: as many as there ever were requests at once, up to [`THREADS`].
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
    /// Hands these to its threads, and begins more where there are too few.
    pub(super) fn submit(self: &Arc<Self>, requests: &[Arc<Request>]) {
        let mut queue = self.queue.lock();
        queue.requests.extend(requests.iter().cloned());
        while queue.idle < queue.requests.len() && queue.threads.len() < THREADS {
            let pool = self.clone();
            let thread = thread::Builder::new().name("slat-swap".into()).spawn(move || pool.serve());
            // Without it the threads that wait do more themselves.
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
            // A panic of the device's is told to the thread that waits, as an error.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| request.run()));
            drop(request);
            queue = self.queue.lock();
            queue.idle += 1;
        }
    }

    /// No request comes any more: waits for its threads.
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
