//! What the watchers of a run are told, while it goes on.
//!
//! ```text
//! vCPU threads ──▶ live: a line of counters each ─┐
//! the dirty log ─▶ live: pages written ───────────┤
//! engine, LRU ───▶ sums of their own counters ────┼──▶ sampler ──▶ Sample ──▶ this terminal, or a socket
//! tables, LRU ───▶ heat: what was used, and when ─┘
//! ```
//! | file | idea |
//! |---|---|
//! | `live` | what the threads of a run publish; each writes to lines of its own |
//! | `heat` | which guest memory is in use: a few regions at each look, so that no look takes long |
//! | `sampler` | all of it put together, when a watcher asks |
//!
//! **What it costs the run.** Without a watcher, some plain stores for each batch of accesses. A watcher's own thread does the
//! rest: sums, and a walk that takes no lock. The guest pays for Accessed bits that are cleared: after each sample its TLBs
//! forget, as after any aging pass, and are filled again, a few times a second. Where an LRU ages the guest's pages, the
//! watcher asks the LRU, and nothing is cleared.

mod heat;
mod live;
mod sampler;

pub use live::{Live, VcpuLive, Watching};
pub use sampler::{Sampler, Samples};
