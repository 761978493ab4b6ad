//! A table without a VM: the owner maps pages one by one, without memslots, a host, or faults.
//!
//! It is the engine's radix table with the simplest life cycle: tables are linked when needed and stay until the map is
//! dropped. A [`Place`] therefore lives as long as the map, and readers need no section. The owner decides which thread
//! may *write* an entry at a time.
//!
//! The map is part of the engine because it is for embedders. A hypervisor that manages frames itself maps GFN to PFN
//! with it, in any format of this crate; `slat-mm` maps pages of an address space to its frames. A separate crate would
//! need the engine's table pool, radix walk, range cursor and aging pass as public interfaces, each with safety rules
//! that only the engine can keep.
//!
//! [`Map::map`] and [`Map::unmap`] change ranges of frames. Their changes are in the tables when they return, and **the
//! owner must flush**: a processor that walks the map may use the old entries until its TLB forgets them. In the
//! example `map_frames` a hypervisor's second stage is such a map.
//!
//! Safe code cannot make a map follow a foreign link: a place takes only words that link nothing, and the map links
//! only tables of its own memory.
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

use crate::age::pass::{Found, How, Pass};
use crate::age::scan::Accessed;
use crate::table::format::assert_format;
use crate::table::{At, Cursor, ENTRIES, Entry, Pool, Radix, Reached, Scratch, Version};
use crate::{AccessedPages, Format, Gfn, Leaf, Level, NoMemory, Pfn, Span, TableMemory, Word};

/// A table whose pages live as long as the map; see the [module](self).
#[derive(Debug)]
pub struct Map<F: Format, M: TableMemory> {
    radix: Radix<F>,
    pool: Pool,
    memory: M,
}

/// Why [`Map::reach`] returns no entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReachError {
    /// The memory has no more chunks for tables.
    NoMemory,
    /// The format has no such page: page numbers must be below 2 to the power of this number.
    Beyond(u32),
    /// The format cannot hold the last of the frames: frame numbers must not exceed this one.
    Frame(Pfn),
}

errors! { ReachError:
    Self::NoMemory => "{NoMemory}";
    Self::Beyond(bits) => "the page number is out of range: it must be below 2^{bits}";
    Self::Frame(last) => "a frame is out of range: the format's last frame is {:#x}", last.0;
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
    /// The level of the entry's table, which is the size that the entry maps.
    #[inline]
    pub fn level(&self) -> Level {
        self.level
    }

    /// The current word. It is a link if another thread has linked a table here since the look-up.
    #[inline]
    pub fn load(&self) -> Word {
        self.entry.load()
    }

    /// The leaf that is mapped here. In a format without Accessed bits, a leaf that is not accessed is mapped and
    /// withdrawn from the hardware ([`Word::leaf`]).
    #[inline]
    pub fn leaf(&self) -> Option<Leaf> {
        self.load().leaf::<F>(self.level)
    }

    /// Replaces the word unconditionally. If a table has been linked here meanwhile, its pages are lost to look-ups;
    /// the owner's lock must prevent that.
    ///
    /// # Panics
    /// If the format treats `word` as a link at this level: only the map links tables.
    #[inline]
    pub fn store(&self, word: Word) {
        self.entry.store(unlinked::<F>(word, self.level));
    }

    /// Stores `word`, and returns the number of pages that were mapped here.
    fn replace(&self, word: Word) -> u64 {
        let mut old = self.load();
        let word = unlinked::<F>(word, self.level);
        // A walker may set Accessed and Dirty meanwhile.
        while let Err(found) = self.entry.cas(old, word) {
            old = found;
        }
        if old.leaf::<F>(self.level).is_some() { self.level.pages() } else { 0 }
    }

    /// Sets the format's Accessed bit if the entry still contains `seen`, as a hardware walker does.
    #[inline]
    pub fn accessed(&self, seen: Word) -> bool {
        self.entry.touch(seen, F::ACCESSED)
    }

    /// Replaces the leaf `seen`, larger than 4 KiB, by a table of smaller leaves in place. A reader sees either the
    /// large leaf or all of the small ones. `child(i)` is the word of the i-th 512th. Returns false if the entry
    /// contains another word.
    ///
    /// # Errors
    /// [`NoMemory`] if there is no page for the table.
    ///
    /// # Panics
    /// At 4 KiB, or if the format treats a child as a link.
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

/// Returns `word`, which must not be a link in an entry of `level`.
#[inline(always)]
fn unlinked<F: Format>(word: Word, level: Level) -> Word {
    assert!(
        !F::is_table(word, level),
        "{word:?} links a table: an entry of a map takes leaves and absent words"
    );
    word
}

/// Spare table pages of a map, for [`Map::reach_with`]. Dropping it returns unused pages to the map.
#[derive(Debug)]
pub struct TableReserve<'m, F: Format, M: TableMemory> {
    map: &'m Map<F, M>,
    cache: Scratch<'m>,
}

impl<'m, F: Format, M: TableMemory> TableReserve<'m, F, M> {
    fn new(map: &'m Map<F, M>) -> Self {
        Self { map, cache: map.pool.scratch() }
    }

    fn top_up(&mut self, pages: usize) -> Result<(), NoMemory> {
        Ok(self.map.pool.top_up(&self.map.memory, &mut self.cache, pages, || false)?)
    }
}

impl<F: Format, M: TableMemory> Map<F, M> {
    /// Makes an empty map in `memory`. A format whose constants violate the rules of [`Format`] does not compile.
    pub fn new(memory: M) -> Result<Self, NoMemory> {
        const { assert_format::<F>() };
        let pool = Pool::new(F::ROOT_PAGES);
        let radix = Radix::new(&memory, &pool)?;
        Ok(Self { radix, pool, memory })
    }

    /// Returns the lowest entry of page number `page`, or `None` if the format has no such page.
    #[inline]
    pub fn find(&self, page: Gfn) -> Option<Place<'_, F, M>> {
        self.at(page).map(|at| self.place(at.entry, at.level))
    }

    /// Returns the entry of `page` at `level`, and links missing tables. If a larger leaf is in the way, returns the
    /// leaf's entry instead; check [`Place::level`]. May ask the memory for a chunk, so it may sleep.
    pub fn reach(&self, page: Gfn, level: Level) -> Result<Place<'_, F, M>, ReachError> {
        self.reach_with(page, level, &mut TableReserve::new(self))
    }

    /// Reserves pages for `pages` tables. May ask the memory for a chunk, so it may sleep.
    ///
    /// ```
    /// # use slat::{map::Map, table::{Heap, formats::X64}, Gfn, Level};
    /// let map = Map::<X64, _>::new(Heap)?;
    /// let mut tables = map.reserve(3)?;
    /// // Three levels can now be linked, whatever happens to the memory.
    /// assert_eq!(map.reach_with(Gfn(7), Level::K4, &mut tables)?.level(), Level::K4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reserve(&self, pages: usize) -> Result<TableReserve<'_, F, M>, NoMemory> {
        let mut reserve = TableReserve::new(self);
        reserve.top_up(pages)?;
        Ok(reserve)
    }

    /// Like [`reach`](Self::reach), and takes tables from a reserve of this map first. If the reserve has a page for
    /// each missing table, this cannot fail for lack of memory.
    ///
    /// # Panics
    /// If the reserve belongs to another map.
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
                let linked = unsafe {
                    Radix::<F>::link_down(&self.memory, &mut spare.cache, &mut (), page, at, level)
                };
                if let Ok(Reached::Level(at)) = linked {
                    return Ok(self.place(at.entry, at.level));
                }
                debug_assert!(linked.is_ok(), "a page was at hand for each level");
            } else if missing >= missed {
                return Err(ReachError::NoMemory);
            } else {
                // Another thread may have linked some of the tables with pages that were free until then, or may need
                // the pages left.
                missed = missing;
                self.pool.give_back(spare.cache.drain());
            }
            // Look again: another thread has put something else there, or linked a part.
        }
    }

    /// The root from which a walker starts: for EPTP, nCR3, VTTBR, hgatp, CR3. It never changes.
    pub fn root(&self) -> Pfn {
        self.radix.root_word().pfn()
    }

    /// Maps `pages` to the frames from `first.pfn` on, with the attributes of `first`, in the largest pages that frames
    /// and format allow. Returns the number of pages that were mapped before, to any frames. If it is not 0, the owner
    /// must flush. May ask the memory for chunks, so it may sleep. Without memory, the pages before the failing one
    /// stay mapped. No other thread may edit these pages.
    ///
    /// ```
    /// use slat::{map::Map, table::{Heap, formats::Npt4}, *};
    /// let map = Map::<Npt4, _>::new(Heap)?;
    /// // 4 MiB of a guest's memory, which the hypervisor has at physical 1 GiB.
    /// let ram = Span::sized(Gfn(0), 1024);
    /// assert_eq!(map.map(ram, &Leaf::plain(Pfn(1 << 18)))?, 0);
    /// assert_eq!(map.find(Gfn(600)).unwrap().level(), Level::M2);
    /// // One page is unmapped, so the large page around it is split.
    /// assert_eq!(map.unmap(Span::sized(Gfn(600), 1))?, 1); // … and then INVEPT, TLBI
    /// assert_eq!(map.find(Gfn(601)).unwrap().level(), Level::K4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn map(&self, pages: Span<Gfn>, first: &Leaf) -> Result<u64, ReachError> {
        if pages.end > Gfn(1 << F::FRAME_BITS) {
            return Err(ReachError::Beyond(F::FRAME_BITS));
        }
        let last = F::pfn(Word(F::ADDRESS));
        if first.pfn > last || pages.len().saturating_sub(1) > last.0 - first.pfn.0 {
            return Err(ReachError::Frame(last));
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

    /// Unmaps `pages`, and returns the number of pages that were mapped. If it is not 0, the owner must flush before it
    /// reuses their frames. A large page that extends beyond the range is split, which may ask the memory for a chunk;
    /// without one, the pages before it are unmapped. Tables stay. No other thread may edit these pages.
    pub fn unmap(&self, pages: Span<Gfn>) -> Result<u64, ReachError> {
        if pages.end > Gfn(1 << F::FRAME_BITS) {
            return Err(ReachError::Beyond(F::FRAME_BITS));
        }
        let (mut at, mut before) = (pages.start, 0);
        while at < pages.end {
            let Some(place) = self.find(at) else { break };
            let covers = Span::sized(at.base(place.level()), place.level().pages());
            if !pages.covers(&covers) && place.leaf().is_some() {
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

    /// Returns the entry of `page` at `level`, and splits larger leaves on the way. Returns a smaller entry if there is
    /// a table.
    fn reach_exactly(&self, page: Gfn, level: Level) -> Result<Place<'_, F, M>, ReachError> {
        loop {
            let place = self.reach(page, level)?;
            if place.level() <= level {
                return Ok(place);
            }
            let (word, below) = (place.load(), place.level().down());
            let large = word.leaf::<F>(place.level());
            // An absent word that is no hole holds for each part.
            let small = |index: u64| {
                let part = |large: Leaf| Leaf { pfn: large.pfn + index * below.pages(), ..large };
                large.map_or(word, |large| F::leaf(&part(large), below))
            };
            place.split(word, small).map_err(|_| ReachError::NoMemory)?;
        }
    }

    /// Visits every leaf and hole that maps or could map a page of `pages`, in order. Passes the pages of each entry,
    /// which may extend beyond `pages`.
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

    /// Calls `seen` with the pages whose leaves have Accessed set, table by table in order, and clears the bits. Uses
    /// leaves only, because only the owner walks this table.
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
        // SAFETY: nothing is ever unlinked from a map, and the format has the page.
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

    /// Number of bytes of table pages in use.
    pub fn table_bytes(&self) -> u64 {
        self.pool.in_use() * crate::addr::PAGE_SIZE
    }
}

impl<F: Format, M: TableMemory> Drop for Map<F, M> {
    fn drop(&mut self) {
        // SAFETY: `&mut self` means that no reference to an entry is left.
        unsafe { self.pool.release(&self.memory) };
    }
}

#[cfg(test)]
mod tests;
