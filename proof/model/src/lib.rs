//! slat-model explores every interleaving of the engine's invalidation protocol in small scenarios.
//!
//! `slat::notify` and `slat::fault` describe the protocol. Here each of its steps is an action with the name of the
//! engine's function. Memory is sequentially consistent; loom checks orderings (the engine's `loom_tests`). A checker
//! walks through every order in which threads and hardware can take the actions.
//!
//! | module | contents |
//! |---|---|
//! | [`state`] | the shared state: entries, tables, the active set and its words, the host; operations; threads |
//! | [`hardware`] | walks and caches of vCPUs |
//! | `settle` | the flush of an invalidation, and the change of the host |
//! | `follow` | a look for newer invalidations after each pass |
//! | `active` | begin, widening and end of an invalidation; a fault's check of the active set |
//! | `fault` | an access: walk, check, ask, link, install; MMIO |
//! | [`copy`] | a host that copies a page while another change withdraws it |
//! | [`held`] | a frame that the VMM, or hardware, uses beside the tables |
//! | [`memo`] | a vCPU's memo of its last fault, and the faults that it shortens |
//! | `present` | a fault on a present leaf: a permission, a split, an upgrade |
//! | `edit` | the walk of an invalidation and of a slot transaction |
//! | [`shootdown`] | a flush: vCPUs that enter and leave the guest, kicks, answers |
//! | [`slots`] | a slot transaction; the versions of the slots |
//! | [`harvest`] | dirty logs: marks, D bits, harvests |
//! | `reshape` | split, recover, a new root |
//! | [`walk`] | walks through scenarios of six and more actors, drawn from a seed |
//! | [`refine`] | the model beside the proof: each step of the model is a step of the proof |
//! | [`scenario`], [`check`] | an initial state and its threads; the check of all interleavings |
//! | [`library`] | the scenarios, by family: `cargo run -p slat-model` checks them all |
//! | [`nested`] | shadows of nested guests: scenarios and a check of their own |
//! | [`primary`] | a primary MMU whose faults read versions of the mappings: likewise |
//! | [`fleet`] | hosts that share a store by conditional writes: likewise |
//! | [`daemon`] | the pager's keeper and worker, and kills of both: likewise |
//! | [`bug`] | seeded mistakes, each of which the check must find |
//!
//! A dead table is never overwritten, so that a walk inside it does no harm there. The model shows that.

mod active;
pub mod bug;
pub mod check;
pub mod copy;
pub mod daemon;
mod edit;
mod fault;
pub mod fleet;
mod follow;
pub mod hardware;
pub mod harvest;
pub mod held;
pub mod library;
pub mod memo;
pub mod nested;
mod present;
pub mod primary;
pub mod refine;
mod reshape;
pub mod scenario;
mod settle;
pub mod shootdown;
pub mod slots;
pub mod state;
pub mod walk;

pub use bug::Bug;
pub use check::{Checked, Verdict};
pub use daemon::Daemon;
pub use fleet::Fleet;
pub use nested::Nested;
pub use primary::Primary;
pub use scenario::{Family, Scenario};
