//! Dirty logging: which pages of a memslot have been written (the TDP MMU series). Exact: a page that is missed is lost.
//!
//! A slot that logs is mapped page by page. A store to a page is noticed in one of two ways ([`Track`]), both *armed* by a
//! harvest: write protection, where the store faults and the fault marks the page; or the D bits that walkers set, where
//! the harvest looks for them. Marks live in a `bitmap` that belongs to the slot: it moves with the slot, and goes when
//! the log is switched off. Devices and the VMM mark there too. In a VM with rings a fault tells its vCPU's `ring` instead.
//!
//! | file | idea |
//! |---|---|
//! | `settings` | [`DirtyLog`]: how a VM logs |
//! | `log` | what is asked of a running VM: harvest, look, clear, mark; and why nothing is lost beside faults, zaps and moves |
//! | `take` | one log, chunk by chunk: taken, or cleaned in part |
//! | `harvest` | [`Harvest`]: what was taken, until it is committed or given back |
//! | `arm` | making the next store noticed again |
//! | `mark` | marking pages of slots that log, and D bits of leaves that go; their bitmaps are in [`slots`](crate::slots) |
//! | `ring` | what one vCPU has written, in order; a full one stops it; many pages merged into words |
//! | `rings` | what is asked of the rings of a running VM, and where a store goes |
//! | `error` | [`DirtyError`]: why a log cannot be asked |
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
//! A dirty bit that is lost is a corrupted guest. So each hand-over has an order, and both of its sides a loom test:
//!
//! | actor | first | then | so that |
//! |---|---|---|---|
//! | a fault that gives W | the permission | the mark | a harvest that takes the mark sees the permission, and takes it |
//! | a harvest, of marks | takes the mark | arms the page | a mark that comes later is left for the next harvest |
//! | a harvest, by D bits | the tables | the marks | a leaf that is gone was marked before it went |
//! | an invalidation of a leaf with D | the mark | the hole | as above; where the edit fails the page was written anyway |
//! | a harvest, by D bits | arms | a grace period, then the flush | an edit that marked a leaf before is over by then |
//! | a harvest | all of it | one flush, then the caller copies | a store through an old translation is over before the copy |
//! | a slot that logs from now on | published, grace period | armed | a fault that saw no log is over |
//! | the first harvest of a slot that begins with all pages dirty | a grace period | takes the marks | the same |
//!
//! # Decisions
//! * **A log is armed by a plain walk**, not by an invalidation: faults do not wait for it. The publication's grace period says that
//!   no fault has a permission that the walk misses; a fault that slept looks its slot up again.
//! * **A mark is always a write**, also where it is set: only a write orders the mark after what it stands for.
//! * **Taken bits are a list of words**, where KVM keeps a second bitmap: what is clean costs nothing.
//! * **A VM with rings keeps bitmaps too**: devices have no vCPU, and harvests that are given back need a place.
//! * **A log whose pages are all dirty is one word for 128 MiB**: switching it on costs no memory, and large pages are split when
//!   their part is first harvested.

mod arm;
mod error;
mod harvest;
mod log;
#[cfg(all(test, loom))]
mod loom_tests;
mod mark;
pub(crate) mod ring;
mod rings;
mod settings;
mod take;

pub use error::DirtyError;
pub use harvest::{DirtyPage, DirtyWord, Harvest};
pub use settings::{DirtyLog, RingSize, Splitting, Track};
