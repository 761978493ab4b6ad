//! A fault of a guest, and the result of a try to answer it.

use crate::uffd::abi::{self, Message};
use std::time::{Duration, Instant};

/// The reason why an access waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// There is no page.
    Missing,
    /// The page is in the shared memory, and not in the page table.
    Minor,
    /// The page is protected against writes.
    Protected,
    /// There was no page, and then there was one, or no memory for it.
    Unclear,
}

/// An access that waits for its page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fault {
    /// Address of its page.
    pub address: u64,
    pub kind: Kind,
    /// The access is a write.
    pub write: bool,
    /// Time at which the fault was read.
    pub since: Instant,
    /// The fault needs the store.
    pub slow: bool,
    /// Time of the next try, and number of times that the store did not answer.
    pub due: Instant,
    pub failures: u32,
    /// The fault is among those that wait.
    pub waits: bool,
}

impl Fault {
    pub(super) fn new(message: &Message, since: Instant, page_size: u64) -> Self {
        let [flags, address, _] = message.words;
        let address = address / page_size * page_size;
        let has = |flag| flags & flag != 0;
        let kind = match () {
            () if has(abi::FAULT_WP) => Kind::Protected,
            () if has(abi::FAULT_MINOR) => Kind::Minor,
            () => Kind::Missing,
        };
        let write = has(abi::FAULT_WRITE);
        Self { address, kind, write, since, slow: false, due: since, failures: 0, waits: false }
    }
}

/// Result of a fault.
pub(super) enum Answer {
    /// The page is there, or was, and the fault's time is recorded.
    Done,
    /// No page to fill: the address is not the guest's, or is not mapped any more.
    Ignored,
    /// The guest's memory changes: try again after the event is read.
    Again,
    /// There is a page, or no memory for one: wake the waiting thread in a moment.
    Unclear,
    /// The fault needs the store, and this thread must not wait for it.
    Elsewhere,
    /// The store did not return the content.
    NoContent,
    /// The guest's process has ended.
    Gone,
}

/// Pause of a fault that met a change of the guest's memory: about the duration of such a change.
pub(super) const CHANGE: Duration = Duration::from_micros(50);
