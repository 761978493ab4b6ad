//! A table on its own: what a primary MMU is made of.
//!
//! The same radix table as the engine's, with the simplest rule of life: tables are linked when needed and stay
//! until the map is dropped. So a reference to an entry lives as long as the map, readers need no section, and
//! everything here is safe. Who may *write* an entry when is the owner's business (in `slat-mm`: its page lock).
//!
//! ```
//! use slat::table::{Map, formats::X64, memory::Heap, Word, Version};
//! use slat::{Gfn, Level};
//!
//! let map = Map::<X64, _>::new(Heap)?;
//! assert!(map.find(Gfn(7)).0 > Level::K4, "nothing linked yet: the lookup ends high up");
//! let entry = map.reach(Gfn(7), Level::K4)?;
//! assert_eq!(entry.load(), Word::hole(Version::default()));
//! # Ok::<(), slat::table::NoMemory>(())
//! ```

use super::cursor::Cursor;
use super::entry::Entry;
use super::format::Format;
use super::memory::TableMemory;
use super::pool::{Cache, NoMemory, Pool};
use super::radix::Radix;
use crate::addr::{Gfn, Level, Span};
use crate::age::AccessedPages;
use crate::age::pass::{Found, How, Pass};
use crate::age::scan::Accessed;

/// A table whose pages live as long as it. See the module's header.
#[derive(Debug)]
pub struct Map<F: Format, M: TableMemory> {
    radix: Radix<F>,
    pool: Pool,
    memory: M,
}

impl<F: Format, M: TableMemory> Map<F, M> {
    /// An empty map in `memory`.
    pub fn new(memory: M) -> Result<Self, NoMemory> {
        let pool = Pool::new(F::ROOT_PAGES);
        let radix = Radix::new(&memory, &pool)?;
        Ok(Self { radix, pool, memory })
    }

    /// The lowest entry there is for page number `page`, and its level.
    #[inline]
    pub fn find(&self, page: Gfn) -> (Level, &Entry) {
        // SAFETY: nothing is ever unlinked from a map.
        let at = unsafe { self.radix.descend(&self.memory, page) };
        (at.level, at.entry)
    }

    /// The entry of `page` at `level`, tables linked on the way. Where a larger leaf is in the way, its entry
    /// comes back instead: [`find`](Self::find) tells the level. May ask the memory for a chunk, hence may sleep.
    pub fn reach(&self, page: Gfn, level: Level) -> Result<&Entry, NoMemory> {
        let mut cache = Cache::default();
        loop {
            // SAFETY: nothing is ever unlinked from a map.
            let at = unsafe { self.radix.descend(&self.memory, page) };
            if at.level <= level || !at.word.is_hole() {
                return Ok(at.entry);
            }
            self.pool.top_up(&self.memory, &mut cache, usize::from(F::LEVELS), || false)?;
            // SAFETY: as above.
            let linked = unsafe { Radix::<F>::link_down(&self.memory, &mut cache, page, at, level) };
            self.pool.give_back(cache.drain());
            // Look again in any case: who links tables for a neighbour may have been faster, by several levels.
            linked?;
        }
    }

    /// Replaces the leaf in `entry` (found at `level`, above 4K) by a table of smaller leaves in place: whoever
    /// looks sees the large leaf or all of the small ones. `child(i)` is the word for the i-th 512th. False where
    /// the entry changed meanwhile.
    pub fn split(
        &self,
        level: Level,
        entry: &Entry,
        seen: super::Word,
        child: impl Fn(u64) -> super::Word,
    ) -> Result<bool, NoMemory> {
        let mut cache = Cache::default();
        self.pool.top_up(&self.memory, &mut cache, 1, || false)?;
        let node = cache.take().ok_or(NoMemory)?;
        // SAFETY: this page is in no table yet.
        for (index, slot) in unsafe { node.entries() }.iter().enumerate() {
            slot.fill(child(index as u64));
        }
        let done = entry.cas(seen, F::link(node.pfn(&self.memory), level)).is_ok();
        if !done {
            cache.put_back(node);
        }
        self.pool.give_back(cache.drain());
        Ok(done)
    }

    /// Visits every entry that maps or could map a page of `pages`, in order, links excepted: leaves and holes,
    /// with the pages that each covers (which may reach out of `pages`).
    pub fn for_each(&self, pages: Span<Gfn>, mut visit: impl FnMut(Span<Gfn>, Level, &Entry)) {
        // SAFETY: nothing is ever unlinked from a map.
        let root = unsafe { self.radix.root(&self.memory) };
        let mut cursor = Cursor::<F>::new(root, pages, Level::K4);
        // SAFETY: as above.
        while let Some(step) = unsafe { cursor.next(&self.memory) } {
            if !F::is_table(step.at.word, step.at.level) {
                visit(step.gfns, step.at.level, step.at.entry);
            }
        }
    }

    /// Tells `seen` which pages have Accessed set in their leaves, table by table in order, and clears it. Leaves only:
    /// nobody but their owner walks this table.
    pub fn age(&self, pages: Span<Gfn>, mut seen: impl FnMut(&AccessedPages<Gfn>)) {
        let mut pass =
            Pass::<F, Accessed, M, _>::new(&self.memory, How::every_leaf(Found::Cleared), |accessed| {
                seen(&accessed);
                true
            });
        // SAFETY: nothing is ever unlinked from a map.
        let root = unsafe { self.radix.root(&self.memory) };
        let mut at = pages.start;
        while at < pages.end.min(Gfn(1 << F::FRAME_BITS)) {
            // SAFETY: as above.
            at = unsafe { pass.stretch(root, Span::new(at, pages.end)) };
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn radix(&self) -> &Radix<F> {
        &self.radix
    }

    /// The memory that its tables are made of.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Bytes of table pages in use.
    pub fn table_bytes(&self) -> u64 {
        self.pool.in_use() * crate::addr::PAGE_SIZE
    }
}

impl<F: Format, M: TableMemory> Drop for Map<F, M> {
    fn drop(&mut self) {
        // SAFETY: `&mut self`: no reference to an entry is left.
        unsafe { self.pool.release(&self.memory) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Pfn;
    use crate::table::format::{Leaf, Perms};
    use crate::table::formats::X64;
    use crate::table::memory::Heap;
    use alloc::boxed::Box;
    use alloc::sync::Arc;
    use alloc::vec::Vec;
    use core::ptr::NonNull;
    use std::sync::Mutex;

    fn leaf(pfn: u64, level: Level) -> crate::table::Word {
        let leaf =
            Leaf { pfn: Pfn(pfn), perms: Perms::RWX, host_writable: true, accessed: false, dirty: false };
        X64::leaf(&leaf, level)
    }

    #[test]
    fn a_range_visits_each_entry_once_and_in_order() {
        let map = Map::<X64, _>::new(Heap).unwrap();
        let pages = [0u64, 1, 511, 512, 513, 1 << 18, (1 << 18) + 1, (1 << 27) + 5, (1 << 36) - 1];
        for &page in &pages {
            map.reach(Gfn(page), Level::K4).unwrap().store(leaf(page + 100, Level::K4));
        }
        let mut seen = Vec::new();
        let mut end = 0;
        map.for_each(Span::new(Gfn(1), Gfn((1 << 36) - 1)), |gfns, level, entry| {
            assert!(gfns.start.0 >= end || seen.is_empty(), "in order, no overlap");
            end = gfns.end.0;
            if X64::is_present(entry.load()) {
                assert_eq!(level, Level::K4);
                seen.push(gfns.start.0);
            }
        });
        assert_eq!(seen, pages[1..8]);
        assert_eq!(end, (1 << 36) - 1, "gaps are visited too, up to the end of the range");
    }

    #[test]
    fn a_split_shows_the_same_translation_before_and_after() {
        let map = Map::<X64, _>::new(Heap).unwrap();
        let entry = map.reach(Gfn(1024), Level::M2).unwrap();
        let large = leaf(4096, Level::M2);
        entry.store(large);
        assert!(map.split(Level::M2, entry, large, |i| leaf(4096 + i, Level::K4)).unwrap());
        let (level, small) = map.find(Gfn(1024 + 77));
        assert_eq!((level, X64::pfn(small.load())), (Level::K4, Pfn(4096 + 77)));
        assert!(
            !map.split(Level::M2, entry, large, |i| leaf(i, Level::K4)).unwrap(),
            "the entry has changed"
        );
    }

    type Race = Box<dyn FnOnce() + Send>;

    /// Memory in which somebody is faster: what is set up happens when a thread is about to link a table.
    #[derive(Clone, Default)]
    struct Racing(Arc<Mutex<Option<Race>>>);

    // SAFETY: the trait's own way, but for what happens first.
    unsafe impl TableMemory for Racing {
        fn pfn(&self, page: NonNull<u8>) -> Pfn {
            let race = self.0.lock().unwrap().take();
            if let Some(race) = race {
                race();
            }
            Heap.pfn(page)
        }
    }

    /// Neighbours link the same tables, several levels of them: whoever is late ends at its own entry all the same.
    #[test]
    fn two_who_link_tables_at_once_both_reach_their_pages() {
        let racing = Racing::default();
        let map = Arc::new(Map::<X64, _>::new(racing.clone()).unwrap());
        let faster = map.clone();
        *racing.0.lock().unwrap() = Some(Box::new(move || {
            faster.reach(Gfn(512), Level::K4).unwrap().store(leaf(5, Level::K4));
        }));
        map.reach(Gfn(0), Level::K4).unwrap().store(leaf(6, Level::K4));
        for (page, pfn) in [(512, 5), (0, 6)] {
            let (level, entry) = map.find(Gfn(page));
            assert_eq!((level, X64::pfn(entry.load())), (Level::K4, Pfn(pfn)));
        }
    }
}
