//! A table on its own: pages are mapped one by one, without memslots, a host, or faults.
//!
//! The same radix table as the engine's, with the simplest rule of life: tables are linked when needed and stay
//! until the map is dropped. So a [`Place`] lives as long as the map, and readers need no section. Which thread may
//! *write* an entry at a time is the owner's business.
//!
//! The map stays in the engine because it is for embedders: a hypervisor that manages frames itself maps GFN to PFN with it, in
//! any format of this crate, and `slat-mm` maps pages of an address space to its frames. Outside it would need the engine's
//! table pool, radix walk, range cursor and aging pass as public interfaces, each with safety rules that only the engine can keep.
//!
//! Safe code cannot make a map follow a link that the map did not make: a place takes words that link nothing, and only
//! the map links tables, of its own memory.
//!
//! ```
//! use slat::map::Map;
//! use slat::table::{formats::X64, memory::Heap, Word, Version};
//! use slat::{Gfn, Level};
//!
//! let map = Map::<X64, _>::new(Heap)?;
//! assert!(map.find(Gfn(7)).unwrap().level() > Level::K4, "nothing linked yet: the lookup ends high up");
//! let place = map.reach(Gfn(7), Level::K4)?;
//! assert_eq!(place.load(), Word::hole(Version::default()));
//! assert!(map.find(Gfn(1 << 36)).is_none(), "four levels have 2^36 pages");
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```

use crate::addr::{Gfn, Level, Span};
use crate::age::AccessedPages;
use crate::age::pass::{Found, How, Pass};
use crate::age::scan::Accessed;
use crate::table::cursor::Cursor;
use crate::table::entry::{Entry, Word};
use crate::table::format::{Format, assert_format};
use crate::table::memory::{ENTRIES, TableMemory};
use crate::table::pool::{Cache, NoMemory, Pool};
use crate::table::radix::{At, Radix};

/// A table whose pages live as long as it. See the module's header.
#[derive(Debug)]
pub struct Map<F: Format, M: TableMemory> {
    radix: Radix<F>,
    pool: Pool,
    memory: M,
}

/// Why [`Map::reach`] has no entry to give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReachError {
    /// The memory has no chunk left for a table.
    NoMemory,
    /// The format has no such page number: it has 2 to the power of this many.
    Beyond(u32),
}

impl core::fmt::Display for ReachError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoMemory => NoMemory.fmt(f),
            Self::Beyond(bits) => write!(f, "the page number is out of range: it must be below 2^{bits}"),
        }
    }
}

impl core::error::Error for ReachError {}

/// An entry of a map that is a leaf or a hole, or was one when it was looked up.
#[derive(Debug)]
pub struct Place<'m, F: Format, M: TableMemory> {
    map: &'m Map<F, M>,
    entry: &'m Entry,
    level: Level,
}

impl<F: Format, M: TableMemory> Clone for Place<'_, F, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: Format, M: TableMemory> Copy for Place<'_, F, M> {}

impl<F: Format, M: TableMemory> Place<'_, F, M> {
    /// The level of the table that it stands in: how much it maps.
    #[inline]
    pub fn level(&self) -> Level {
        self.level
    }

    /// What it holds now. A link, if another thread has linked a table here since it was looked up.
    #[inline]
    pub fn load(&self) -> Word {
        self.entry.load()
    }

    /// Replaces whatever is there. Pages below a table that has been linked here meanwhile are not found any more; the
    /// owner's own lock prevents that.
    ///
    /// # Panics
    /// Where the format takes `word` for a link at this level: only the map links tables.
    #[inline]
    pub fn store(&self, word: Word) {
        self.entry.store(unlinked::<F>(word, self.level));
    }

    /// Sets the format's Accessed bit if the entry still holds `seen`, as a hardware walker does.
    #[inline]
    pub fn accessed(&self, seen: Word) -> bool {
        self.entry.touch(seen, F::ACCESSED)
    }

    /// Replaces its leaf `seen`, larger than 4 KiB, by a table of smaller leaves in place: a reader sees the large leaf or
    /// all of the small ones. `child(i)` is the word for the i-th 512th. False where the entry holds something else.
    ///
    /// # Panics
    /// At 4 KiB, and where the format takes a child for a link.
    pub fn split(&self, seen: Word, child: impl Fn(u64) -> Word) -> Result<bool, NoMemory> {
        let Self { map, entry, level } = *self;
        let below = level.down();
        let words: [Word; ENTRIES] = core::array::from_fn(|index| unlinked::<F>(child(index as u64), below));
        let mut spare = Spare::new(map);
        spare.top_up(1)?;
        let node = spare.cache.take().ok_or(NoMemory)?;
        // SAFETY: this page is in no table yet.
        for (slot, word) in unsafe { node.entries() }.iter().zip(words) {
            slot.fill(word);
        }
        let link = F::link(node.pfn(&map.memory), level);
        let done = !F::is_table(seen, level) && entry.cas(seen, link).is_ok();
        if !done {
            spare.cache.put_back(node);
        }
        Ok(done)
    }
}

/// `word`, which links nothing where it stands in an entry of `level`.
#[inline(always)]
fn unlinked<F: Format>(word: Word, level: Level) -> Word {
    let links = F::is_table(word, level) && !seeded!(LinkTaken);
    assert!(!links, "{word:?} links a table: an entry of a map takes leaves and absent words");
    word
}

/// Pages for tables that are missing. Those that are not linked go back to the pool, however the attempt ends.
struct Spare<'m, F: Format, M: TableMemory> {
    map: &'m Map<F, M>,
    cache: Cache,
}

impl<'m, F: Format, M: TableMemory> Spare<'m, F, M> {
    fn new(map: &'m Map<F, M>) -> Self {
        Self { map, cache: Cache::default() }
    }

    fn top_up(&mut self, pages: usize) -> Result<(), NoMemory> {
        Ok(self.map.pool.top_up(&self.map.memory, &mut self.cache, pages, || false)?)
    }
}

impl<F: Format, M: TableMemory> Drop for Spare<'_, F, M> {
    fn drop(&mut self) {
        if !seeded!(SpareLost) {
            self.map.pool.give_back(self.cache.drain());
        }
    }
}

impl<F: Format, M: TableMemory> Map<F, M> {
    /// An empty map in `memory`. Does not compile for a format whose constants break what [`Format`] demands.
    pub fn new(memory: M) -> Result<Self, NoMemory> {
        const { assert_format::<F>() };
        let pool = Pool::new(F::ROOT_PAGES);
        let radix = Radix::new(&memory, &pool)?;
        Ok(Self { radix, pool, memory })
    }

    /// The lowest entry there is for page number `page`. `None` where the format has no such page.
    #[inline]
    pub fn find(&self, page: Gfn) -> Option<Place<'_, F, M>> {
        self.at(page).map(|at| self.place(at.entry, at.level))
    }

    /// The entry of `page` at `level`, tables linked on the way. Where a larger leaf is in the way, its entry
    /// comes back instead: [`Place::level`] tells. May ask the memory for a chunk, hence may sleep.
    pub fn reach(&self, page: Gfn, level: Level) -> Result<Place<'_, F, M>, ReachError> {
        let mut missed = usize::MAX;
        loop {
            let at = self.at(page).ok_or(ReachError::Beyond(F::FRAME_BITS))?;
            if at.level <= level || !at.word.is_hole() {
                return Ok(self.place(at.entry, at.level));
            }
            let missing = usize::from(at.level.number() - level.number());
            let mut spare = Spare::new(self);
            if spare.top_up(missing).is_ok() {
                // SAFETY: nothing is ever unlinked from a map.
                let linked =
                    unsafe { Radix::<F>::link_down(&self.memory, &mut spare.cache, page, at, level) };
                debug_assert!(linked.is_ok(), "a page was at hand for each level");
            } else if missing >= missed {
                return Err(ReachError::NoMemory);
            } else {
                // Another thread may have linked some of the tables, by pages that were free until then.
                missed = missing;
            }
            // Look again in any case: a thread that links tables for a neighbour may have been faster, by several levels.
        }
    }

    /// Visits every entry that maps or could map a page of `pages`, in order, links excepted: leaves and holes,
    /// with the pages that each covers (which may reach out of `pages`).
    pub fn for_each(&self, pages: Span<Gfn>, mut visit: impl FnMut(Span<Gfn>, Place<'_, F, M>)) {
        // SAFETY: nothing is ever unlinked from a map.
        let root = unsafe { self.radix.root(&self.memory) };
        let mut cursor = Cursor::<F>::new(root, pages, Level::K4);
        // SAFETY: as above.
        while let Some(step) = unsafe { cursor.next(&self.memory) } {
            if !F::is_table(step.at.word, step.at.level) {
                visit(step.gfns, self.place(step.at.entry, step.at.level));
            }
        }
    }

    /// Tells `seen` which pages have Accessed set in their leaves, table by table in order, and clears it. Leaves only:
    /// nothing but their owner walks this table.
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

    #[inline(always)]
    fn at(&self, page: Gfn) -> Option<At<'_>> {
        // SAFETY: nothing is ever unlinked from a map; the format has the page.
        (page.0 >> F::FRAME_BITS == 0).then(|| unsafe { self.radix.descend(&self.memory, page) })
    }

    #[inline(always)]
    fn place<'m>(&'m self, entry: &'m Entry, level: Level) -> Place<'m, F, M> {
        Place { map: self, entry, level }
    }

    #[cfg(test)]
    pub(crate) fn radix(&self) -> &Radix<F> {
        &self.radix
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
    use crate::seeded::{self, Bug};
    use crate::table::format::{Leaf, MemoryType, Perms};
    use crate::table::formats::X64;
    use crate::table::memory::Heap;
    use alloc::boxed::Box;
    use alloc::sync::Arc;
    use alloc::vec::Vec;
    use core::ptr::NonNull;
    use std::sync::Mutex;

    fn leaf(pfn: u64, level: Level) -> crate::table::Word {
        let leaf = Leaf {
            pfn: Pfn(pfn),
            perms: Perms::RWX,
            memory: MemoryType::WriteBack,
            host_writable: true,
            accessed: false,
            dirty: false,
        };
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
        map.for_each(Span::new(Gfn(1), Gfn((1 << 36) - 1)), |gfns, place| {
            assert!(gfns.start.0 >= end || seen.is_empty(), "in order, no overlap");
            end = gfns.end.0;
            if X64::is_present(place.load()) {
                assert_eq!(place.level(), Level::K4);
                seen.push(gfns.start.0);
            }
        });
        assert_eq!(seen, pages[1..8]);
        assert_eq!(end, (1 << 36) - 1, "gaps are visited too, up to the end of the range");
    }

    #[test]
    fn a_split_shows_the_same_translation_before_and_after() {
        let map = Map::<X64, _>::new(Heap).unwrap();
        let place = map.reach(Gfn(1024), Level::M2).unwrap();
        let large = leaf(4096, Level::M2);
        place.store(large);
        assert!(place.split(large, |i| leaf(4096 + i, Level::K4)).unwrap());
        let small = map.find(Gfn(1024 + 77)).unwrap();
        assert_eq!((small.level(), X64::pfn(small.load())), (Level::K4, Pfn(4096 + 77)));
        assert!(!place.split(large, |i| leaf(i, Level::K4)).unwrap(), "the entry has changed");
        assert!(!place.split(place.load(), |i| leaf(i, Level::K4)).unwrap(), "a link is no leaf");
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
            let place = map.find(Gfn(page)).unwrap();
            assert_eq!((place.level(), X64::pfn(place.load())), (Level::K4, Pfn(pfn)));
        }
    }

    /// One chunk: 63 table pages.
    #[derive(Default)]
    struct Small(Mutex<bool>);

    // SAFETY: the trait's own way, once.
    unsafe impl TableMemory for Small {
        fn alloc_chunk(&self) -> Option<NonNull<u8>> {
            (!core::mem::replace(&mut *self.0.lock().unwrap(), true)).then(|| Heap.alloc_chunk())?
        }
    }

    /// Pages that are linked nowhere when the memory has run out.
    fn lost_pages() -> u64 {
        let map = Map::<X64, _>::new(Small::default()).unwrap();
        let linked = (0..58).filter(|table| map.reach(Gfn(table * 512), Level::K4).is_ok()).count() as u64;
        assert!(map.reach(Gfn(1 << 27), Level::K4).is_err(), "three pages are needed, two are left");
        map.table_bytes() / crate::addr::PAGE_SIZE - linked - 3
    }

    #[test]
    fn a_reach_that_fails_gives_back_the_pages_that_it_got() {
        assert_eq!(lost_pages(), 0);
    }

    #[test]
    fn mistake_pages_that_were_not_used_are_lost() {
        assert!(seeded::with(Bug::SpareLost, lost_pages) > 0);
        seeded::found(Bug::SpareLost, 1);
    }

    /// Whether a look-up follows a link that was forged: to a table of another map, so that nothing is harmed.
    fn follows_a_forged_link() -> bool {
        let [map, victim] = [(); 2].map(|()| Map::<X64, _>::new(Heap).unwrap());
        let word = leaf(9, Level::K4);
        victim.reach(Gfn(0), Level::K4).unwrap().store(word);
        // SAFETY: nothing is unlinked from a map.
        let table = unsafe { victim.radix().descend(&Heap, Gfn(0)) }.node.pfn(&Heap);
        let place = map.reach(Gfn(0), Level::M2).unwrap();
        let store = || place.store(X64::link(table, Level::M2));
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(store));
        map.find(Gfn(0)).unwrap().load() == word
    }

    #[test]
    fn a_link_that_was_forged_is_never_followed() {
        assert!(!follows_a_forged_link());
    }

    #[test]
    fn mistake_a_map_takes_links() {
        assert!(seeded::with(Bug::LinkTaken, follows_a_forged_link));
        seeded::found(Bug::LinkTaken, 1);
    }
}
