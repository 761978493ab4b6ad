//! The multi-gen LRU: which pages are cold, and making room by them (after the MGLRU aging series).
//!
//! ```text
//!    a fault                     in use at the next pass, or when it was about to go
//!      │                      ┌────────────────────────────────────────────────┐
//!      ▼                      │                                                ▼
//! [ youngest ]  a pass ▶ [ one older ]  a pass ▶ [ … ]  a pass ▶ [ oldest ] ▶ asked once more ▶ swap
//!      ▲                                                                                       │
//!      └───────────────────────────── a fault, and how it was used ────────────────────────────┘
//! ```
//! | file | idea |
//! |---|---|
//! | `generations` | how many there are, how old, how many pages in each |
//! | `region`, `young` | what is remembered of a page: a word beside its entry; which of 512 were in use |
//! | `track` | what the address space says: pages come, go, move |
//! | `aging`, `bloom` | a pass over Accessed bits; what it passes over |
//! | `evict`, `hand`, `tiers` | the coldest go; which are looked at next; which are spared though they are old |
//! | `fork_family` | what forks share goes from all of them |
//! | `limit`, `charge` | what counts towards the limit; a fault that makes room |
//! | `backoff` | where nothing can go, it is not looked for again and again |
//! | `evictor` | threads that make room ahead of need |
//!
//! **Who is asked.** What a guest uses it uses through a secondary MMU; this address space's own table hears of it once, at
//! the fault. So a pass asks every secondary MMU that can answer about many pages at once
//! ([`ages`](slat::SecondaryMmu::ages)), without a lock; others are passed over. Before a page goes all of them are asked about
//! it. [`LruSettings::walk_secondary`] leaves the first of these out, as the kernel did.
//!
//! **What it promises.** Bits are hints: a page that is taken for cold is brought back by the next access, with what it
//! held. Nothing that is pinned or merged is evicted. Each page that is there is in one generation, and the sums
//! are exact. The thread that takes memory keeps the limit; where nothing can be evicted its access fails, and
//! nothing else.
//! Where one thread uses an address space, the same accesses evict the same pages.
//!
//! **What it costs** a fault: a lock of this thread's own, a look at an ordered map, a store: some tens of nanoseconds; and
//! 8 bytes for each page of regions in use. An address space without an LRU pays a branch at each of these places.

mod aging;
mod backoff;
mod bloom;
mod charge;
mod error;
mod evict;
mod evictor;
mod fork_family;
mod generations;
mod hand;
mod limit;
mod region;
mod stats;
mod tiers;
mod track;
mod wakeup;
mod young;

pub use error::LruError;
pub use evictor::Evictor;
pub use stats::LruStats;

pub(crate) use backoff::ReclaimState;
pub(crate) use fork_family::ForkFamily;
pub(crate) use generations::Kind;

use crate::numa::Node;
use crate::pte::{hva_of, page_of};
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

/// How to tell cold pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LruSettings {
    /// Whether an aging pass asks the secondary MMUs, too (those that can be asked about many pages at once). Where it
    /// does not, what guests use looks idle until it is about to be evicted.
    pub walk_secondary: bool,
    /// Whether a pass looks at the pages at all; else a new generation begins without a look at any page, and only eviction looks.
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

/// The LRU of an [`AddressSpace`](crate::AddressSpace) that was [built with one](crate::AddressSpaceBuilder::lru).
pub struct Lru {
    settings: RwLock<LruSettings>,
    generations: Generations,
    regions: Regions,
    filters: Filters,
    tiers: Tiers,
    /// Held by who makes a pass.
    walker: Mutex<()>,
    /// Where eviction goes on, for each node and kind.
    hands: Box<[[Mutex<Gfn>; 2]]>,
    charge: Charge,
    /// What an evictor is told.
    wakeup: EvictorWakeup,
    backoff: Backoff,
    /// Held for reading by who needs room, for writing by who found none and will not believe it yet.
    reclaimers: RwLock<()>,
    counters: Counters,
    on_evict: RwLock<Option<OnEvict>>,
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

    /// The generations of each node of the arena. Exact where no thread changes them meanwhile.
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

    /// Tells `seen` the generation of each page of `hvas` that is there, in order. Reads words that faults and passes write
    /// meanwhile: each is what it was at some moment. Does not wait.
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
