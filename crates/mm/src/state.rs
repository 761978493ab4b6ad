//! The listeners of an address space, and the right to read the mappings, as held by an operation that
//! notifies.
//!
//! A notification must find the same listeners from its beginning to its end, so **registering waits for
//! changes in progress**. Each shard of threads has a reader-writer lock and a copy of the listeners. An
//! operation takes its own shard's lock, registering takes all. So operations share no cache line.

use crate::listeners::Listeners;
use crate::mappings::Mappings;
use crate::prim::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::shards::Shards;
use crate::vmas::Vmas;
use std::ops::Deref;

/// The state that a reader keeps unchanged.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) listeners: Listeners,
}

/// The mappings, and the listeners in several copies.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) mappings: Mappings,
    states: Shards<RwLock<State>>,
}

/// The listeners, locked for reading. A thread holds at most one.
pub(crate) struct Reading<'a> {
    state: RwLockReadGuard<'a, State>,
    mappings: &'a Mappings,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self { mappings: Mappings::new(), states: Shards::new() }
    }

    /// Locks the listeners for reading. Waits while a listener is registered or unregistered.
    pub(crate) fn read(&self) -> Reading<'_> {
        Reading { state: self.states.mine().read(), mappings: &self.mappings }
    }

    /// Locks the listeners for reading if that needs no wait.
    pub(crate) fn try_read(&self) -> Option<Reading<'_>> {
        Some(Reading { state: self.states.mine().try_read()?, mappings: &self.mappings })
    }

    /// Locks all copies of the listeners for writing. Waits for changes in progress.
    pub(crate) fn write(&self) -> Vec<RwLockWriteGuard<'_, State>> {
        self.states.iter().map(RwLock::write).collect()
    }

    /// Whether each earlier reader has released its lock, as far as is known without waiting.
    pub(crate) fn is_outlasted(&self) -> bool {
        self.states.iter().all(|state| state.try_write().is_some())
    }

    /// Whether the address space has exited.
    pub(crate) fn exited(&self) -> bool {
        self.mappings.exited()
    }
}

impl Reading<'_> {
    /// Returns the current version of the mappings. Without a page lock, newer versions may be published at any
    /// time.
    pub(crate) fn vmas(&self) -> Vmas<'_> {
        // SAFETY: what is replaced while the listeners are locked is freed later: see `crate::mappings`.
        unsafe { self.mappings.read() }
    }
}

impl Deref for Reading<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        &self.state
    }
}
