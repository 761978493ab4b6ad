//! Nested guests: the design of `book/src/nested.md`, in worlds of its own.
//!
//! L1 is a hypervisor in our guest, L2 its guest. A *shadow* holds L1's second-level table composed with L0's: g2, a frame of
//! L2, to a frame of the host. The shadow is a TLB as far as L1 is concerned, and never older than the host.
//!
//! | room | what |
//! |---|---|
//! | [`shadow`] | what is shared; hardware; what no vCPU may reach |
//! | [`steps`] | where a thread stands; the walk over the shadow's entry that invalidations, flushes and logs share |
//! | `l2_fault` | an access of L2, F1 to F10 |
//! | `built` | the same where what is built differs |
//! | `l1` | L1 writes its table, flushes, enters L2 |
//! | `l0` | L0 takes pages away, moves memslots, logs |
//! | [`parts`] | a large leaf of which a part changes: a world of its own |
//! | `reclaim` | L0 takes the shadow's tables, with vCPUs on it |
//! | [`program`], `explore` | a world and its threads; the check |
//! | [`scenarios`] | those that are checked |
//!
//! How an invalidation is listed, numbered and announced is one step here; `active` has it in all its steps.

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
