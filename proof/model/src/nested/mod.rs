//! Models the protocol of nested guests, `slat/src/nested/protocol.md`, with a state of its own.
//!
//! L1 is a hypervisor in our guest, L2 its guest. A *shadow* holds L1's second-level table composed with L0's: it maps
//! g2, a frame of L2, to a frame of the host. For L1 the shadow is a TLB. It is never older than the host's state.
//!
//! | module | contents |
//! |---|---|
//! | [`shadow`] | the shared state; hardware; translations that no vCPU may reach |
//! | [`steps`] | a thread's next step; the walk over the shadow's entry, for invalidations, flushes and logs |
//! | `l2_fault` | an access of L2, F1 to F10 |
//! | `built` | the same where the built design differs |
//! | `l1` | L1 writes its table, flushes, enters L2 |
//! | `l0` | L0 takes pages away, moves memslots, logs |
//! | [`parts`] | a large leaf of which a part changes, with a state of its own |
//! | `reclaim` | L0 takes the shadow's tables, with vCPUs on it |
//! | [`program`], `explore` | an initial state and its threads; the check |
//! | [`scenarios`] | the scenarios |
//!
//! An invalidation is listed, numbered and announced in one step here; `active` models the separate steps.

mod built;
mod explore;
mod l0;
mod l1;
mod l2_fault;
pub mod parts;
pub mod program;
mod reclaim;
pub mod scenarios;
pub mod shadow;
pub mod steps;

pub use program::Nested;
