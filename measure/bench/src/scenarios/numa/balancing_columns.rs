//! The columns of a host that balances its nodes.

use crate::scenarios::prelude::*;

/// Figures that are set against the series'.
pub const FLUSHES: &str = "flushes per 2 MiB";
/// The same.
pub const CALLS: &str = "unmap calls per 2 MiB";

/// 2 MiB are unmapped, and flushed once: Linux.
pub const RANGE: Column = Column::lockless("range");
/// 2 MiB are unmapped, and flushed page by page: Linux, where other threads wait for its lock.
pub const RANGE_YIELDING: Column = Column::lockless("range, yielding");
/// Page by page, each with its flush: the NUMA protection series.
pub const PAGE: Column = Column::lockless("page");
/// Page by page, with one flush: slat as it ships.
pub const PAGE_BATCHED: Column = Column::lockless("page-batched");
