//! The figures that a run's report and its live view share, under the same keys.

use serde::{Deserialize, Serialize};
use slat::Stats;

/// Faults by result, and retries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Faults {
    pub total: u64,
    pub map: u64,
    pub permission: u64,
    pub spurious: u64,
    pub mmio: u64,
    pub retry: u64,
    pub retry_by: RetryBy,
    /// See [`Stats::asked_again`].
    pub asked_again: u64,
}

/// See [`slat::Retries`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RetryBy {
    pub moved: u64,
    pub covered: u64,
    pub lost: u64,
}

/// TLB lookups of all vCPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TlbCounts {
    pub hits: u64,
    pub misses: u64,
}

/// Edits that owed a flush, the shootdowns that settled them, and the pages flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Flushes {
    pub requested: u64,
    pub paid: u64,
    pub pages: u64,
}

/// Leaf entries by size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Mapped {
    pub k4: u64,
    pub m2: u64,
    pub g1: u64,
}

impl From<&Stats> for Faults {
    fn from(stats: &Stats) -> Self {
        let slat::Retries { moved, covered, lost } = stats.retries_by;
        Self {
            total: stats.mapped_faults + stats.permission_faults + stats.spurious_faults + stats.mmio_faults,
            map: stats.mapped_faults,
            permission: stats.permission_faults,
            spurious: stats.spurious_faults,
            mmio: stats.mmio_faults,
            retry: stats.retries,
            retry_by: RetryBy { moved, covered, lost },
            asked_again: stats.asked_again,
        }
    }
}

impl From<slat::Flushes> for Flushes {
    fn from(slat::Flushes { requested, paid, pages }: slat::Flushes) -> Self {
        Self { requested, paid, pages }
    }
}

impl From<&Stats> for Mapped {
    fn from(stats: &Stats) -> Self {
        let [k4, m2, g1] = stats.leaves;
        Self { k4, m2, g1 }
    }
}

/// The figures of one vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct VcpuCounts {
    pub accesses: u64,
    pub faults: u64,
    pub hits: u64,
    pub misses: u64,
}

/// Frames allocated and zeroed ahead of faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ahead {
    /// Frames allocated one at a time, for guest pages and for tables.
    pub frames: u64,
    /// Of these, frames that were zeroed ahead.
    pub zeroed: u64,
    /// Faults that reclaimed memory themselves.
    pub direct_reclaims: u64,
}

/// `part` as a percentage of `whole`.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}
