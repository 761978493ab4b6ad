//! The queue between faulting threads and handlers: which threads sleep on which pages, and which events are
//! unread.
//!
//! A sleeper is in the queue from its post until it is woken. It sleeps *while* it is in the queue, so a wake
//! between the post and the sleep is not missed. A wake also removes the sleeper's event, so each unread event
//! belongs to a thread that still sleeps.

use crate::pages::hva_of;
use parking_lot::{Condvar, Mutex};
use slat::{Access, Gfn, Hva, Idle, Span};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Why a fault needs a handler.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FaultKind {
    /// The page does not exist.
    Missing,
    /// The page is in the file and not mapped here.
    Minor,
}

/// A fault that a handler is to serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserFault {
    /// Address of the page.
    pub page: Hva,
    /// Access that faulted.
    pub access: Access,
    /// Kind of the fault.
    pub kind: FaultKind,
    /// The thread that sleeps.
    pub thread: ThreadId,
}

/// Why no fault was read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum NoFault {
    /// No fault within the timeout.
    #[error("no fault in time")]
    TimedOut,
    /// The handler is closed; no more faults will come.
    #[error("the handler of faults is closed")]
    Closed,
}

/// The sleepers and unread events of one handler. Its lock is innermost.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    readers: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    posted: u64,
    /// By page, and by number of the event.
    sleepers: BTreeMap<(Gfn, u64), Arc<Condvar>>,
    unread: BTreeMap<u64, UserFault>,
    closed: bool,
}

/// A thread that has posted an event and will sleep.
#[derive(Debug)]
#[must_use = "a thread that has posted is in the queue until it is woken"]
pub(crate) struct Asleep {
    queue: Arc<Queue>,
    key: (Gfn, u64),
    bell: Arc<Condvar>,
}

impl Queue {
    /// Posts an event for the calling thread.
    pub(crate) fn post(self: &Arc<Self>, page: Gfn, access: Access, kind: FaultKind) -> Asleep {
        let bell = Arc::new(Condvar::new());
        let event = UserFault { page: hva_of(page), access, kind, thread: thread::current().id() };
        let mut inner = self.inner.lock();
        inner.posted += 1;
        let key = (page, inner.posted);
        inner.sleepers.insert(key, bell.clone());
        inner.unread.insert(key.1, event);
        self.readers.notify_one();
        Asleep { queue: self.clone(), key, bell }
    }

    /// Wakes threads that sleep on `pages`.
    pub(crate) fn wake(&self, pages: Span<Gfn>) {
        let mut inner = self.inner.lock();
        let Inner { sleepers, unread, .. } = &mut *inner;
        let mut from = (pages.start, 0);
        while from < (pages.end, 0)
            && let Some((&key, _)) = sleepers.range(from..(pages.end, 0)).next()
        {
            unread.remove(&key.1);
            if let Some(bell) = sleepers.remove(&key) {
                bell.notify_one();
            }
            from = key;
        }
    }

    /// [`UserFaults::read`](super::UserFaults::read).
    pub(crate) fn read(&self, timeout: Option<Duration>) -> Result<UserFault, NoFault> {
        // A deadline beyond the clock's range is no deadline.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut inner = self.inner.lock();
        let mut late = false;
        loop {
            if let Some((_, event)) = inner.unread.pop_first() {
                return Ok(event);
            }
            if inner.closed {
                return Err(NoFault::Closed);
            }
            if late {
                return Err(NoFault::TimedOut);
            }
            match deadline {
                Some(deadline) => late = self.readers.wait_until(&mut inner, deadline).timed_out(),
                None => self.readers.wait(&mut inner),
            }
        }
    }

    /// Makes all reads fail. Nothing is registered any more, so no thread sleeps and no event is unread.
    pub(crate) fn close(&self) {
        self.inner.lock().closed = true;
        self.readers.notify_all();
    }

    /// Returns the number of sleepers, and of unread events.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        (inner.sleepers.len(), inner.unread.len())
    }
}

impl Asleep {
    /// Sleeps until the thread is woken. The caller holds no lock.
    pub(crate) fn sleep(self, _idle: &mut Idle) {
        let mut inner = self.queue.inner.lock();
        while inner.sleepers.contains_key(&self.key) {
            self.bell.wait(&mut inner);
        }
    }
}

/// Which faults of a range to serve.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Serve {
    /// [`FaultKind::Missing`].
    Missing,
    /// [`FaultKind::Minor`].
    Minor,
    /// Both kinds.
    Both,
}

/// A mapping's registration.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    pub(super) queue: Arc<Queue>,
    pub(super) what: Serve,
}

impl Served {
    /// Wakes threads that sleep on `pages`.
    pub(crate) fn wake(&self, pages: Span<Gfn>) {
        self.queue.wake(pages);
    }
}

impl Serve {
    pub(super) fn covers(self, kind: FaultKind) -> bool {
        match self {
            Self::Missing => kind == FaultKind::Missing,
            Self::Minor => kind == FaultKind::Minor,
            Self::Both => true,
        }
    }
}
