//! Settings of NUMA balancing.

use std::time::Duration;

/// How the balancer notifies secondary MMUs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Policy {
    /// Linux's baseline: unmaps whole ranges, whatever changes in them.
    Range,
    /// Page by page, as in the NUMA protection series.
    Page,
    /// Page by page, with one flush for many pages.
    #[default]
    PageBatched,
}

/// Settings of NUMA balancing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// How secondary MMUs are notified.
    pub policy: Policy,
    /// Bytes of mapped addresses that a `Scanner` scans per period; 256 MiB, as in Linux.
    pub scan_bytes: u64,
    /// Time between two scans of a `Scanner`; 1 s, Linux's minimum.
    pub period: Duration,
    /// Bytes that [`Policy::PageBatched`] covers by one notification and flush, in whole 2 MiB; 16 MiB by
    /// default. Faults in the current stretch wait for its end.
    pub stretch: u64,
}

impl Default for Settings {
    fn default() -> Self {
        let policy = Policy::default();
        Self { policy, scan_bytes: 256 << 20, period: Duration::from_secs(1), stretch: 16 << 20 }
    }
}
