//! The words that tell faults of invalidations: a line for each region of host addresses, and the epoch.
//!
//! A **region** is 2 MiB of host address space: what a leaf table maps. Each has a line among 256, by a hash of its number.
//! An invalidation of host addresses that covers few regions is announced on their lines, and nowhere else. So a fault
//! reads what invalidations elsewhere do not write. The **epoch** is one more line, for wide invalidations: those of many
//! regions, and those of guest frames, memslot transactions among them.
//!
//! **Instead of** one word for the VM, which every invalidation would write and every fault read: what is invalidated elsewhere
//! costs a fault nothing. Listing wide invalidations on all lines, without an epoch, would cost each memslot transaction 256
//! exchanges.

use super::places::Claim;
use crate::addr::{Hva, Level, Span};
use crate::sync::prim::{AcqRel, Acquire, AtomicU64, Padded};
use crate::table::Word;
use alloc::boxed::Box;

const REGION_SHIFT: u32 = Level::M2.bytes().ilog2();
const LINES: usize = if cfg!(loom) { 2 } else { 256 };
/// An invalidation of more regions than this is wide.
const NARROW: u64 = if cfg!(any(loom, shuttle)) { 2 } else { 16 };

/// What invalidations say of themselves to faults on a region, or to all. Alone on its cache line. Of two neighbours, which
/// some processors fetch together, the regions are far apart; a pair of lines for each would cost 16 KiB more in every VM.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Line {
    /// Of a region: the hole of a number that no invalidation announced there is above; it rises with each that begins and is
    /// the newest. A hole, since a fault compares it with holes. Of the epoch: how many have begun and ended.
    word: AtomicU64,
    /// Which of the first places belong to those that are active.
    listed: AtomicU64,
    /// How many of those that are active have other places.
    beyond: AtomicU64,
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Lines {
    pub(super) epoch: Padded<Line>,
    regions: Box<[Line; LINES]>,
}

/// The line of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RegionLine(usize);

impl Lines {
    pub(super) fn new() -> Self {
        Self { epoch: Padded::default(), regions: Box::new(core::array::from_fn(|_| Line::region())) }
    }

    /// The line of the region of `hva`.
    #[inline(always)]
    pub(super) fn of(&self, hva: Hva) -> &Line {
        self.at(RegionLine::of(hva))
    }

    #[inline(always)]
    pub(super) fn at(&self, line: RegionLine) -> &Line {
        &self.regions[line.0 % LINES]
    }

    /// The lines on which an invalidation of `hvas` is announced; `None` where it is wide.
    pub(super) fn narrow(hvas: Span<Hva>) -> Option<(u64, u64)> {
        let (first, end) = (hvas.start.0 >> REGION_SHIFT, hvas.end.0.div_ceil(1 << REGION_SHIFT));
        (!hvas.is_empty() && end - first <= NARROW).then_some((first, end))
    }
}

impl RegionLine {
    /// Where nothing is confirmed.
    pub(crate) const NONE: Self = Self(0);

    /// Of the region of `hva`.
    #[inline(always)]
    pub(crate) fn of(hva: Hva) -> Self {
        Self::of_region(hva.0 >> REGION_SHIFT)
    }

    /// Of the region with this number. Neighbours have different lines, and so have regions a power of two apart.
    #[inline(always)]
    pub(super) fn of_region(region: u64) -> Self {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        Self((region.wrapping_mul(GOLDEN) >> (64 - LINES.ilog2())) as usize)
    }
}

impl Line {
    /// Of a region that has heard of no invalidation.
    fn region() -> Self {
        Self { word: AtomicU64::new(Word::OLDEST.0), ..Self::default() }
    }

    /// The newest hole of a region.
    #[inline(always)]
    pub(super) fn newest(&self) -> Word {
        Word(self.word())
    }

    #[inline(always)]
    pub(super) fn word(&self) -> u64 {
        // ORDER(begin): Acquire pairs with the Release in `announce` and `move_on`: with a number here all that were
        // numbered before it are seen listed; with a move of the epoch, what was published by then.
        self.word.load(unless_seeded!(StampRelaxed, Acquire))
    }

    /// The number of a region, which may be told of an invalidation that it has not heard of: by a hole.
    #[inline]
    pub(super) fn newest_since(&self, seen: Word) -> Word {
        let newest = self.newest();
        if newest < seen {
            // For others, who then need not look at it again.
            self.announce(seen);
        }
        newest.max(seen)
    }

    /// Who is active here: as [`Places::listed`](super::places::Places::listed) understands it.
    #[inline(always)]
    pub(super) fn listed(&self) -> (u64, u64) {
        // ORDER(active): Acquire pairs with the Release in `unlist`: the host of one that has ended has changed.
        let order = unless_seeded!(ListRelaxed, Acquire);
        (self.listed.load(order), self.beyond.load(order))
    }

    /// The same but for one of the first places.
    pub(super) fn listed_but(&self, claim: &Claim<'_>) -> (u64, u64) {
        let (first, beyond) = self.listed();
        (first & !claim.bit().unwrap_or_default(), beyond)
    }

    /// Lists an invalidation that is about to take its number.
    pub(super) fn list(&self, claim: &Claim<'_>) {
        // ORDER(active): AcqRel: the place before its bit; and bits of others stay in order.
        match claim.bit() {
            Some(bit) => self.listed.fetch_or(bit, AcqRel),
            None => self.beyond.fetch_add(1, AcqRel),
        };
    }

    /// Announces the number of `hole` to the region.
    pub(super) fn announce(&self, hole: Word) {
        // ORDER(begin): AcqRel: the lists, of this one and of those numbered before, before the number.
        self.word.fetch_max(hole.0, unless_seeded!(BeginRelaxed, AcqRel));
    }

    /// The epoch moves: a wide invalidation begins, or is about to end.
    pub(super) fn move_on(&self) {
        // ORDER(begin): AcqRel: as in `announce`; and what was published before the end.
        self.word.fetch_add(1, unless_seeded!(BeginRelaxed, AcqRel));
    }

    /// Its invalidation is over.
    pub(super) fn unlist(&self, claim: &Claim<'_>) {
        // ORDER(active): Release: what the host changed, and the slots published, before the end; pairs with `listed`.
        // AcqRel, since the bits of others stay in order.
        let order = unless_seeded!(EndRelaxed, AcqRel);
        match claim.bit() {
            Some(bit) => self.listed.fetch_and(!bit, order),
            None => self.beyond.fetch_sub(1, order),
        };
    }
}
