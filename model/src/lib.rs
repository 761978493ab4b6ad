//! slat-model: the invalidation protocol of the engine, every interleaving of it, in small worlds.
//!
//! The protocol is described where it lives: `slat::notify` and `slat::fault`. Here each of its steps is an action
//! named after the function that takes it, memory is sequentially consistent (orderings are loom's part: the
//! engine's `loom_tests`), and a checker walks through every order in which threads and hardware can take them.
//!
//! | room | what |
//! |---|---|
//! | [`world`] | what is shared: entries, tables, the active set and its words, the host |
//! | [`hardware`] | what vCPUs walk and cache |
//! | [`op`] | what a thread can be told to do |
//! | [`thread`], `pc` | an operation in progress; settling; where it stands |
//! | `active` | an invalidation begins, widens and ends; a fault looks at the active set |
//! | `fault` | an access: walk, look, ask, link, install; MMIO |
//! | [`copy`] | a host that copies a page which another change withdraws |
//! | [`held`] | a frame that the VMM, or hardware, uses beside the tables |
//! | [`memo`] | what a vCPU remembers of its last fault, and a fault that it shortens |
//! | `present` | one that finds a leaf: a permission, a split, an upgrade |
//! | `edit` | the walk of an invalidation and of a slot transaction |
//! | [`shootdown`] | a flush: vCPUs that enter and leave the guest, kicks, answers |
//! | [`slots`] | a slot transaction; the versions of the slots |
//! | [`harvest`] | dirty logs: marks, D bits, what a harvest takes and arms |
//! | `reshape` | split, recover, a new root |
//! | [`scenario`], [`check`] | a world and its threads; the check of all that can happen to them |
//! | [`library`] | the scenarios, by family: `cargo run -p slat-model` checks them all |
//! | [`nested`] | shadows of nested guests: worlds and a check of their own |
//! | [`primary`] | a primary MMU whose faults read versions of the mappings: likewise |
//! | [`fleet`] | hosts that share a store by conditional writes: likewise |
//! | [`bug`] | mistakes, each of which must be found |
//!
//! A dead table is never overwritten: a walk inside it does harmless work there. That this is so is one of the
//! results.

mod active;
pub mod bug;
pub mod check;
pub mod copy;
mod edit;
mod fault;
pub mod fleet;
pub mod hardware;
pub mod harvest;
pub mod held;
pub mod library;
pub mod memo;
pub mod nested;
pub mod op;
mod pc;
mod present;
pub mod primary;
mod reshape;
pub mod scenario;
pub mod shootdown;
pub mod slots;
pub mod thread;
pub mod world;

pub use bug::Bug;
pub use check::{Checked, Verdict};
pub use fleet::Fleet;
pub use nested::Nested;
pub use primary::Primary;
pub use scenario::Scenario;
