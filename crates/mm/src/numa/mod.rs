//! NUMA balancing: moves pages to the nodes that use them.
//!
//! ```text
//!            scan                            access                       again from the same node
//!  mapped ─────────▶ protnone ─────────▶ hint fault ─────▶ mapped, or ──────────────▶ moved there
//!          notifies secondary MMUs       from which node?  protnone at the next scan
//! ```
//! | file | contents |
//! |---|---|
//! | `scan`, `scanner` | the scan, round and round an address space; a thread that scans |
//! | `settings` | settings, with the policies |
//! | `policy` | how secondary MMUs are notified, and the cost for guests |
//! | `hint` | hint faults, and which pages move |
//!
//! The scanner skips pages that may not or should not move: shared, merged and pinned pages ([`crate::pin`]),
//! file pages, mappings without access, and pages that are protnone already ([`Skip`]).
//!
//! **Guarantees**: contents and permissions do not change. After a scan no thread uses a page that it made
//! protnone without a hint fault. A scan neither unmaps nor flushes a page that was pinned before, except under
//! [`Policy::Range`].

mod hint;
mod policy;
mod scan;
mod scanner;
mod settings;

pub use scan::Balancer;
pub use scanner::Scanner;
pub use settings::{Policy, Settings};
