//! Page tables: one walker, generic in format and mode; formats are one small file each.
//!
//! Start with [`mod@format`] (what a format must say), then [`entry`] (what an entry can be), then [`walk`].
//!
//! | file | idea |
//! |---|---|
//! | [`mod@format`], [`formats`] | geometry, encode, decode; EPT, NPT, PAE, the host's own |
//! | [`entry`] | the atomic cell; holes that carry versions, tracked leaves, frozen entries |
//! | [`walk`] | an open walk, in one of three modes |
//! | `freeze` | an entry that is one thread's for a moment |
//! | `radix`, `cursor` | the way down, and the way along a range |
//! | `steps` | an open walk along a range, which rests now and then |
//! | [`memory`], `pool`, `retire` | where table pages live, wait and die |
//! | `free`, `chunk`, `single` | pages that are free; lent together, or one at a time |
//! | `limit` | a budget for them: the coldest go first |
//! | [`Map`], [`Place`] | a table on its own, for a primary MMU, and an entry of it |

mod chunk;
pub(crate) mod cursor;
pub mod entry;
pub mod format;
pub mod formats;
mod free;
pub(crate) mod freeze;
#[cfg(test)]
pub(crate) mod history;
pub(crate) mod limit;
mod map;
pub mod memory;
pub(crate) mod pool;
pub(crate) mod radix;
pub(crate) mod retire;
mod single;
pub(crate) mod steps;
pub mod walk;

pub use entry::{Entry, Kind, Version, Word};
pub use format::{Access, Format, Leaf, Perms};
pub use map::{Map, Place, ReachError};
pub use memory::{Heap, TableMemory};
pub use pool::NoMemory;
pub use walk::{Mapping, Walk};
