//! Reclaim: ages the pages of an address space, and evicts the coldest ([`crate::lru`] stores their marks).
//!
//! | file | contents |
//! |---|---|
//! | `track` | the address space's reports to its LRU: pages come, go, move |
//! | `aging` | a pass over Accessed bits |
//! | `evict` | eviction of the coldest pages |
//! | `limit` | a fault that makes room |
//! | `evictor` | threads that make room ahead of need |
//! | `tenant` | an address space as a member of a group that makes room |

mod aging;
mod evict;
mod evictor;
mod limit;
mod tenant;
mod track;

pub use evictor::Evictor;
