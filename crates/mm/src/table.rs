//! The page table of an address space: a [`Map`] whose page numbers were checked.
//!
//! Every address of an address space is below the end of [`ADDRESSES`]. The table has a page number for each of
//! them, so no lookup here is out of range.

use crate::arena::{Arena, ArenaHandle};
use crate::vma::ADDRESSES;
use slat::map::{Map, Place, ReachError, TableReserve};
use slat::table::{NoMemory, formats::X64};
use slat::{AccessedPages, Format, Gfn, Level, PAGE_SHIFT, Span};
use std::sync::Arc;

/// An entry of the table.
pub(crate) type Entry<'a> = Place<'a, X64, ArenaHandle>;

/// Table pages in reserve.
pub(crate) type Reserve<'a> = TableReserve<'a, X64, ArenaHandle>;

/// The page table of one address space.
#[derive(Debug)]
pub(crate) struct Table(Map<X64, ArenaHandle>);

const _: () = assert!(ADDRESSES.end.0 <= 1 << (X64::FRAME_BITS + PAGE_SHIFT));

impl Table {
    pub(crate) fn new(arena: &Arc<Arena>) -> Result<Self, NoMemory> {
        Map::new(ArenaHandle::from(arena)).map(Self)
    }

    /// Returns the lowest entry for `page`, and its level.
    #[inline]
    pub(crate) fn find(&self, page: Gfn) -> (Level, Entry<'_>) {
        let place = self.0.find(page).expect("a page of an address space");
        (place.level(), place)
    }

    /// [`Map::reach`].
    pub(crate) fn reach(&self, page: Gfn, level: Level) -> Result<Entry<'_>, NoMemory> {
        self.0.reach(page, level).map_err(|error| match error {
            ReachError::NoMemory => NoMemory,
            _ => unreachable!("a page of an address space"),
        })
    }

    /// [`Map::reserve`].
    pub(crate) fn reserve(&self, pages: usize) -> Result<Reserve<'_>, NoMemory> {
        self.0.reserve(pages)
    }

    /// Returns the entry of `page` at `level`, which must be linked or have a page in `reserve`.
    pub(crate) fn reach_with<'m>(&'m self, page: Gfn, level: Level, reserve: &mut Reserve<'m>) -> Entry<'m> {
        self.0.reach_with(page, level, reserve).expect("a page of an address space, and tables at hand")
    }

    /// [`Map::for_each`].
    pub(crate) fn for_each(&self, pages: Span<Gfn>, mut visit: impl FnMut(Span<Gfn>, Level, Entry<'_>)) {
        self.0.for_each(pages, |covers, place| visit(covers, place.level(), place));
    }

    /// [`Map::age`].
    pub(crate) fn age(&self, pages: Span<Gfn>, seen: impl FnMut(&AccessedPages<Gfn>)) {
        self.0.age(pages, seen);
    }

    /// Returns the bytes of table pages in use.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.table_bytes()
    }
}
