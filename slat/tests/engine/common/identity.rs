//! A host whose frame is the address, with switches for its answers. One type for many tests: each host's type compiles
//! a whole engine.

use slat::*;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

/// Answers at once that each page is 4 KiB and writable, unless switched.
#[derive(Default, Debug)]
pub struct Identity {
    /// Added to each frame's number: shows a question after the host has moved its pages.
    pub shift: AtomicU64,
    /// The number of the level that it offers; 0 is [`Level::K4`].
    level: AtomicU8,
    /// Its pages are read-only, until it is asked to resolve a store.
    pub readonly: AtomicBool,
    /// It does not answer [`Host::lookup`].
    pub sleeps: AtomicBool,
    /// Number of questions without sleeping.
    pub looked: AtomicU64,
    /// Number of questions where it may sleep.
    pub resolved: AtomicU64,
}

impl Identity {
    /// A host with pages of `level`.
    pub fn of(level: Level) -> Self {
        let host = Self::default();
        host.offer(level);
        host
    }

    /// A host that answers only where it may sleep.
    pub fn sleeping() -> Self {
        Self { sleeps: AtomicBool::new(true), ..Self::default() }
    }

    /// Sets the level of its pages.
    pub fn offer(&self, level: Level) {
        self.level.store(level.number(), SeqCst);
    }

    fn page(&self, hva: Hva) -> HostPage {
        HostPage {
            pfn: Pfn((hva.0 >> PAGE_SHIFT) + self.shift.load(SeqCst)),
            level: Level::new(self.level.load(SeqCst)).unwrap_or(Level::K4),
            writable: !self.readonly.load(SeqCst),
            ..HostPage::PLAIN
        }
    }
}

impl Host for Identity {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        self.looked.fetch_add(1, Relaxed);
        (!self.sleeps.load(SeqCst)).then(|| self.page(hva))
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.resolved.fetch_add(1, SeqCst);
        if access == Access::Write {
            self.readonly.store(false, SeqCst); // made writable in place
        }
        Ok(self.page(hva))
    }
}
