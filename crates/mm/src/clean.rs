//! Pages of an address space that have the same contents as at the last clear ([`crate::soft_dirty`]).

use parking_lot::{Mutex, MutexGuard};
use slat::{Gfn, Span};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The clean pages of an address space, in runs: first page, and the page after the last. Runs do not touch.
type Runs = BTreeMap<Gfn, Gfn>;

/// The clean pages of an address space. **A page without a record has changed**: a change that forgets about soft-dirty
/// pages makes a page count as changed.
#[derive(Debug, Default)]
pub(crate) struct Clean {
    /// Whether soft-dirty pages were ever asked for. Until then a change costs one load here.
    used: AtomicBool,
    runs: Mutex<Runs>,
}

/// Pages that are not clean.
#[derive(Debug)]
pub(crate) struct Changed {
    pub(crate) pages: Vec<Span<Gfn>>,
    /// Whether they were asked for before.
    pub(crate) used: bool,
}

impl Clean {
    /// Adds pages, and returns those that were not clean.
    pub(crate) fn insert(&self, pages: Span<Gfn>) -> Changed {
        let mut runs = self.runs.lock();
        // A thread that changes an entry later holds a page lock that the caller takes meanwhile, or this lock.
        let used = self.used.swap(true, Relaxed);
        let changed = gaps(&runs, pages);
        let mut all = pages;
        // Also the neighbours that it touches.
        let before = runs.range(..=pages.start).next_back().map(|(start, end)| Span::new(*start, *end));
        let after = runs.get_key_value(&pages.end).map(|(start, end)| Span::new(*start, *end));
        let overlaps = overlapping(&runs, pages);
        for run in overlaps.into_iter().chain(before).chain(after).filter(|run| run.end >= pages.start) {
            runs.remove(&run.start);
            all = Span::new(all.start.min(run.start), all.end.max(run.end));
        }
        runs.insert(all.start, all.end);
        Changed { pages: changed, used }
    }

    /// Removes pages that may change from now on, or have changed.
    #[inline]
    pub(crate) fn remove(&self, pages: Span<Gfn>) {
        if self.used.load(Relaxed) {
            remove_from(self.runs.lock(), pages);
        }
    }

    /// Returns the pages that are not clean.
    pub(crate) fn changed(&self, pages: Span<Gfn>) -> Changed {
        let runs = self.runs.lock();
        Changed { pages: gaps(&runs, pages), used: self.used.swap(true, Relaxed) }
    }
}

#[cold]
fn remove_from(mut runs: MutexGuard<'_, Runs>, pages: Span<Gfn>) {
    for run in overlapping(&runs, pages) {
        runs.remove(&run.start);
        for rest in [Span::new(run.start, pages.start), Span::new(pages.end, run.end)] {
            if !rest.is_empty() {
                runs.insert(rest.start, rest.end);
            }
        }
    }
}

/// Returns the runs that overlap `pages`, in order.
fn overlapping(runs: &Runs, pages: Span<Gfn>) -> Vec<Span<Gfn>> {
    let before = runs.range(..pages.start).next_back().filter(|(_, end)| **end > pages.start);
    let inside = runs.range(pages.start..pages.end);
    before.into_iter().chain(inside).map(|(start, end)| Span::new(*start, *end)).collect()
}

/// Returns the parts of `pages` in no run.
fn gaps(runs: &Runs, pages: Span<Gfn>) -> Vec<Span<Gfn>> {
    let (mut at, mut gaps) = (pages.start, Vec::new());
    for run in overlapping(runs, pages).into_iter().chain([Span::new(pages.end, pages.end)]) {
        if at < run.start {
            gaps.push(Span::new(at, run.start));
        }
        at = run.end;
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_agree_with_a_bit_for_each_page() {
        const PAGES: u64 = 40;
        let (clean, mut bits) = (Clean::default(), [false; PAGES as usize]);
        let mut random = 1_u64;
        let mut below = |end: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % end
        };
        let singles = |changed: Changed| -> Vec<u64> {
            changed.pages.iter().flat_map(|span| span.start.0..span.end.0).collect()
        };
        for _ in 0..5000 {
            let (first, len) = (below(PAGES - 8), 1 + below(8));
            let span = Span::sized(Gfn(first), len);
            let dirty = |bits: &[bool], range: std::ops::Range<u64>| -> Vec<u64> {
                range.filter(|page| !bits[*page as usize]).collect()
            };
            if below(2) == 0 {
                assert_eq!(singles(clean.insert(span)), dirty(&bits, first..first + len));
                bits[first as usize..(first + len) as usize].fill(true);
            } else {
                clean.remove(span);
                bits[first as usize..(first + len) as usize].fill(false);
            }
            assert_eq!(singles(clean.changed(Span::new(Gfn(0), Gfn(PAGES)))), dirty(&bits, 0..PAGES));
            let runs = clean.runs.lock();
            assert!(
                runs.iter().zip(runs.iter().skip(1)).all(|((_, end), (start, _))| end < start),
                "{runs:?}"
            );
        }
    }
}
