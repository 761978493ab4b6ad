//! Scans of several leaf tables at a time, at the speed of memory.
//!
//! Tables that are contiguous in memory are read one after the other; the processor prefetches them. Others are read
//! side by side: one group of entries of each in turn, while the same groups of the next tables are fetched into the
//! second-level cache. Many short streams hide the memory latency. (Fetches into the first-level cache are limited by
//! its few outstanding lines.)

#[cfg(all(target_arch = "x86_64", feature = "std", not(any(miri, loom, virtual_time))))]
use super::scan::avx2;
use super::scan::{Bit, GROUP, Scan, fetch_ahead, is_young, portable};
use crate::slots::bitmap::ones;
use crate::table::{ENTRIES, Entry};
use crate::{Format, Gfn, Level, Span};
use core::ops::Range;

/// Number of tables scanned together. Their entries stay in the first-level cache until the young ones are edited.
pub(super) const TOGETHER: usize = 4;
/// Number of groups in a table.
const GROUPS: usize = ENTRIES / GROUP;
/// Number of groups of the next contiguous table to fetch early; then the processor prefetches by itself.
const EARLY: usize = 2;

/// The young entries of a table, one bit each.
pub(super) type YoungBits = [u64; GROUPS];

/// A leaf table, and the frames of it to scan.
#[derive(Clone, Copy)]
pub(super) struct LeafTable<'w> {
    pub(super) entries: &'w [Entry; ENTRIES],
    pub(super) gfns: Span<Gfn>,
}

impl<'w> LeafTable<'w> {
    /// Returns the indices of the entries to scan.
    #[inline(always)]
    pub(super) fn asked<F: Format>(&self) -> Range<usize> {
        let first = F::index(self.gfns.start, Level::K4);
        first..first + self.gfns.len() as usize
    }

    #[inline(always)]
    fn groups(&self) -> &'w [[Entry; GROUP]] {
        self.entries.as_chunks().0
    }
}

/// Finds the young entries in `tables`, at most [`TOGETHER`]. Returns for each table whether it has any. `ahead` are
/// the next tables, to be prefetched.
#[inline(always)]
pub(super) fn scan_together<F: Format, B: Bit>(
    scan: Scan,
    tables: &[LeafTable<'_>],
    ahead: &[*const Entry],
    young: &mut [YoungBits; TOGETHER],
) -> [bool; TOGETHER] {
    if tables.iter().any(|table| table.gfns.len() < ENTRIES as u64) {
        return core::array::from_fn(|nth| {
            tables.get(nth).is_some_and(|table| scan_part::<F, B>(scan, table, &mut young[nth]))
        });
    }
    match scan {
        Scan::Portable => scan_whole(tables, ahead, young, portable::<F, B>),
        #[cfg(all(target_arch = "x86_64", feature = "std", not(any(miri, loom, virtual_time))))]
        // SAFETY: this variant exists only if the processor has AVX2.
        Scan::Avx2 => unsafe { scan_whole_avx2::<F, B>(tables, ahead, young) },
    }
}

/// # Safety
/// The processor has AVX2.
#[cfg(all(target_arch = "x86_64", feature = "std", not(any(miri, loom, virtual_time))))]
#[target_feature(enable = "avx2")]
unsafe fn scan_whole_avx2<F: Format, B: Bit>(
    tables: &[LeafTable<'_>],
    ahead: &[*const Entry],
    young: &mut [YoungBits; TOGETHER],
) -> [bool; TOGETHER] {
    // SAFETY: the caller guarantees it.
    scan_whole(tables, ahead, young, |group| unsafe { avx2::<F, B>(group) })
}

/// Scans tables with all of their entries.
#[inline(always)]
fn scan_whole(
    tables: &[LeafTable<'_>],
    ahead: &[*const Entry],
    young: &mut [YoungBits; TOGETHER],
    look: impl Fn(&[Entry; GROUP]) -> u64,
) -> [bool; TOGETHER] {
    // Kept apart, because the bits themselves are still on their way to memory when this is read.
    let mut any = [0; TOGETHER];
    // In memory, each right after the one before.
    let follow = |pair: &[LeafTable<'_>]| pair[0].entries.as_ptr_range().end == pair[1].entries.as_ptr();
    if tables.windows(2).all(follow) {
        for (nth, table) in tables.iter().enumerate() {
            let next = tables.get(nth + 1).map(|next| next.entries.as_ptr());
            if let Some(next) = next.or(ahead.first().copied()) {
                (0..EARLY).for_each(|group| fetch_group(next, group));
            }
            for (group, young) in table.groups().iter().zip(&mut young[nth]) {
                *young = look(group);
                any[nth] |= *young;
            }
        }
    } else {
        for group in 0..GROUPS {
            for (nth, (table, young)) in tables.iter().zip(&mut *young).enumerate() {
                if let Some(&ahead) = ahead.get(nth) {
                    fetch_group(ahead, group);
                }
                young[group] = look(&table.groups()[group]);
                any[nth] |= young[group];
            }
        }
    }
    any.map(|any| any != 0)
}

/// Scans some entries of a table, often one.
#[cold]
fn scan_part<F: Format, B: Bit>(scan: Scan, table: &LeafTable<'_>, young: &mut YoungBits) -> bool {
    *young = [0; GROUPS];
    let asked = table.asked::<F>();
    if asked.len() < GROUP {
        for entry in asked {
            young[entry / GROUP] |=
                u64::from(is_young::<F, B>(table.entries[entry].peek())) << (entry % GROUP);
        }
    } else {
        for group in groups(asked.clone()) {
            young[group] = scan.group::<F, B>(&table.groups()[group]) & within(group, asked.clone());
        }
    }
    *young != [0; GROUPS]
}

#[inline(always)]
fn fetch_group(table: *const Entry, group: usize) {
    for line in (0..GROUP).step_by(64 / size_of::<Entry>()) {
        fetch_ahead(table.wrapping_add(group * GROUP + line));
    }
}

/// Returns the groups that contain any of these entries.
#[inline(always)]
pub(super) fn groups(entries: Range<usize>) -> Range<usize> {
    entries.start / GROUP..entries.end.div_ceil(GROUP)
}

/// Returns which of a group's entries are in the range, as bits.
#[inline(always)]
pub(super) fn within(group: usize, entries: Range<usize>) -> u64 {
    let from = entries.start.saturating_sub(group * GROUP).min(GROUP);
    let to = (entries.end - group * GROUP).min(GROUP);
    ones(to as u32) & !ones(from as u32)
}
