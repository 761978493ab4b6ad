//! NUMA balancing: moves pages to the nodes that use them.
//!
//! ```text
//!            scan                            access                       again from the same node
//!  mapped ─────────▶ protnone ─────────▶ hint fault ─────▶ mapped, or ──────────────▶ moved there
//!          notifies secondary MMUs       from which node?  protnone at the next scan
//! ```
//! | file | contents |
//! |---|---|
//! | `node`, `pool`, `zones` | the node of a thread; the free frames of a node |
//! | `scan`, `scanner` | the scan, round and round an address space; a thread that scans |
//! | `policy` | how secondary MMUs are notified, and the cost for guests |
//! | `hint` | hint faults, and which pages move |
//! | `stats` | statistics |
//!
//! The scanner skips pages that may not or should not move: shared, merged and pinned pages ([`crate::pin`]),
//! file pages, mappings without access, and pages that are protnone already ([`Skip`]).
//!
//! **Guarantees**: contents and permissions do not change. After a scan no thread uses a page that it made
//! protnone without a hint fault. A scan neither unmaps nor flushes a page that was pinned before, except under
//! [`Policy::Range`].

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

/// Settings of NUMA balancing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// How secondary MMUs are notified.
    pub policy: Policy,
    /// Bytes of mapped addresses that a [`Scanner`] scans per period; 256 MiB, as in Linux.
    pub scan_bytes: u64,
    /// Time between two scans of a [`Scanner`]; 1 s, Linux's minimum.
    pub period: Duration,
    /// Bytes that [`Policy::PageBatched`] covers by one notification and flush, in whole 2 MiB; 16 MiB by
    /// default. Faults in the current stretch wait for its end.
    pub stretch: u64,
}

impl Default for Settings {
    fn default() -> Self {
        let policy = Policy::default();
        Self { policy, scan_bytes: 256 << 20, period: Duration::from_secs(1), stretch: 16 << 20 }
    }
}
