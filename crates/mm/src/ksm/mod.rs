//! KSM, kernel same-page merging: pages with equal contents, in one or more address spaces, become one frame
//! without write permission. A thread that writes gets a copy.
//!
//! | file | contents |
//! |---|---|
//! | `advise` | which mappings take part |
//! | `settings` | how much is scanned, and how often a frame may be shared |
//! | `scan` | the scan, page by page; the unstable tree |
//! | `items` | the state of each page between passes: the checksum gate |
//! | `contents` | checksums and comparisons |
//! | `stable` | the shared frames, and why they never change |
//! | `merge` | write-protect, compare, replace: one page becomes a share |
//! | `scanner` | a thread that scans |
//! | `stats` | statistics |
//!
//! **Guarantee**: reads and writes do not reveal a merge. A page is replaced by one with the same bytes while
//! no thread can write to either. A thread that writes afterwards writes to its own copy. Secondary MMUs get
//! both steps with their own reasons: a write protection ([`Reason::WriteProtect`]) and a change of the entry
//! ([`Reason::ChangePte`](slat::Reason::ChangePte)). So a guest that only reads does not fault.
//!
//! **The locks**: the scan's lock comes before all locks of [`crate::space`]. Code that an address space calls
//! does not take it.
//!
//! [`Reason::WriteProtect`]: slat::Reason::WriteProtect
//!
//! **Up to 64 pages are merged together**, or as many as [`KsmBuilder::merge_together`] says: neighbours, or,
//! if all listeners accept changes page by page, pages of one region with gaps. Together they cost two
//! notifications and two flushes.

mod advise;
mod contents;
mod items;
mod merge;
mod scan;
mod scanner;
mod settings;
mod stable;
mod stats;

pub use advise::Advice;
pub use scanner::Scanner;
pub use settings::KsmBuilder;
pub use stats::KsmStats;

use crate::arena::Arena;
use crate::error::MmError;
use crate::space::AddressSpace;
use parking_lot::Mutex;
use scan::Scan;
use settings::{Settings, within};
use slat::Idle;
use std::sync::Arc;

/// Merges equal pages of several address spaces; see the example of [`AddressSpace::madvise`]. Dropping it ends
/// the merging; merged pages stay shared until they are written, as after a fork.
#[derive(Debug)]
pub struct Ksm {
    arena: Arc<Arena>,
    settings: Settings,
    scan: Mutex<Scan>,
}

impl KsmBuilder {
    /// Builds KSM on this arena, without address spaces to scan.
    pub fn build(self) -> Result<Arc<Ksm>, MmError> {
        let Settings { pages_to_scan, max_page_sharing, merge_together, .. } = self.settings;
        within("pages_to_scan", pages_to_scan, 1..=u64::MAX)?;
        within("max_page_sharing", max_page_sharing.into(), 2..=1 << 24)?;
        within("merge_together", merge_together.into(), 1..=512)?;
        Ok(Arc::new(Ksm::new(self)?))
    }
}

impl Ksm {
    /// Starts building KSM for the frames of `arena`.
    pub fn builder(arena: &Arc<Arena>) -> KsmBuilder {
        KsmBuilder::new(arena)
    }

    fn new(builder: KsmBuilder) -> Result<Self, MmError> {
        let KsmBuilder { arena, settings } = builder;
        let scan = Mutex::new(Scan::new(arena.clone(), settings)?);
        Ok(Self { arena, settings, scan })
    }

    /// Scans `space` from now on, until it is dropped. Forks must be added themselves. Only
    /// [advised](Advice::Mergeable) mappings take part.
    pub fn add(&self, space: &Arc<AddressSpace>) -> Result<(), MmError> {
        if !Arc::ptr_eq(space.arena(), &self.arena) {
            return Err(MmError::ForeignSpace);
        }
        self.scan.lock().add(space);
        Ok(())
    }

    /// Scans up to `pages` further pages, and returns how many were merged. Stops at the end of a pass over all
    /// address spaces; `u64::MAX` scans the rest of the pass. May sleep. Pages that cannot be merged for lack
    /// of memory stay.
    pub fn scan(&self, idle: &mut Idle, pages: u64) -> u64 {
        self.scan.lock().scan(idle, pages)
    }

    /// Returns the counts so far. Waits for a scan to end.
    pub fn stats(&self) -> KsmStats {
        self.scan.lock().stats()
    }
}
