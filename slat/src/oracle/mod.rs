//! The oracle: an executable specification that runs beside a VM, and reports who broke the contract.
//!
//! The feature `oracle` compiles it in; [`Builder::checked`](crate::Builder::checked) switches it on. It keeps a *ghost
//! state*: what the host said of each page and until which change, the open changes, table pages, and logged stores. It
//! compares each call of the host, and each step of the engine, with that state. A broken rule is a [`Violation`]: by
//! default a panic, at the call that broke it.
//!
//! **Exact or silent.** Calls overlap. An answer counts only if no change of its page was open or began while the host
//! was asked; every other answer is neither checked nor remembered. A transaction that takes memslots away makes the
//! oracle forget all pages. So a report is never a matter of timing, and a defect may go unseen.
//!
//! | part | contents |
//! |---|---|
//! | `spec` | the specification: each step, and the rules that it may break |
//! | `state` | the ghost state, and look-ups in it |
//! | `chunks` | its sparse arrays |
//! | `checks` | settings, and the embedder's handle |
//! | `seam` | the calls: a host between engine and host, and the engine's hooks |
//! | `in_guest` | a vCPU's stay in the guest: its root, its processor, its kicks |
//! | `after` | what an invalidation must have changed in the tables |
//! | `off` | the same hooks in a build without the feature: nothing |
//!
//! The oracle allocates, and takes a short lock in each call of the host: it is for tests, and for a VMM's debug builds.

#[cfg(feature = "oracle")]
mod after;
#[cfg(feature = "oracle")]
mod checks;
#[cfg(feature = "oracle")]
mod chunks;
#[cfg(feature = "oracle")]
mod in_guest;
#[cfg(not(feature = "oracle"))]
mod off;
#[cfg(feature = "oracle")]
mod seam;
#[cfg(feature = "oracle")]
mod spec;
#[cfg(feature = "oracle")]
mod state;
#[cfg(all(test, feature = "oracle", not(any(loom, shuttle))))]
mod tests;
#[cfg(feature = "oracle")]
mod violation;

#[cfg(not(feature = "oracle"))]
pub(crate) use off::*;
#[cfg(feature = "oracle")]
pub(crate) use {after::edited, in_guest::*, seam::*};
#[cfg(feature = "oracle")]
pub use {
    checks::{Checks, Oracle},
    violation::{Rule, Violation},
};
