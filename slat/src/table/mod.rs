//! Page tables. One walker is generic over format and mode; each format is one small file.
//!
//! Start with [`mod@format`] (what a format defines), then [`entry`] (the states of an entry), then
//! [`walk`](crate::walk).
//!
//! | file | contents |
//! |---|---|
//! | [`mod@format`], [`formats`] | geometry, encoding, decoding; EPT, NPT, PAE, the host's own |
//! | [`entry`] | the atomic entry; holes with versions, withdrawn leaves, frozen entries |
//! | `freeze` | an entry that one thread owns for a moment |
//! | `radix`, `cursor` | the descent to one entry, and the iteration over a range |
//! | [`memory`], `pool`, `retire` | allocation of table pages, their grace period, and their release |
//! | `free_pages`, `node_list`, `chunk`, `page_notes` | free pages, lent in chunks or one at a time |

mod chunk;
pub(crate) mod cursor;
pub mod entry;
pub mod format;
pub mod formats;
mod free_pages;
pub(crate) mod freeze;
#[cfg(test)]
pub(crate) mod history;
mod leaf;
pub mod memory;
pub(crate) mod node;
mod node_list;
mod page_notes;
pub(crate) mod pool;
pub(crate) mod radix;
pub(crate) mod retire;

pub use crate::fallible::NoMemory;
pub(crate) use cursor::{Cursor, Step};
pub use entry::{Entry, Version, Word};
pub use format::{Access, Format, HostPaging, Kind, Leaf, Perms};
pub(crate) use freeze::Freeze;
pub use memory::{CHUNK_BYTES, CHUNK_PAGES, Heap, Own, TableMemory, TablesOf};
pub(crate) use memory::{ENTRIES, Node};
pub(crate) use pool::{Cache, PageShortage, Pool, Scratch};
pub(crate) use radix::{At, Radix, Reached};
pub(crate) use retire::TableCount;
