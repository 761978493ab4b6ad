//! A large leaf of which a part changes becomes a table of smaller ones: as the engine's own do ([`crate::huge`]), with a row beside each.
//!
//! ```text
//! leaf ──split──▶ frozen ──split──▶ link: a table of smaller leaves
//!                   └─────edit────▶ condemned ──split──▶ hole
//! ```
//! **Frozen in between**, other than a leaf of L1's own: the rows are made of the leaf's. By one exchange from leaf to link they might be made
//! of an older row, where another fault has put the same frame there meanwhile by way of another frame of L1.
//!
//! **The hint of the large page stays**, and leads to whatever its leaf was split into: an invalidation goes over all entries of the part
//! that it is about. It removes the hint with the whole page. A hint that stays for nothing costs a needless flush.
//!
//! **It counts as a drop.** What condemns the entry meanwhile notes none, and a TLB may have the leaf.
//!
//! Without table pages at hand the whole leaf goes.

use super::rows::{Half, Rows};
use super::shadow::{edit, thaw};
use super::{Inside, Numbers, Reach, Shadow, Shadows, Taking, maps};
use crate::addr::{Gfn, Level, Span};
use crate::sync::prim::Relaxed;
use crate::table::cursor::Cursor;
use crate::table::entry::Word;
use crate::table::format::Format;
use crate::table::memory::{ENTRIES, TableMemory};
use crate::table::pool::{Cache, NoMemory};
use crate::table::radix::{At, link_parts};

/// Table pages to split leaves with.
#[derive(Debug)]
pub(crate) struct Pages<'p> {
    pub(crate) cache: Option<&'p mut Cache>,
    /// A leaf that is to be split stays where there are none: the caller comes once more.
    pub(crate) defers: bool,
    /// There were none where one was wanted.
    pub(crate) is_short: bool,
}

impl<'p> Pages<'p> {
    /// Large leaves go whole.
    pub(crate) fn none() -> Self {
        Self { cache: None, defers: false, is_short: false }
    }

    pub(crate) fn of(cache: &'p mut Cache) -> Self {
        Self { cache: Some(cache), ..Self::none() }
    }
}

impl<F: Format> Shadows<F> {
    /// Edits what stands for `g2s` in a shadow. A leaf that reaches out of `all` is split before it goes, or goes whole.
    pub(crate) fn reach_in<M: TableMemory>(
        &self,
        memory: &M,
        (shadow, inside): (&Shadow<F>, &Inside<'_>),
        taking: &Taking<'_, impl Numbers>,
        ((g2s, all), how): ((Span<Gfn>, Span<Gfn>), Reach),
        pages: &mut Pages<'_>,
    ) {
        // SAFETY: the root stays.
        let root = unsafe { shadow.radix.root(memory) };
        let mut cursor = Cursor::<F>::new(root, g2s, Level::K4);
        // SAFETY: inside the door.
        while let Some(step) = unsafe { cursor.next(memory) } {
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
    }

    /// Makes the leaf `at`, whose first frame is `g2`, a table of smaller ones. Comes back with what stands there then.
    pub(crate) fn split<M: TableMemory>(
        &self,
        memory: &M,
        (shadow, _inside): (&Shadow<F>, &Inside<'_>),
        taking: &Taking<'_, impl Numbers>,
        (at, g2): (At<'_>, Gfn),
        pages: &mut Pages<'_>,
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
        if !seeded!(SplitUntold) {
            shadow.line.will_splinter();
        }
        taking.begin();
        // The page is this thread's alone, so no other has the same mark.
        let mine = Word::frozen_link(node.pfn(memory));
        half.hang::<M>(node);
        let split = at.entry.cas(at.word, mine).and_then(|()| {
            // SAFETY: `at` was met inside the door. The new table is in no other.
            let (large, small) = unsafe { (Rows::of::<M>(at.node), Rows::of::<M>(node)) };
            if let (Some(large), Some(small)) = (large, small) {
                let row = large.get(F::index(g2, at.level));
                let pages = at.level.down().pages();
                (0..ENTRIES).for_each(|nth| {
                    small.set(nth, if seeded!(SplitRowAlike) { row } else { row.part(nth as u64 * pages) });
                });
            }
            link_parts::<F, M>(memory, node, At { word: mine, ..at }, (at.word, F::decode(at.word)))
        });
        split.or_else(|found| {
            if found.is_frozen() {
                thaw(at.entry, mine);
            }
            self.halves.lock().extend(Half::take_back::<M>(node));
            cache.put_back(node);
            Ok(at.entry.load())
        })
    }

    /// Rows that no table has, or half a page of the `cache`.
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
