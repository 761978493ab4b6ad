//! The primary MMU says what it is about to change, and why.
//!
//! | file | idea |
//! |---|---|
//! | [`Why`] | the reasons |
//! | [`plan`] | reason × leaf → the least drastic edit |
//! | [`Invalidation`] | begin, edit, flush, (the host changes), end: a guard |
//! | `zap_all` | everything at once: the root is replaced |
//! | `active` | how faults and invalidations that race are told apart; the protocol |
//!
//! A primary MMU that serves several VMs (or devices) talks to each through [`SecondaryMmu`].

pub(crate) mod active;
pub(crate) mod invalidation;
pub mod plan;
mod why;
mod zap_all;

pub use invalidation::Invalidation;
pub use why::Why;

use crate::addr::{Hva, Span};
use crate::sync::idle::Idle;

/// Whoever keeps copies of a primary MMU's translations: a [`Vm`](crate::Vm), a device, a test.
///
/// One call brackets one change, so begin and end cannot be lost, doubled or crossed: with several listeners
/// the primary MMU nests the calls, innermost its own change.
pub trait SecondaryMmu: Send + Sync {
    /// Makes sure that nobody uses `hvas` through this MMU, calls `change` once, then lets faults go on.
    /// Until it returns, no fault on the range completes with what was there before. May sleep.
    fn around(&self, idle: &mut Idle, hvas: Span<Hva>, why: Why, change: &mut dyn FnMut(&mut Idle));
}
