//! The queue between threads that fault and handlers that serve: which threads sleep where, which events are unread.
//!
//! A sleeper is in the queue from the moment it posts until it is woken. It is asleep *because* it is in
//! the queue; so a wake that comes between the post and the sleep is not missed. Its event goes with it: each
//! unread event belongs to a thread that still sleeps.

use crate::pte::hva_of;
use parking_lot::{Condvar, Mutex};
use slat::{Access, Gfn, Hva, Idle, Span};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// What a fault found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FaultKind {
    /// No page.
    Missing,
    /// The page is in the file, and not mapped here.
    Minor,
}

/// A fault that a handler is to serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserFault {
    /// Where the page begins.
    pub page: Hva,
    /// What was wanted.
    pub access: Access,
    /// What was found.
    pub kind: FaultKind,
    /// Who sleeps.
    pub thread: ThreadId,
}

/// Why there was no fault to read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum NoFault {
    /// None in time.
    #[error("no fault in time")]
    TimedOut,
    /// The handler is closed; there will be none.
    #[error("the handler of faults is closed")]
    Closed,
}

/// See the module's header. Its lock is a leaf.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    readers: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    posted: u64,
    /// By page, and by number within it.
    sleepers: BTreeMap<(Gfn, u64), Arc<Condvar>>,
    unread: BTreeMap<u64, UserFault>,
    closed: bool,
}

/// A thread that has posted and is to sleep.
#[derive(Debug)]
#[must_use = "a thread that has posted is in the queue until it is woken"]
pub(crate) struct Asleep {
    queue: Arc<Queue>,
    key: (Gfn, u64),
    bell: Arc<Condvar>,
}

impl Queue {
    /// Posts an event of this thread.
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

    /// Wakes who sleeps on `pages`.
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

    /// See [`UserFaults::read`](super::UserFaults::read).
    pub(crate) fn read(&self, timeout: Option<Duration>) -> Result<UserFault, NoFault> {
        // A time that the clock cannot say is never.
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

    /// Sends readers away. Nothing is registered any more, so no thread sleeps and no event is unread.
    pub(crate) fn close(&self) {
        self.inner.lock().closed = true;
        self.readers.notify_all();
    }

    /// Sleepers, and events unread.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        (inner.sleepers.len(), inner.unread.len())
    }
}

impl Asleep {
    /// Sleeps until it is woken. The caller holds no lock.
    pub(crate) fn sleep(self, _idle: &mut Idle) {
        let mut inner = self.queue.inner.lock();
        while inner.sleepers.contains_key(&self.key) {
            self.bell.wait(&mut inner);
        }
    }
}

/// Which faults of a range are to be served.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Serve {
    /// [`FaultKind::Missing`].
    Missing,
    /// [`FaultKind::Minor`].
    Minor,
    /// All of them.
    Both,
}

/// A mapping's registration.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    pub(super) queue: Arc<Queue>,
    pub(super) what: Serve,
}

impl Served {
    /// Wakes who sleeps on `pages`.
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
