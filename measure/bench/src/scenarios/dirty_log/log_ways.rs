//! The ways to log: those of slat, and the one before them; `vcpus.rs` has their steps, which the tests time.
//!
//! | | enable | get | clear |
//! |---|---|---|---|
//! | before | large pages zapped, small ones write-protected | each leaf write-protected; bits copied | |
//! | auto | split; each page tracked | harvest: bits taken, those pages tracked again | |
//! | manual | all is dirty, nothing tracked | bits copied | split; what is cleared is tracked |
//! | ring | as auto | harvest of what is left: a full ring was emptied at once | |
//!
//! When the log is disabled large pages come back in place; before, all of the slot is zapped, and faults bring it back.
//!
//! **Before** stands behind one mutex, goes leaf by leaf over whole slots, and flushes once for each step. It has slat's
//! bitmap; what it takes to clear its bits, after the leaves have been protected, is not charged.

use super::logged_vm;
use super::logged_vm::Pages;
use super::name_of;
use crate::scenarios::threads_prelude::*;
use slat::{RingSize, Splitting};

/// How a VM logs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Before,
    Auto(Track),
    Manual(Track),
    Ring(RingSize),
}

/// The preparation of large pages before a log begins or ends: a missing page is neither split nor made large in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Zap {
    Nothing,
    /// Each entry of a slot, and one flush.
    Entries,
    /// The entries of each 2 MiB are zapped, and its table is; then the next.
    TableByTable,
    /// All tables of a slot are unhooked, and flushed once.
    AtOnce,
}

/// A way, when it splits large pages, and what it does beside the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entrant {
    pub way: Way,
    pub splitting: Splitting,
    pub lock: MmuLock,
    pub zap_to_enable: Zap,
    pub zap_to_disable: Zap,
}

impl Entrant {
    /// The way as slat ships it, or as it was before.
    pub fn new(way: Way, splitting: Splitting) -> Self {
        let (lock, zap) = match way {
            Way::Before => (MmuLock::Exclusive, Zap::Entries),
            _ => (MmuLock::None, Zap::Nothing),
        };
        Self { way, splitting, lock, zap_to_enable: zap, zap_to_disable: zap }
    }

    pub fn name(self) -> String {
        match self.way {
            Way::Before => "before".into(),
            Way::Auto(track) => name_of(track).into(),
            Way::Manual(track) => format!("manual, {}", name_of(track)),
            Way::Ring(_) => "ring".into(),
        }
    }

    /// Whether the first harvest may tell of pages that were not written since the log began: all of a fresh log that
    /// says so, all of a large page that was written before it was split.
    pub fn first_may_be_spurious(self, size: Level) -> bool {
        match self.way {
            Way::Manual(_) => true,
            Way::Auto(track) => track == Track::DirtyBits && size > Level::K4,
            Way::Before | Way::Ring(_) => false,
        }
    }

    /// A VM for it, on pages of `size`.
    pub fn builder(self, size: Level, vcpus: u32) -> Builder<Ept4, Pages> {
        self.builder_on(logged_vm::host(size), vcpus)
    }

    /// The same on this host.
    pub fn builder_on(self, host: Pages, vcpus: u32) -> Builder<Ept4, Pages> {
        let log = match self.way {
            // Then the log begins without touching a leaf: what is done to them is done beside it.
            Way::Before => DirtyLog::bitmap().initially_set(),
            Way::Auto(track) => DirtyLog::bitmap().track(track),
            Way::Manual(track) => DirtyLog::bitmap().track(track).initially_set(),
            Way::Ring(size) => DirtyLog::ring(size),
        };
        let builder = Vm::builder(host).vcpus(vcpus).baseline(Baseline::NONE.mmu_lock(self.lock));
        builder.dirty_log(log.splitting(self.splitting))
    }
}
