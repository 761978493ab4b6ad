//! Injected failures, of memory and of races.
//!
//! Where memory can run out, or a compare-and-swap can fail, the code asks whether a failure [`strikes`]. Outside tests
//! that is the constant `false`. A test counts how often an operation passes such places. Then it lets each of them fail
//! in turn ([`nth`]), or many at once ([`every`]). Afterwards the VM must work, or must have returned an error, and
//! nothing may be lost.
//!
//! `tests/inject` injects the failures that need no hook with real threads: a long grace period, a vCPU that does not
//! answer, a host that blocks, refuses or panics.

/// A kind of place that can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// An allocation whose caller can continue without it.
    Alloc,
    /// A compare-and-swap of a word that other threads write, such as an entry that is not frozen. The caller retries
    /// it, or gives up, whatever it found.
    Cas,
}

#[cfg(all(feature = "std", any(test, explored)))]
pub use planned::*;

/// Whether the current place fails.
#[cfg(not(all(feature = "std", any(test, explored))))]
#[inline(always)]
pub(crate) const fn strikes(_: Point) -> bool {
    false
}

/// The value of every entry of a collected table page, under an explorer: the newest possible hole, which no fault
/// fills. A walk that loads it has strayed into a page that is in no table.
#[cfg(explored)]
pub const GIVEN_BACK: crate::table::Word = crate::table::Word::hole(crate::table::Version::LAST);

#[cfg(explored)]
mod paused;
#[cfg(all(feature = "std", any(test, explored)))]
mod planned;

#[cfg(explored)]
pub use paused::PausedFault;
