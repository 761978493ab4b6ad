//! What an operation that notifies holds: the listeners, as they are, and with them the right to read the mappings.
//!
//! A thread that tells the secondary MMUs of a change must find the same listeners from its beginning to its end; and each of them
//! must be told. So **registering waits for changes in progress**. There is a reader-writer lock for each of a few threads, and
//! a copy of the listeners in each: an operation takes its own, and registering takes all of them. Operations share nothing.

use crate::listeners::Listeners;
use crate::mappings::Mappings;
use crate::prim::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::shards::Shards;
use crate::vmas::Vmas;
use std::ops::Deref;

/// What a reader holds still.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) listeners: Listeners,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) mappings: Mappings,
    states: Shards<RwLock<State>>,
}

/// The listeners, held. One at a time for each thread.
pub(crate) struct Reading<'a> {
    state: RwLockReadGuard<'a, State>,
    mappings: &'a Mappings,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self { mappings: Mappings::new(), states: Shards::new() }
    }

    /// Holds the listeners. Waits while one is registered.
    pub(crate) fn read(&self) -> Reading<'_> {
        Reading { state: self.states.mine().read(), mappings: &self.mappings }
    }

    /// The same, unless it would have to wait.
    pub(crate) fn try_read(&self) -> Option<Reading<'_>> {
        Some(Reading { state: self.states.mine().try_read()?, mappings: &self.mappings })
    }

    /// Holds all copies of the listeners, to change them. Waits for changes in progress.
    pub(crate) fn write(&self) -> Vec<RwLockWriteGuard<'_, State>> {
        self.states.iter().map(RwLock::write).collect()
    }

    /// Whether each reader of before has let go, as far as can be told without waiting.
    pub(crate) fn is_outlasted(&self) -> bool {
        self.states.iter().all(|state| state.try_write().is_some())
    }

    /// See [`Mappings::exited`].
    pub(crate) fn exited(&self) -> bool {
        self.mappings.exited()
    }
}

impl Reading<'_> {
    /// The mappings as they are now. They may change at any time, but under the page lock of an address.
    pub(crate) fn vmas(&self) -> Vmas<'_> {
        // SAFETY: what is replaced while the listeners are held is freed later: see `crate::mappings`.
        unsafe { self.mappings.read() }
    }
}

impl Deref for Reading<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        &self.state
    }
}
