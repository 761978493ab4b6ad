//! Deterministic simulation testing of the engine: whole VMs on simulated CPUs, generated from a seed.
//!
//! ```text
//! seed ─▶ plan ─▶ world: VM, host, vCPUs with TLBs, threads ─▶ outcome
//!                   │ each access to shared memory: held up by the schedule, seen by the oracle
//!                   ▼
//!         wrong? ─▶ shrink ─▶ a command that repeats it, and its story
//! ```
//! The engine is the shipped source in virtual time ([`slat_machine`]). It is built with its points of failure
//! ([`slat::inject`]). A seed determines a run completely.
//!
//! | module | contents |
//! |---|---|
//! | [`plan`] | the contents of a world, as data drawn from a seed |
//! | [`world`] | runs a plan, and checks the properties that must hold |
//! | [`hunt`] | runs many seeds, until one fails |
//! | [`shrink`] | makes a failing plan small |
//! | [`random`] | pseudo-random numbers by seed |

pub mod hunt;
pub mod plan;
pub mod random;
pub mod shrink;
pub mod world;
