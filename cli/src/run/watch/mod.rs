//! What somebody who watches a run is told, while it goes on.
//!
//! ```text
//! vCPU threads ──▶ live: a line of counters each ─┐
//! the dirty log ─▶ live: pages written ───────────┤
//! engine, LRU ───▶ sums of their own counters ────┼──▶ sampler ──▶ Sample ──▶ this terminal, or a socket
//! tables, LRU ───▶ heat: who was used, and when ──┘
//! ```
//! | file | idea |
//! |---|---|
//! | `live` | what the threads of a run publish; each writes to lines of its own |
//! | `heat` | which guest memory is in use: a few regions at each look, so that no look takes long |
//! | `sampler` | all of it put together, when somebody asks |
//!
//! **What it costs the run.** Where nobody watches, some plain stores for each batch of accesses. Whoever watches pays for
//! it with his own thread: sums, and a walk that takes no lock. The guest notices that Accessed bits are cleared and
//! that its TLBs are asked to forget, as after any aging pass: a few times a second, each a refill of its TLB. Where an LRU
//! ages the guest's pages by itself, it is the LRU that is asked, and nothing is cleared.

mod heat;
mod live;
mod sampler;

pub use live::{Live, VcpuLive, Watching};
pub use sampler::{Sampler, Samples};
