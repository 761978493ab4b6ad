//! Statistics of a group, in the form of the kernel's `memory.stat`.

use super::Group;
use crate::lru::LruStats;
use slat::PAGE_SIZE;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

/// The charges of a [`Group`] now, in bytes, and event counts of its existing address spaces. `Display`
/// prints the lines of `memory.stat` with the kernel's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupStats {
    /// Anonymous pages, including copies of private file pages.
    pub anon: u64,
    /// File pages.
    pub file: u64,
    /// Tables of its address spaces.
    pub page_tables: u64,
    /// Tables lent to their VMs.
    pub secondary_page_tables: u64,
    /// Compressed copies in memory: their shares of frames.
    pub compressed: u64,
    /// Pages in swap, except zero pages. Only [`compressed`](Self::compressed) copies are charged.
    pub swapped: u64,
    /// Number of faults.
    pub faults: u64,
    /// Event counts of the LRUs.
    pub lru: LruStats,
}

impl GroupStats {
    /// Returns everything charged, in bytes.
    pub fn charged(&self) -> u64 {
        self.anon + self.file + self.page_tables + self.secondary_page_tables + self.compressed
    }
}

impl fmt::Display for GroupStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            ("anon", self.anon),
            ("file", self.file),
            ("pagetables", self.page_tables),
            ("sec_pagetables", self.secondary_page_tables),
            ("zswap", self.compressed),
            ("swapped", self.swapped),
            ("pgfault", self.faults),
            ("pgsteal", self.lru.evicted),
            ("pgsteal_direct_calls", self.lru.direct_reclaims),
            ("workingset_refault", self.lru.refaults),
            ("workingset_activate", self.lru.promoted),
            ("oom", self.lru.refused),
        ];
        rows.iter().try_for_each(|(name, value)| writeln!(f, "{name} {value}"))
    }
}

impl Group {
    /// Returns its statistics. Exact if no thread uses its address spaces meanwhile.
    pub fn stats(&self) -> GroupStats {
        let mut stats = GroupStats::default();
        for space in self.members() {
            space.count_tables();
            let (faults, lru) = space.events();
            stats.faults += faults;
            stats.lru += lru;
        }
        let Some(ledger) = self.ledger() else { return stats };
        let [anon, file] = ledger.frames().map(|frames| frames * PAGE_SIZE);
        let [page_tables, secondary_page_tables, compressed, copies] =
            [&ledger.tables, &ledger.lent, &ledger.stored, &ledger.copies]
                .map(|value| value.load(Relaxed).max(0) as u64);
        GroupStats {
            anon,
            file,
            page_tables,
            secondary_page_tables,
            compressed,
            swapped: copies * PAGE_SIZE,
            ..stats
        }
    }
}
