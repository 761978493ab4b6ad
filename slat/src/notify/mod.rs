//! Announcements of changes by the primary MMU, and what slat does for each.
//!
//! | file | contents |
//! |---|---|
//! | [`Why`], [`PageWhy`], [`Reason`] | the reasons for a change: of a range, of single pages, all |
//! | [`plan`] | maps reason and leaf to the least drastic edit |
//! | [`SecondaryMmu`] | the listener's trait, and its arguments: [`Event`], [`Pages`], [`Young`] |
//! | [`Invalidation`] | a guard: begin, edit, flush, (the host changes), end |
//! | [`Applied`] | the guard between edit and flush |
//! | `begun` | an invalidation between begin and end, as the engine edits it |
//! | `edit` | edits of the entries in the range, and the debts that they leave |
//! | `reserve` | spare table pages for splits of large leaves |
//! | `vm`, `host_range` | a VM as a secondary MMU; walks of the frames behind a host range |
//! | `zap_all` | unmaps everything: replaces the root |
//! | `crate::active` | the active set: numbers, places, lines, stamps |
//!
//! A primary MMU that serves several VMs or devices calls each of them through [`SecondaryMmu`].
//!
//! In the code, "rule 7" means rule 7 of the protocol below.
#![doc = include_str!("protocol.md")]

mod applied;
pub(crate) mod begun;
mod edit;
pub(crate) mod host_range;
mod invalidation;
pub mod plan;
mod reserve;
mod secondary;
mod vm;
mod zap_all;

#[cfg(all(test, feature = "std", not(any(loom, shuttle))))]
mod covered_tests;

pub use crate::why::{PageWhy, Reason, Why};
pub use applied::Applied;
pub use invalidation::Invalidation;
pub use secondary::{Again, Both, Event, NoPages, Pages, SecondaryMmu, Young};
