//! Page tables: one walker, generic in format and mode; formats are one small file each.
//!
//! Start with [`mod@format`] (what a format must say), then [`entry`] (what an entry can be), then [`walk`](crate::walk).
//!
//! | file | idea |
//! |---|---|
//! | [`mod@format`], [`formats`] | geometry, encode, decode; EPT, NPT, PAE, the host's own |
//! | [`entry`] | the atomic cell; holes that carry versions, tracked leaves, frozen entries |
//! | `freeze` | an entry that is one thread's for a moment |
//! | `radix`, `cursor` | the way down, and the way along a range |
//! | [`memory`], `pool`, `retire` | where table pages live, wait and die |
//! | `free`, `list`, `chunk`, `single` | pages that are free; lent together, or one at a time |

mod chunk;
pub(crate) mod cursor;
pub mod entry;
pub mod format;
pub mod formats;
mod free;
pub(crate) mod freeze;
#[cfg(test)]
pub(crate) mod history;
mod leaf;
mod list;
pub mod memory;
pub(crate) mod pool;
pub(crate) mod radix;
pub(crate) mod retire;
mod single;

pub use entry::{Entry, Version, Word};
pub use format::{Access, Format, Kind, Leaf, Perms};
pub use memory::{Heap, TableMemory};
pub use pool::NoMemory;
