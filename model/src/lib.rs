//! slat-model: the invalidation protocol of the engine, every interleaving of it, in small worlds.
//!
//! The protocol is described where it lives: `slat::notify` and `slat::fault`. Here each of its steps is an action
//! named after the function that takes it, memory is sequentially consistent (orderings are loom's part: the
//! engine's `loom_tests`), and a checker walks through every order in which threads and hardware can take them.
//!
//! | room | what |
//! |---|---|
//! | [`world`] | what is shared: entries, tables, W and the active set, the host |
//! | [`hardware`] | what vCPUs walk and cache |
//! | [`op`] | what a thread can be told to do |
//! | [`thread`] | an operation in progress; beginning, settling, ending |
//! | `fault` | an access: walk, stamp, confirm, ask, link, install; upgrade; MMIO |
//! | `edit` | an invalidation's walk, a slot transaction |
//! | `reshape` | split, recover, a new root |
//! | [`scenario`] | a world and its threads, and the check |
//! | [`library`] | the scenarios |
//! | [`bug`] | mistakes, each of which must be found |
//!
//! A dead table is never overwritten: whoever stands in it does harmless work there. That this is so is one of the
//! results.

pub mod bug;
mod edit;
mod fault;
pub mod hardware;
pub mod library;
pub mod op;
mod reshape;
pub mod scenario;
pub mod thread;
pub mod world;

pub use bug::Bug;
pub use scenario::{Scenario, Verdict};
