//! Samples of a run for its watchers.
//!
//! ```text
//! vCPU threads ──▶ live: a line of counters each ─┐
//! the dirty log ─▶ live: pages written ───────────┤
//! engine, LRU ───▶ sums of their own counters ────┼──▶ sampler ──▶ Sample ──▶ this terminal, or a socket
//! tables, LRU ───▶ heat: time of last use ────────┘
//! ```
//! | file | contents |
//! |---|---|
//! | `heat` | a map of guest memory in use; each look scans a few regions, so it is short |
//! | `sampler` | a sample of all of these, when a watcher asks |
//!
//! **Cost.** Without a watcher: an uncontended lock per batch of accesses. A watcher's own thread sums the counters
//! and walks the tables without a lock. The guest pays for cleared Accessed bits: after each sample its TLBs are
//! flushed, as after an aging pass, a few times per second. Where an LRU ages the guest's pages, the watcher reads
//! the LRU and clears nothing.

mod heat;
mod sampler;

pub use sampler::Sampler;
