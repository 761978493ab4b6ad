//! The lock order, the read side, and types that prove what a thread may do.
//!
//! ```text
//! THE LOCK ORDER (outermost first)
//!
//! host's own locks (slat-mm: claims, then the page lock of a region)   may be held when notify is called
//! └── notify: the active set (numbers, lines, places)                      lock-free: active.rs
//!     └── walk: a section of the read side                                 per thread, nothing shared
//!         │   (the lock of a baseline policy before it)                    only in measurements
//!         └── table pool                                                   leaf lock, never held across a call out
//! slots: the transaction mutex, one per address space                      NEVER taken inside notify or a walk
//! ├── the clock's hand: reclaim of cold tables (budget.rs)            likewise; a fault takes it before its walk
//! └── publishes as an invalidation of the gfns it changes; waits for a grace period if it took something away
//! a dirty ring's turn: the thread that empties it (dirty_log/ring.rs)             likewise; no vCPU waits for it
//! └── a section of the read side
//! ```
//! Functions that may sleep take `&mut Idle` ([`idle`]): asking the host ([`Host::resolve`](crate::Host::resolve)), a
//! shootdown, a grace period, a slot transaction, the reclaim of tables. Inside a walk nothing may sleep.
//!
//! | file | contents |
//! |---|---|
//! | [`idle`] | proof that a thread may sleep |
//! | [`mode`] | the modes of a walk: `Lockless`, `Shared`, `Exclusive` |
//! | `readside` | seats, sections, the grace period |
//! | `barrier` | the asymmetric fence below the read side |
//! | `blocks`, `once` | cells that never move and whose number grows; a value made at its first use |
//! | `gate` | the entry of a walk: the read side, and the lock of a baseline policy |
//! | `baselines` | for measurements: the locks of KVM before the direct MMU, and what else it did before |
//! | `tally` | counters, one set per seat |
//! | `longest` | for tests: the greatest number of entries visited in one section |
//! | `prim` | atomics and locks, with versions for loom, shuttle and virtual time |
//! | `orderings.md` | every named ordering: its two sides and its test |

pub(crate) mod barrier;
#[cfg(feature = "baselines")]
pub mod baselines;
pub(crate) mod blocks;
pub(crate) mod gate;
pub mod idle;
#[cfg(test)]
pub(crate) mod longest;
pub mod mode;
pub(crate) mod once;
pub(crate) mod prim;
pub(crate) mod readside;
pub(crate) mod tally;

pub(crate) use gate::{Gate, Lock};
pub(crate) use mode::{Edits, Exclusive, Lockless, Mode, Shared};
pub(crate) use readside::{Borrowed, BorrowedWithoutIdle, ReadSide, Seat, Section};
pub(crate) use tally::{Count, RetryCause, Tally};
