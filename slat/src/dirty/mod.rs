//! Dirty logging: which pages of a memslot have been written (seed 003). Exact: a page that is missed is lost.
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
//! | `keep` | D bits of leaves that go |
//! | `bitmap` | a bit a page, in chunks |
//! | `ring` | what one vCPU has written, in order; a full one stops it |
//! | `pushed` | one page of a ring; merging many into words |
//! | `rings` | what is asked of the rings of a running VM, and where a store goes |
//! | `error` | [`DirtyError`]: why a log cannot be asked |

mod arm;
pub(crate) mod bitmap;
mod error;
mod harvest;
mod keep;
mod log;
#[cfg(all(test, loom))]
mod loom_tests;
mod pushed;
pub(crate) mod ring;
mod rings;
mod settings;
mod take;

pub use error::DirtyError;
pub use harvest::{DirtyPage, DirtyWord, Harvest};
pub use settings::{DirtyLog, RingSize, Splitting, Track};
