//! The multi-gen LRU: finds cold pages and evicts them (after the MGLRU aging series).
//!
//! ```text
//!    a fault                     accessed, as a pass or eviction finds
//!      │                      ┌────────────────────────────────────────────────┐
//!      ▼                      │                                                ▼
//! [ youngest ]  a pass ▶ [ one older ]  a pass ▶ [ … ]  a pass ▶ [ oldest ] ▶ asked once more ▶ swap
//!      ▲                                                                                       │
//!      └───────────────────────────── a fault; the page keeps its tier ────────────────────────┘
//! ```
//! | file | contents |
//! |---|---|
//! | `generations` | numbers, ages and page counts of generations |
//! | `region`, `young` | the word that the LRU stores for each page; a set of accessed pages of one region |
//! | `marks` | the words of pages that come, go, move |
//! | `bloom` | the regions that an aging pass skips |
//! | `hand`, `tiers` | the pages that eviction looks at next; the old pages that it spares |
//! | `fork_family` | address spaces related by forks, from all of which a shared page is evicted |
//! | `charge` | the memory that counts towards the limit |
//! | `backoff` | refusing reclaims at once while none can succeed |
//! | `wakeup` | how a fault wakes the threads that make room ahead of need |
//!
//! Passes and evictions walk an address space: [`crate::reclaim`].
//!
//! **Whose Accessed bits count.** A guest accesses memory through a secondary MMU; the primary table sees only
//! its first fault. So a pass asks, without a lock, every secondary MMU that answers about many pages at once
//! ([`ages`](slat::SecondaryMmu::ages)), and skips others. Eviction asks all of them before a page goes. With
//! [`LruSettings::walk_secondary`] off, a pass asks none, as in the kernel.
//!
//! **Guarantees.** Accessed bits are hints: the next access to an evicted page brings it back with its
//! contents. Pinned and merged pages are not evicted. Each present page is in one generation, and the sums are
//! exact. The thread that takes memory enforces the limit; if nothing can be evicted, only its access fails.
//! With one thread, the same accesses evict the same pages.
//!
//! **Cost** to a fault: a per-thread lock, a lookup in an ordered map, and a store: some tens of nanoseconds.
//! Each page of a region in use takes 8 bytes. Without an LRU each of these places costs a branch.

mod backoff;
pub(crate) mod bloom;
mod charge;
mod error;
pub(crate) mod fork_family;
pub(crate) mod generations;
mod hand;
pub(crate) mod marks;
pub(crate) mod region;
pub(crate) mod stats;
pub(crate) mod tiers;
mod wakeup;
pub(crate) mod young;

pub use error::LruError;
pub use stats::LruStats;

pub(crate) use backoff::ReclaimState;
pub(crate) use fork_family::ForkFamily;
pub(crate) use generations::Kind;

use crate::nodes::Node;
use crate::pages::{hva_of, page_of};
use backoff::Backoff;
use bloom::Filters;
use charge::Charge;
use generations::Generations;
use parking_lot::{Mutex, RwLock};
use region::Regions;
use slat::{Gfn, Hva, Level, Span};
use stats::Counters;
use std::fmt;
use std::time::Duration;
use tiers::Tiers;
use wakeup::EvictorWakeup;

/// Settings of an LRU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LruSettings {
    /// Whether an aging pass also asks the secondary MMUs that answer about many pages at once. Otherwise pages
    /// that guests use look idle until eviction asks.
    pub walk_secondary: bool,
    /// Whether a pass scans pages. Otherwise it only begins a new generation, and only eviction looks at pages.
    pub walk_pages: bool,
    /// Whether a pass flushes TLBs afterwards, so that the next access to a cached page sets its Accessed bit.
    pub flush: bool,
    /// Age below which pages are not evicted; memory runs out instead. Zero turns this off.
    pub min_ttl: Duration,
    /// Preference for evicting anonymous pages over file pages, 0 to 200. 0 evicts files only; 201 evicts
    /// anonymous pages only.
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
    /// The generations, oldest first.
    pub generations: Vec<Generation>,
}

/// One generation: pages that were last found accessed between two aging passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Generation {
    /// Number of the generation; the youngest has the highest.
    pub seq: u64,
    /// Time since it began.
    pub age: Duration,
    /// Number of anonymous pages.
    pub anon: u64,
    /// Number of file pages.
    pub file: u64,
}

type OnEvict = Box<dyn Fn(Hva) + Send + Sync>;

/// The LRU of an [`AddressSpace`](crate::AddressSpace) that was [built with one](crate::AddressSpaceBuilder::lru).
pub struct Lru {
    pub(crate) settings: RwLock<LruSettings>,
    pub(crate) generations: Generations,
    pub(crate) regions: Regions,
    pub(crate) filters: Filters,
    pub(crate) tiers: Tiers,
    /// Held by the thread that makes a pass.
    pub(crate) walker: Mutex<()>,
    /// Position of eviction, for each node and kind.
    pub(crate) hands: Box<[[Mutex<Gfn>; 2]]>,
    pub(crate) charge: Charge,
    pub(crate) wakeup: EvictorWakeup,
    pub(crate) backoff: Backoff,
    /// Held for reading by reclaimers; for writing by a reclaimer that found no page, to wait for the others.
    pub(crate) reclaimers: RwLock<()>,
    pub(crate) counters: Counters,
    pub(crate) on_evict: RwLock<Option<OnEvict>>,
}

impl fmt::Debug for Lru {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lru").field("settings", &self.settings()).field("stats", &self.stats()).finish()
    }
}

impl Lru {
    pub(crate) fn new(settings: LruSettings, limit: Option<u64>, nodes: u8) -> Self {
        Self {
            settings: RwLock::new(settings),
            generations: Generations::new(nodes),
            regions: Regions::new(),
            filters: Filters::new(),
            tiers: Tiers::default(),
            walker: Mutex::new(()),
            hands: (0..nodes).map(|_| Default::default()).collect(),
            charge: Charge::new(limit),
            wakeup: EvictorWakeup::default(),
            backoff: Backoff::default(),
            reclaimers: RwLock::new(()),
            counters: Counters::new(),
            on_evict: RwLock::default(),
        }
    }

    /// Returns the generations of each node of the arena. Exact if no thread changes them meanwhile.
    pub fn generations(&self) -> Vec<NodeGenerations> {
        let of = &self.generations;
        let node = |node| {
            let oldest = Kind::ALL.map(|kind| of.min_seq(node, kind));
            let pages = |kind, seq| {
                if seq < oldest[kind as usize] { 0 } else { of.pages(node, kind, seq) }
            };
            let generation = |seq| Generation {
                seq,
                age: of.age(seq),
                anon: pages(Kind::Anon, seq),
                file: pages(Kind::File, seq),
            };
            let first = oldest[0].min(oldest[1]);
            NodeGenerations { node, generations: (first..=of.max_seq()).map(generation).collect() }
        };
        of.nodes().map(node).collect()
    }

    /// Calls `seen` with the generation of each present page of `hvas`, in order. Faults and passes may write
    /// meanwhile: each value held at some moment. Does not wait.
    pub fn for_each_page(&self, hvas: Span<Hva>, mut seen: impl FnMut(Hva, u64)) {
        let mut at = page_of(hvas.start).base(Level::M2);
        while let Some((first, region)) = self.regions.next(at).filter(|(first, _)| hva_of(*first) < hvas.end)
        {
            at = first + Level::M2.pages();
            let marks = (0..region::PAGES)
                .filter_map(|index| Some((hva_of(first + index as u64), region.get(index)?)));
            for (hva, mark) in marks.filter(|(hva, _)| hvas.contains(*hva)) {
                seen(hva, mark.seq.max(self.generations.min_seq(mark.node, mark.kind)));
            }
        }
    }

    /// Returns the event counts so far.
    pub fn stats(&self) -> LruStats {
        self.counters.sum()
    }

    /// Returns the current settings.
    pub fn settings(&self) -> LruSettings {
        self.settings.read().clone()
    }

    /// Replaces the settings, from the next pass or eviction on.
    pub fn set(&self, settings: LruSettings) {
        *self.settings.write() = settings;
    }

    /// Sets whether passes ask the secondary MMUs.
    pub fn set_walk_secondary(&self, on: bool) {
        self.settings.write().walk_secondary = on;
    }

    /// Calls `seen` during each later eviction of a page: for measurements.
    #[doc(hidden)]
    pub fn on_evict(&self, seen: Box<dyn Fn(Hva) + Send + Sync>) {
        *self.on_evict.write() = Some(seen);
    }
}
