//! Dirty logging: which pages of a memslot were written (the TDP MMU series). The log is exact: a migration loses a
//! missed page.
//!
//! A slot that logs is mapped page by page. A harvest *arms* each page, so that the next store to it is noticed
//! ([`Track`]). With write protection the store faults, and the fault marks the page. With D bits the hardware walker
//! sets D, and the next harvest reads it. Marks are bits in a `bitmap` of the slot: it moves with the slot, and is
//! freed when the log ends. Devices and the VMM mark there too. In a VM with rings, a fault pushes the page into its
//! vCPU's `ring`.
//!
//! | file | contents |
//! |---|---|
//! | `log` | calls on a running VM: harvest, look, clear, mark; their order beside faults, zaps and moves |
//! | `take` | takes one log, chunk by chunk, or cleans part of it |
//! | `harvest` | [`Harvest`]: pages that were taken, until they are committed or given back |
//! | `state` | [`LogState`]: which log a slot has, and how often pages were taken from it |
//! | `arm` | arms pages |
//! | `mark` | marks pages of slots that log, and D bits of leaves that go; the bitmaps are in [`slots`](crate::slots) |
//! | `rings` | calls on the rings of a running VM |
//! | `dirty_log/settings`, `error` | [`DirtyLog`]: how a VM logs; [`DirtyError`] |
//! | `dirty_log/ring` | the pages that one vCPU has written, in order; a full ring stops the vCPU; pages merged into words |
//!
//! # Life of a dirty page
//! ```text
//!             armed ───────────────▶ written ─────────────▶ harvested ───────────────▶ safe elsewhere
//!   W taken, or D clear     the fault marks the bitmap    the mark or D is taken,       commit
//!             ▲             (ring), or the walker sets D  the page armed, one flush
//!             │                        ▲                        │
//!             └────────────────────────┼────────────────────────┤
//!                                      └── give back, or drop ◀─┘
//! ```
//! A lost dirty bit corrupts the guest. Each hand-over therefore has an order, and loom tests both of its sides:
//!
//! | actor | first | then | reason |
//! |---|---|---|---|
//! | a fault that gives W | the permission | the mark | a harvest that takes the mark sees the permission, and takes it |
//! | a harvest, of marks | takes the mark | arms the page | a later mark is left for the next harvest |
//! | a harvest, by D bits | the tables | the marks | a leaf that is gone was marked before it went |
//! | an invalidation of a leaf with D | the mark | the hole | as above; if the edit fails, the page was written anyway |
//! | a harvest, by D bits | arms | a grace period, then the flush | an edit that marked a leaf earlier has ended by then |
//! | a harvest | all of it | one flush, then the caller copies | a store through an old translation is over before the copy |
//! | a transaction that begins a log | publishes, grace period | arms | a fault that saw no log has ended |
//! | the first harvest of a slot that begins with all pages dirty | a grace period | takes the marks | as above |
//!
//! # Decisions
//! * **A plain walk arms a log**, not an invalidation: faults do not wait for it. After the publication's grace period
//!   no fault gives a permission that the walk misses. A fault that slept looks its slot up again.
//! * **Marking always writes**, even if the mark is set: only a write orders the mark after the store's permission.
//! * **Taken bits are a list of words.** KVM keeps a second bitmap. Clean pages cost nothing here.
//! * **A VM with rings keeps bitmaps too**, for devices, which have no vCPU, and for harvests that are given back.
//! * **A log whose pages are all dirty is one word for 128 MiB.** Switching it on costs no memory; large pages are
//!   split when their part is first harvested.

mod arm;
pub(crate) mod harvest;
mod log;
#[cfg(all(test, feature = "std", not(shuttle)))]
mod loom_tests;
pub(crate) mod mark;
mod rings;
mod state;
mod take;

pub use crate::dirty_log::{DirtyError, DirtyLog, RingSize, Splitting, Track};
pub use harvest::{DirtyPage, DirtyWord, Harvest};
pub use state::LogState;
