//! Splits a large leaf of which a part changes into a table of smaller ones, like the engine's own ([`crate::huge`]),
//! with a row for each.
//!
//! ```text
//! leaf ──split──▶ frozen ──split──▶ link: a table of smaller leaves
//!                   └─────edit────▶ condemned ──split──▶ hole
//! ```
//! **Frozen in between**, unlike a leaf of L1's own, since the rows derive from the leaf's row. By one exchange from
//! leaf to link they might derive from an older row, if another fault has mapped the same frame meanwhile through
//! another L1 frame.
//!
//! **The hint of the large page stays**, and leads to the parts: an invalidation edits all entries of its range, and
//! removes the hint with the whole page. A stale hint costs a needless flush.
//!
//! **A split counts as a drop.** An edit that condemns the entry meanwhile records none, and a TLB may hold the leaf.
//!
//! Without spare table pages the whole leaf is zapped.

use super::leaf_rows::Half;
use super::{CountedWalk, Dropping, Frozen, Reach, Rows, Shadow, Shadows, edit, maps};
use crate::active::Active;
use crate::sync::prim::Relaxed;
use crate::table::radix::link_parts;
use crate::table::{At, Cache, Cursor, ENTRIES};
use crate::{Format, Gfn, Level, NoMemory, Span, TableMemory, Word};

/// Table pages to split leaves with.
pub(crate) struct SplitPages<'p> {
    pub(crate) cache: Option<&'p mut Cache>,
    /// Whether a leaf to be split stays if there is no page: the caller then repeats the edit.
    pub(crate) defers: bool,
    /// Whether a page was missing.
    pub(crate) is_short: bool,
}

impl<'p> SplitPages<'p> {
    /// No pages: large leaves are zapped whole.
    pub(crate) fn none() -> Self {
        Self { cache: None, defers: false, is_short: false }
    }

    pub(crate) fn of(cache: &'p mut Cache) -> Self {
        Self { cache: Some(cache), ..Self::none() }
    }
}

impl<F: Format> Shadows<F> {
    /// Edits all leaves of all shadows.
    pub(crate) fn reach_all<M: TableMemory>(&self, memory: &M, active: &Active, how: Reach) {
        let taking = self.drops.taking(active);
        for shadow in self.shadows() {
            shadow.visit(memory, Level::K4, |at, _| edit::<F>(&taking, at.entry, at.word, at.level, how));
        }
    }

    /// Edits the entries of `g2s` in a shadow. Before it zaps a leaf that reaches out of `all`, it splits it. Returns the
    /// number of entries.
    pub(crate) fn reach_in<M: TableMemory>(
        &self,
        memory: &M,
        (shadow, inside): (&Shadow<F>, &CountedWalk<'_>),
        taking: &Dropping<'_>,
        ((g2s, all), how): ((Span<Gfn>, Span<Gfn>), Reach),
        pages: &mut SplitPages<'_>,
    ) -> u64 {
        let mut entries = 0;
        if g2s.len() == 1 {
            // SAFETY: in a counted walk.
            let at = unsafe { shadow.radix.descend(memory, g2s.start) };
            // No larger leaf, and no table to enter.
            if at.level == Level::K4 {
                #[cfg(test)]
                crate::sync::longest::visits(1);
                edit::<F>(taking, at.entry, at.word, at.level, how);
                return 1;
            }
        }
        // SAFETY: the root stays.
        let root = unsafe { shadow.radix.root(memory) };
        let mut cursor = Cursor::<F>::new(root, g2s, Level::K4);
        // SAFETY: in a counted walk.
        while let Some(step) = unsafe { cursor.next(memory) } {
            entries += 1;
            let mut at = step.at;
            let splits = how == Reach::Zap && !all.covers(&step.gfns);
            while splits && maps::<F>(&at) {
                match self.split(memory, (shadow, inside), taking, (at, step.gfns.start), pages) {
                    Ok(word) => at.word = word,
                    Err(NoMemory) => break,
                }
            }
            let is_left = splits && pages.defers && maps::<F>(&at);
            if !is_left && let Some(link) = edit::<F>(taking, at.entry, at.word, at.level, how) {
                cursor.saw(link);
            }
        }
        entries
    }

    /// Splits the leaf `at`, whose first frame is `g2`. Returns the entry's word afterwards.
    pub(crate) fn split<M: TableMemory>(
        &self,
        memory: &M,
        (shadow, _inside): (&Shadow<F>, &CountedWalk<'_>),
        taking: &Dropping<'_>,
        (at, g2): (At<'_>, Gfn),
        pages: &mut SplitPages<'_>,
    ) -> Result<Word, NoMemory> {
        let cache = pages.cache.as_deref_mut();
        let taken = cache.and_then(|cache| {
            let node = cache.take()?;
            let half = self.half(cache);
            if half.is_none() {
                cache.put_back(node);
            }
            Some((cache, node, half?))
        });
        pages.is_short |= taken.is_none();
        let (cache, node, half) = taken.ok_or(NoMemory)?;
        shadow.line.will_splinter();
        taking.begin();
        // Only this thread has the page, so the mark is unique.
        let mine = Word::frozen_link(node.pfn(memory));
        half.hang(memory, node);
        let split = match Frozen::new(at.entry, at.word, mine) {
            Ok(frozen) => {
                // SAFETY: `at` was met in a counted walk. The new table is in no other.
                let (large, small) = unsafe { (Rows::of(memory, at.node), Rows::of(memory, node)) };
                if let (Some(large), Some(small)) = (large, small) {
                    let row = large.get(F::index(g2, at.level));
                    let pages = at.level.down().pages();
                    (0..ENTRIES).for_each(|nth| small.set(nth, row.part(nth as u64 * pages)));
                }
                let leaf = (at.word, F::decode(at.word));
                frozen
                    .thaw(|_, mine| link_parts::<F, M>(memory, node, At { word: mine, ..at }, leaf))
                    .ok_or_else(|| at.entry.load())
            }
            Err(found) => Err(found),
        };
        split.or_else(|found| {
            self.halves.lock().extend(Half::reclaim(memory, node));
            cache.put_back(node);
            Ok(found)
        })
    }

    /// Returns rows that no table has, or half a page of the `cache`.
    pub(super) fn half(&self, cache: &mut Cache) -> Option<Half> {
        let mut halves = self.halves.lock();
        if halves.is_empty()
            && let Some(page) = cache.take()
        {
            halves.extend(Half::split(page));
            self.row_pages.fetch_add(1, Relaxed);
        }
        halves.pop()
    }
}
