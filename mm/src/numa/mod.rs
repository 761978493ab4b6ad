//! NUMA balancing: pages move to where they are used.
//!
//! ```text
//!            scan                            access                       again from the same node
//!  mapped ─────────▶ protnone ─────────▶ hint fault ─────▶ mapped, or ──────────────▶ moved there
//!          secondary MMUs are told     which node asks?    protnone at the next scan
//! ```
//! | file | idea |
//! |---|---|
//! | `node`, `pool` | where a thread runs; the free frames of a node |
//! | `scan`, `scanner` | round and round through the address space; a thread that does it |
//! | `policy` | how the secondary MMUs are told, and what that costs guests |
//! | `hint` | who asked for the page, and whether it moves |
//! | `stats` | what came of it |
//!
//! The scanner leaves alone what may not or should not move: shared and merged pages, pinned ones
//! ([`crate::pin`]), files' own, mappings without access, and what is protnone already ([`Skip`]).
//!
//! **What it promises**: contents and permissions stay; when a scan is over, no thread uses a page that it
//! made protnone without a hint fault; a page that was pinned before a scan is neither unmapped nor flushed by it, except
//! under [`Policy::Range`].

mod hint;
mod node;
mod policy;
mod pool;
mod scan;
mod scanner;
mod stats;
mod zones;

pub use node::Node;
pub use policy::Policy;
pub use scan::Balancer;
pub use scanner::Scanner;
pub use stats::{NumaStats, Skip};

pub(crate) use node::real_nodes;
pub use pool::ListStats;

pub(crate) use pool::NodeFrames;
pub(crate) use stats::Counters;

use std::time::Duration;

/// How to balance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// How secondary MMUs are told.
    pub policy: Policy,
    /// Bytes of mapped addresses for each scan of a [`Scanner`]; 256 MiB, as in Linux.
    pub scan_bytes: u64,
    /// Time between two scans of a [`Scanner`]; 1 s, the least of Linux.
    pub period: Duration,
    /// Bytes that [`Policy::PageBatched`] handles in one notification with one flush, in whole 2 MiB; 16 MiB. Faults in
    /// the stretch that is being handled wait for its end.
    pub stretch: u64,
}

impl Default for Settings {
    fn default() -> Self {
        let policy = Policy::default();
        Self { policy, scan_bytes: 256 << 20, period: Duration::from_secs(1), stretch: 16 << 20 }
    }
}
