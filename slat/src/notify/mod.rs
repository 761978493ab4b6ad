//! The primary MMU says what it is about to change, and why.
//!
//! | file | idea |
//! |---|---|
//! | [`Why`] | the reasons |
//! | [`plan`] | reason × leaf → the least drastic edit |
//! | [`SecondaryMmu`] | who is told, and what: [`Event`], [`Pages`], [`Young`] |
//! | [`Invalidation`] | begin, edit, flush, (the host changes), end: a guard |
//! | [`Detached`] | the same guard in two callbacks |
//! | `begun` | an invalidation from its begin to its end |
//! | `edit` | what an invalidation does to each entry, and what that owes |
//! | `nested` | what it does to shadows of L1's tables |
//! | `reserve` | table pages at hand, to split large leaves of which a part changes |
//! | `vm`, `along` | a VM as a secondary MMU; what memslots map of a host range |
//! | `zap_all` | everything at once: the root is replaced |
//! | `active` | the active set: numbers, places, lines, stamps |
//!
//! A primary MMU that serves several VMs (or devices) talks to each through [`SecondaryMmu`].
//!
//! Where the code says "rule 7", it means rule 7 of the protocol below.
#![doc = include_str!("protocol.md")]

pub(crate) mod active;
mod along;
pub(crate) mod begun;
mod detached;
mod edit;
pub(crate) mod invalidation;
mod nested;
pub mod plan;
mod reserve;
mod secondary;
mod vm;
mod zap_all;

pub use crate::why::Why;
pub use detached::Detached;
pub use invalidation::Invalidation;
pub use secondary::{Again, Both, Event, NoPages, Pages, SecondaryMmu, Young};
