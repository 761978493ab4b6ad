//! Translations that processors still hold, and who must be told.
//!
//! An edit that takes something away leaves stale copies in TLBs and paging-structure caches. The edit returns
//! that as a [`FlushDebt`] ([`debt`]), a must-use value that many edits can share; settling it pays at most one
//! shootdown (`shootdown`), to only those vCPUs that are in guest mode in *this* VM. The others catch up when
//! they next enter. Payments are counted by [`Cause`].

mod cause;
pub mod debt;
pub(crate) mod shootdown;

pub(crate) use cause::ByCause;
pub use cause::{Cause, Flushes};
pub use debt::FlushDebt;
pub use shootdown::{CpuId, Translations};
