//! Who may do what, when: the lock order, the read side, and the proofs in types.
//!
//! ```text
//! THE LOCK ORDER (outermost first)
//!
//! host's own locks (slat-mm: claims, then the page lock of a region)   may be held when notify is called
//! └── notify: the active set (numbers, lines, places)                      lock-free: notify/active.rs
//!     └── walk: a section of the read side                                 per thread, nothing shared
//!         │   (MmuLock::ReadWrite or ::Exclusive: that lock before it)     only the baseline policies
//!         └── table pool                                                   leaf lock, never held across a call out
//! slots: the transaction mutex, one per address space                      NEVER taken inside notify or a walk
//! ├── the clock's hand: reclaim of cold tables (budget.rs)            likewise; a fault takes it before its walk
//! └── publishes as an invalidation of the gfns it changes; waits for a grace period if it took something away
//! a dirty ring's turn: the thread that empties it (dirty/ring.rs)                 likewise; no vCPU waits for it
//! └── a section of the read side
//! ```
//! May sleep, hence takes `&mut Idle` ([`idle`]): asking the host ([`Host::resolve`](crate::Host::resolve)), a
//! shootdown, a grace period, a slot transaction, the reclaim of tables. May not: anything inside a walk.
//!
//! | file | idea |
//! |---|---|
//! | [`idle`] | proof that a thread may sleep |
//! | [`mode`] | what a walk may do: `Lockless`, `Shared`, `Exclusive` |
//! | `readside` | seats, sections, the grace period |
//! | `barrier` | the asymmetric fence under both |
//! | `blocks`, `once` | cells that never move and grow in number; a value that is made at its first use |
//! | `gate` | how a walk enters: the read side, or the lock of a baseline policy |
//! | `tally` | counters, one set per seat |
//! | `prim` | atomics and locks, swappable for loom, shuttle and virtual time |
//! | `orderings.md` | every named ordering: what pairs with what, its test, its mistakes |

pub(crate) mod barrier;
pub(crate) mod blocks;
pub(crate) mod gate;
pub mod idle;
pub mod mode;
pub(crate) mod once;
pub(crate) mod prim;
pub(crate) mod readside;
pub(crate) mod tally;
