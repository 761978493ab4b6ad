//! KSM, kernel same-page merging: pages with the same contents, in any of several address spaces, become one frame
//! without write permission. A thread that writes gets a copy again.
//!
//! | file | idea |
//! |---|---|
//! | `advise` | which mappings take part |
//! | `settings` | how much is scanned, and what may be shared how often |
//! | `scan` | page after page, and what becomes of each; the unstable tree |
//! | `items` | what is remembered of a page between passes: the checksum gate |
//! | `contents` | checksums, comparisons |
//! | `stable` | the frames that are shared, and why they never change |
//! | `merge` | write-protect, compare, replace: one page becomes a share |
//! | `scanner` | a thread that scans |
//! | `stats` | what has been found |
//!
//! **The promise**: a program cannot find out by reading and writing. A page is replaced by one with the same bytes at a
//! moment when no thread can write to either. A thread that writes afterwards writes to a copy of its own. Secondary MMUs are told
//! of the two steps for what they are, a write protection and a change of the entry ([`Why::WriteProtect`],
//! [`Why::ChangePte`](slat::Why::ChangePte)), so that a guest that only reads notices nothing at all.
//!
//! **The locks**: the scan's own is above all of [`crate::space`]'s. Code that an address space calls does not
//! take it.
//!
//! [`Why::WriteProtect`]: slat::Why::WriteProtect
//!
//! **Up to 64 pages are merged together**, or as many as [`KsmBuilder::merge_together`] says: neighbours, or pages of one region with
//! gaps where all listeners take changes page by page. Two notifications and two flushes for all of them.

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
#[doc(hidden)]
pub use merge::Sabotage;
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

/// See the module's header; [`AddressSpace::madvise`] has an example. Dropping it ends the merging; what is merged
/// stays shared until it is written, as after a fork.
#[derive(Debug)]
pub struct Ksm {
    arena: Arc<Arena>,
    settings: Settings,
    scan: Mutex<Scan>,
}

impl KsmBuilder {
    /// KSM on this arena, with no address space to scan yet.
    pub fn build(self) -> Result<Arc<Ksm>, MmError> {
        let Settings { pages_to_scan, max_page_sharing, merge_together, .. } = self.settings;
        within("pages_to_scan", pages_to_scan, 1..=u64::MAX)?;
        within("max_page_sharing", max_page_sharing.into(), 2..=1 << 24)?;
        within("merge_together", merge_together.into(), 1..=512)?;
        Ok(Arc::new(Ksm::new(self)?))
    }
}

impl Ksm {
    /// Starts setting it up for the frames of `arena`.
    pub fn builder(arena: &Arc<Arena>) -> KsmBuilder {
        KsmBuilder::new(arena)
    }

    fn new(builder: KsmBuilder) -> Result<Self, MmError> {
        let KsmBuilder { arena, settings } = builder;
        let scan = Mutex::new(Scan::new(arena.clone(), settings)?);
        Ok(Self { arena, settings, scan })
    }

    /// From now on `space` is scanned too, until it is dropped; its forks only if they are added. Only
    /// mappings that are [advised](Advice::Mergeable) take part.
    pub fn add(&self, space: &Arc<AddressSpace>) -> Result<(), MmError> {
        if !Arc::ptr_eq(space.arena(), &self.arena) {
            return Err(MmError::ForeignSpace);
        }
        self.scan.lock().add(space);
        Ok(())
    }

    /// Looks at up to `pages` pages more, and returns how many were merged. Ends early where a pass over all address
    /// spaces ends: `u64::MAX` is the rest of this one. May sleep. What cannot be merged for want of memory stays.
    pub fn scan(&self, idle: &mut Idle, pages: u64) -> u64 {
        self.scan.lock().scan(idle, pages)
    }

    /// Starts a thread that scans as the settings say.
    pub fn start(self: &Arc<Self>) -> Result<Scanner, MmError> {
        Scanner::start(self)
    }

    /// What it has found so far. Waits for a scan to end.
    pub fn stats(&self) -> KsmStats {
        self.scan.lock().stats()
    }
}
