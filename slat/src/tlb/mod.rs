//! The translations that processors still hold, and their shootdown.
//!
//! An edit that takes something away leaves stale copies in TLBs and paging-structure caches. The edit returns a
//! [`FlushDebt`] ([`debt`]), a must-use value that many edits can share. Settling it makes at most one shootdown
//! (`shootdown`), which interrupts only the vCPUs in guest mode in *this* VM. Other vCPUs catch up at their next entry.
//! [`Cause`] counts the payments.

mod cause;
pub mod debt;
pub(crate) mod shootdown;

pub(crate) use cause::ByCause;
mod unanswered;

pub use cause::{Cause, Flushes, FlushesByCause};
pub use debt::FlushDebt;
pub use shootdown::{CpuId, Translations};
pub use unanswered::Unanswered;
