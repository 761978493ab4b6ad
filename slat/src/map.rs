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
//! [`Map::map`] and [`Map::unmap`] are for ranges of frames. What they change is in the tables when they return, and **flushes are the
//! owner's**: a processor that walks the map may use what was there until its TLB has forgotten it. The example `map_frames` has a
//! hypervisor's second stage by this alone.
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

use crate::addr::{Gfn, Level, Pfn, Span};
use crate::age::AccessedPages;
use crate::age::pass::{Found, How, Pass};
use crate::age::scan::Accessed;
use crate::table::cursor::Cursor;
use crate::table::entry::{Entry, Version, Word};
use crate::table::format::{Format, Leaf, assert_format};
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

errors! { ReachError:
    Self::NoMemory => "{NoMemory}";
    Self::Beyond(bits) => "the page number is out of range: it must be below 2^{bits}";
}

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

    /// Stores `word`, and returns how many pages were mapped there.
    fn replace(&self, word: Word) -> u64 {
        let mut old = self.load();
        let word = unlinked::<F>(word, self.level);
        // A walker may set Accessed and Dirty.
        while let Err(found) = self.entry.cas(old, word) {
            old = found;
        }
        if F::is_present(old) { self.level.pages() } else { 0 }
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
        let mut spare = TableReserve::new(map);
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

/// Pages for tables of a map, at hand: [`Map::reach_with`] takes them. Those that are not linked go back to the map when this is dropped.
#[derive(Debug)]
pub struct TableReserve<'m, F: Format, M: TableMemory> {
    map: &'m Map<F, M>,
    cache: Cache,
}

impl<'m, F: Format, M: TableMemory> TableReserve<'m, F, M> {
    fn new(map: &'m Map<F, M>) -> Self {
        Self { map, cache: Cache::default() }
    }

    fn top_up(&mut self, pages: usize) -> Result<(), NoMemory> {
        Ok(self.map.pool.top_up(&self.map.memory, &mut self.cache, pages, || false)?)
    }
}

impl<F: Format, M: TableMemory> Drop for TableReserve<'_, F, M> {
    fn drop(&mut self) {
        let rest = self.cache.drain();
        // Without any, the pool's lock is not taken: a fault that finds its table shares nothing.
        if rest.len() > 0 && !seeded!(SpareLost) {
            self.map.pool.give_back(rest);
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
        self.reach_with(page, level, &mut TableReserve::new(self))
    }

    /// Pages for `pages` tables, kept at hand. May ask the memory for a chunk, hence may sleep.
    ///
    /// ```
    /// # use slat::{map::Map, table::{Heap, formats::X64}, Gfn, Level};
    /// let map = Map::<X64, _>::new(Heap)?;
    /// let mut tables = map.reserve(3)?;
    /// // Whatever becomes of the memory meanwhile: three levels can be linked.
    /// assert_eq!(map.reach_with(Gfn(7), Level::K4, &mut tables)?.level(), Level::K4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reserve(&self, pages: usize) -> Result<TableReserve<'_, F, M>, NoMemory> {
        let mut reserve = TableReserve::new(self);
        reserve.top_up(pages)?;
        Ok(reserve)
    }

    /// [`reach`](Self::reach), with tables from a reserve of this map first: where it has one for each that is missing, this cannot fail for
    /// want of memory.
    ///
    /// # Panics
    /// Where the reserve is another map's.
    pub fn reach_with<'m>(
        &'m self,
        page: Gfn,
        level: Level,
        spare: &mut TableReserve<'m, F, M>,
    ) -> Result<Place<'m, F, M>, ReachError> {
        assert!(core::ptr::eq(self, spare.map), "a reserve of this map");
        let mut missed = usize::MAX;
        loop {
            let at = self.at(page).ok_or(ReachError::Beyond(F::FRAME_BITS))?;
            if at.level <= level || !at.word.is_hole() {
                return Ok(self.place(at.entry, at.level));
            }
            let missing = usize::from(at.level.number() - level.number());
            if spare.top_up(missing).is_ok() {
                // SAFETY: nothing is ever unlinked from a map.
                let linked =
                    unsafe { Radix::<F>::link_down(&self.memory, &mut spare.cache, page, at, level) };
                debug_assert!(linked.is_ok(), "a page was at hand for each level");
            } else if missing >= missed {
                return Err(ReachError::NoMemory);
            } else {
                // Another thread may have linked some of the tables, by pages that were free until then; or need what is left.
                missed = missing;
                self.pool.give_back(spare.cache.drain());
            }
            // Look again in any case: a thread that links tables for a neighbour may have been faster, by several levels.
        }
    }

    /// Where a walker begins: for EPTP, nCR3, VTTBR, hgatp, CR3. It stays.
    pub fn root(&self) -> Pfn {
        self.radix.root_word().pfn()
    }

    /// Maps `pages` to the frames from `first.pfn` on, in pages as large as frames and format allow, each as `first` says. Returns how
    /// many pages were mapped there before, to other frames or the same: where that is not 0, the owner flushes. May ask the memory for
    /// chunks, hence may sleep; without memory the pages before stay mapped. No other thread edits these pages.
    ///
    /// ```
    /// use slat::{map::Map, table::{Heap, formats::Npt4}, *};
    /// let map = Map::<Npt4, _>::new(Heap)?;
    /// // 4 MiB of a guest's memory, which the hypervisor has at physical 1 GiB.
    /// let ram = Span::sized(Gfn(0), 1024);
    /// assert_eq!(map.map(ram, &Leaf::plain(Pfn(1 << 18)))?, 0);
    /// assert_eq!(map.find(Gfn(600)).unwrap().level(), Level::M2);
    /// // One page goes; the large page around it is split.
    /// assert_eq!(map.unmap(Span::sized(Gfn(600), 1))?, 1); // … and then INVEPT, TLBI
    /// assert_eq!(map.find(Gfn(601)).unwrap().level(), Level::K4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn map(&self, pages: Span<Gfn>, first: &Leaf) -> Result<u64, ReachError> {
        if pages.end > Gfn(1 << F::FRAME_BITS) {
            return Err(ReachError::Beyond(F::FRAME_BITS));
        }
        let (mut at, mut before) = (pages.start, 0);
        while at < pages.end {
            let pfn = first.pfn + (at.0 - pages.start.0);
            let fits = |level: &Level| {
                let frames = level.pages();
                at.0.is_multiple_of(frames) && pfn.0.is_multiple_of(frames) && at + frames <= pages.end
            };
            let level = [Level::G1, Level::M2].into_iter().find(|level| *level <= F::MAX_LEAF && fits(level));
            let level = level.unwrap_or(Level::K4);
            let place = self.reach_exactly(at, level)?;
            // A table that was linked here once stays.
            let level = place.level().min(level);
            before += place.replace(F::leaf(&Leaf { pfn, ..*first }, level));
            at = at + level.pages();
        }
        Ok(before)
    }

    /// Unmaps `pages`, and returns how many of them were mapped: where that is not 0, the owner flushes before it uses their frames again.
    /// A large page that reaches out of the range is split, which may ask the memory for a chunk; without one the pages before are
    /// unmapped. Tables stay. No other thread edits these pages.
    pub fn unmap(&self, pages: Span<Gfn>) -> Result<u64, ReachError> {
        if pages.end > Gfn(1 << F::FRAME_BITS) {
            return Err(ReachError::Beyond(F::FRAME_BITS));
        }
        let (mut at, mut before) = (pages.start, 0);
        while at < pages.end {
            let Some(place) = self.find(at) else { break };
            let covers = Span::sized(at.base(place.level()), place.level().pages());
            if !pages.covers(&covers) && F::is_present(place.load()) {
                self.reach_exactly(at, place.level().down())?;
                continue;
            }
            if pages.covers(&covers) {
                before += place.replace(Word::hole(Version::default()));
            }
            at = covers.end;
        }
        Ok(before)
    }

    /// The entry of `page` at `level`, larger leaves split on the way; or a smaller one, where there is a table.
    fn reach_exactly(&self, page: Gfn, level: Level) -> Result<Place<'_, F, M>, ReachError> {
        loop {
            let place = self.reach(page, level)?;
            if place.level() <= level {
                return Ok(place);
            }
            let (word, below) = (place.load(), place.level().down());
            let small = |index: u64| {
                let large = F::read_leaf(word);
                F::leaf(&Leaf { pfn: large.pfn + index * below.pages(), ..large }, below)
            };
            place.split(word, small).map_err(|_| ReachError::NoMemory)?;
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
mod tests;
