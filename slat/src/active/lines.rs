//! Words through which faults learn of invalidations: a line for each region of host addresses, and the epoch.
//!
//! A **region** is 2 MiB of host address space: what a leaf table maps. A hash of its number chooses one of 256 lines.
//! A narrow invalidation is announced only on the lines of its regions, so a fault elsewhere reads no word that it
//! writes. The **epoch** is one more line, for wide invalidations: those of many regions, and those of guest frames,
//! which include memslot transactions.
//!
//! **Rejected alternatives.** One word for the VM: every invalidation would write it and every fault read it. Wide
//! invalidations listed on all lines, without an epoch: each memslot transaction would cost 256 exchanges.

use super::places::PlaceBit;
use crate::lent::Lent;
use crate::sync::prim::{AtomicU64, Padded};
use crate::{Hva, Level, Span, Word};
use alloc::boxed::Box;

const REGION_SHIFT: u32 = Level::M2.bytes().ilog2();
const LINES: usize = if cfg!(loom) { 2 } else { 256 };
/// An invalidation of more regions than this is wide.
const NARROW: u64 = if cfg!(any(loom, shuttle)) { 2 } else { 16 };

/// The announcements of invalidations to faults on a region, or to all faults. Alone on its cache line. Some processors
/// fetch two neighbouring lines together, but their regions are far apart. Padding would cost 16 KiB a VM.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Line {
    /// Of a region: the hole of the newest number announced there. It only rises. A hole, since faults compare it with
    /// holes. Of the epoch: number of begins and ends.
    word: AtomicU64,
    /// Bitmap of the first places that are listed here.
    listed: AtomicU64,
    /// Number of listed invalidations with other places.
    beyond: AtomicU64,
}

/// All lines of an active set. See the module's header.
#[derive(Debug)]
pub(super) struct Lines {
    pub(super) epoch: Padded<Line>,
    regions: Box<[Line; LINES]>,
}

/// The regions of a narrow invalidation, or none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Regions<'a> {
    /// The first one, and the one after the last.
    first: u64,
    end: u64,
    /// The line, if there is one region.
    only: Option<Lent<'a, Line>>,
}

/// The index of a region's line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RegionLine(usize);

impl Lines {
    pub(super) fn new() -> Self {
        Self { epoch: Padded::default(), regions: Box::new(core::array::from_fn(|_| Line::region())) }
    }

    /// Returns the line of the region of `hva`.
    #[inline(always)]
    pub(super) fn of(&self, hva: Hva) -> &Line {
        self.at(RegionLine::of(hva))
    }

    #[inline(always)]
    pub(super) fn at(&self, line: RegionLine) -> &Line {
        &self.regions[line.0 % LINES]
    }

    fn of_regions(&self, (first, end): (u64, u64)) -> impl Iterator<Item = &Line> {
        (first..end).map(|region| self.at(RegionLine::of_region(region)))
    }

    #[inline(never)]
    fn each_of(&self, regions: (u64, u64), visit: impl Fn(&Line)) {
        self.of_regions(regions).for_each(visit);
    }

    /// Returns the regions of a narrow invalidation of `hvas`; `None` if it is wide.
    pub(super) fn narrow(&self, hvas: Span<Hva>) -> Option<Regions<'_>> {
        let (first, end) = (hvas.start.0 >> REGION_SHIFT, hvas.end.0.div_ceil(1 << REGION_SHIFT));
        (!hvas.is_empty() && end - first <= NARROW).then(|| {
            let only = (end - first == 1).then(|| Lent::new(self.at(RegionLine::of_region(first))));
            Regions { first, end, only }
        })
    }
}

impl Regions<'_> {
    pub(super) const NONE: Self = Self { first: 0, end: 0, only: None };

    /// Returns the line of its region, if it has only one.
    #[inline(always)]
    pub(super) fn only(&self) -> Option<&Line> {
        self.only.as_deref()
    }

    /// Returns the first region, and the one after the last.
    fn ends(&self) -> (u64, u64) {
        (self.first, self.end)
    }

    /// Calls `visit` with the line of each region. Mostly there is one.
    #[inline(always)]
    pub(super) fn each(&self, lines: &Lines, visit: impl Fn(&Line)) {
        match self.only() {
            Some(line) => visit(line),
            None if self.first < self.end => lines.each_of(self.ends(), visit),
            None => {}
        }
    }

    /// Whether `matches` is true of the line of any region.
    #[inline(always)]
    pub(super) fn any(&self, lines: &Lines, matches: impl Fn(&Line) -> bool) -> bool {
        match self.only() {
            Some(line) => matches(line),
            None => lines.of_regions(self.ends()).any(matches),
        }
    }
}

impl RegionLine {
    /// A placeholder where nothing is confirmed.
    pub(crate) const NONE: Self = Self(0);

    /// Returns the line of the region of `hva`.
    #[inline(always)]
    pub(crate) fn of(hva: Hva) -> Self {
        Self::of_region(hva.0 >> REGION_SHIFT)
    }

    /// Returns the line of region number `region`. Neighbours, and regions a power of two apart, differ.
    #[inline(always)]
    pub(super) fn of_region(region: u64) -> Self {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        Self((region.wrapping_mul(GOLDEN) >> (64 - LINES.ilog2())) as usize)
    }
}

impl Line {
    /// A region's line before its first announcement.
    fn region() -> Self {
        Self { word: AtomicU64::new(Word::OLDEST.0), ..Self::default() }
    }

    /// Returns the newest hole of a region.
    #[inline(always)]
    pub(super) fn newest(&self) -> Word {
        Word(self.word())
    }

    #[inline(always)]
    pub(super) fn word(&self) -> u64 {
        // Pairs with the Release in `announce` and `move_on`: a reader of a number sees all invalidations with older
        // numbers listed; a reader of a moved epoch sees what was published by then.
        self.word.load(order!(begin.stamp, Acquire))
    }

    /// Returns the newer of the region's number and `seen`, a hole that a fault met; raises the number to it.
    #[inline]
    pub(super) fn newest_since(&self, seen: Word) -> Word {
        let newest = self.newest();
        if newest < seen {
            // Other faults then need not raise it again.
            self.announce(seen);
        }
        newest.max(seen)
    }

    /// Returns the listed invalidations, as [`Places::listed`](super::places::Places::listed) takes them.
    #[inline(always)]
    pub(super) fn listed(&self) -> (u64, u64) {
        // Pairs with the Release in `unlist`: the host of an ended invalidation has changed.
        let order = order!(active.listed, Acquire);
        (self.listed.load(order), self.beyond.load(order))
    }

    /// Returns the listed invalidations without the one with this bit, if it has a bit.
    #[inline(always)]
    pub(super) fn listed_but(&self, bit: Option<PlaceBit>) -> (u64, u64) {
        let (first, beyond) = self.listed();
        (first & !bit.map_or(0, PlaceBit::get), beyond)
    }

    /// Lists an invalidation that is about to take its number.
    #[inline(always)]
    pub(super) fn list(&self, bit: Option<PlaceBit>) {
        // The place before its bit; and the bits of others stay in order.
        let order = order!(active.list, AcqRel);
        match bit {
            Some(bit) => self.listed.fetch_or(bit.get(), order),
            None => self.beyond.fetch_add(1, order),
        };
    }

    /// Announces the number of `hole` to the region.
    pub(super) fn announce(&self, hole: Word) {
        // The lists, of this invalidation and of those with older numbers, before the number.
        self.word.fetch_max(hole.0, order!(begin.announce, AcqRel));
    }

    /// Moves the epoch: a wide invalidation begins, or is about to end.
    pub(super) fn move_on(&self) {
        // As in `announce`; and what was published before the end.
        self.word.fetch_add(1, order!(begin.epoch, AcqRel));
    }

    /// Removes an invalidation that ends.
    #[inline(always)]
    pub(super) fn unlist(&self, bit: Option<PlaceBit>) {
        // The host's changes and the published slots come before the end; pairs with `listed`. AcqRel, since the bits
        // of others stay in order.
        let order = order!(active.unlist, AcqRel);
        match bit {
            Some(bit) => self.listed.fetch_and(!bit.get(), order),
            None => self.beyond.fetch_sub(1, order),
        };
    }
}
