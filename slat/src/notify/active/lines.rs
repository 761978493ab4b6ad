//! The words that tell faults of invalidations: a line for each region of host addresses, and the epoch.
//!
//! A **region** is 2 MiB of host address space: what a leaf table maps. Each has a line among 256, by a hash of its number.
//! An invalidation of host addresses that covers few regions is announced on their lines, and nowhere else. So a fault
//! reads what invalidations elsewhere do not write. The **epoch** is one more line, for wide invalidations: those of many
//! regions, and those of guest frames, memslot transactions among them.

use super::places::Claim;
use crate::addr::{Hva, Level, Span};
use crate::sync::prim::{AcqRel, Acquire, AtomicU64, Padded, Relaxed, SeqCst};
use crate::table::Version;
use alloc::boxed::Box;

const REGION_SHIFT: u32 = Level::M2.bytes().ilog2();
const LINES: usize = if cfg!(loom) { 2 } else { 256 };
/// An invalidation of more regions than this is wide.
const NARROW: u64 = if cfg!(any(loom, shuttle)) { 2 } else { 16 };

/// What is announced of a region, or to all.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// The newest invalidation that was announced here. It only rises, with each one that begins.
    newest: AtomicU64,
    /// Where those that are active have their places; see [`Claim::mark`].
    listed: AtomicU64,
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Lines {
    pub(super) epoch: Padded<Line>,
    regions: Box<[Padded<Line>; LINES]>,
}

/// The line of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RegionLine(usize);

impl Lines {
    pub(super) fn new() -> Self {
        Self { epoch: Padded::default(), regions: Box::new(core::array::from_fn(|_| Padded::default())) }
    }

    /// The line of the region of `hva`.
    #[inline(always)]
    pub(super) fn of(&self, hva: Hva) -> &Line {
        self.at(RegionLine::of(hva))
    }

    #[inline(always)]
    pub(super) fn at(&self, line: RegionLine) -> &Line {
        &self.regions[line.0 % LINES].0
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
    /// The newest invalidation that was announced here: a fault may fill holes up to this one.
    #[inline(always)]
    pub(super) fn newest(&self) -> Version {
        // loom has SeqCst fences, and takes SeqCst loads for Acquire ones.
        #[cfg(loom)]
        crate::sync::prim::fence(SeqCst);
        // ORDER(begin): Acquire, at least: whoever sees a number here sees the place of its invalidation, listed.
        // ORDER(epoch): SeqCst; see `Active::epoch`.
        Version(self.newest.load(unless_seeded!(StampRelaxed, SeqCst)))
    }

    /// The same, raised to `seen` first, which a hole had. It is always allowed to raise it: an invalidation that is not
    /// announced yet takes a number above it.
    #[inline]
    pub(super) fn newest_since(&self, seen: Version) -> Version {
        loop {
            let newest = self.newest();
            if newest >= seen {
                return newest;
            }
            // ORDER(begin): AcqRel: of those announced before, too.
            let _ = self.newest.compare_exchange(newest.0, seen.0, AcqRel, Relaxed);
        }
    }

    /// What is active here, as [`Claim::mark`] has it.
    #[inline(always)]
    pub(super) fn listed(&self) -> u64 {
        // ORDER(active): Acquire pairs with the Release in `unlist`: whoever has ended has changed its host.
        self.listed.load(unless_seeded!(ListRelaxed, Acquire))
    }

    /// Lists an invalidation that is about to be announced.
    pub(super) fn list(&self, claim: &Claim<'_>) {
        // ORDER(active): AcqRel: the place before its mark; and marks of others stay in order.
        if claim.mark() == Claim::BEYOND {
            self.listed.fetch_add(Claim::BEYOND, AcqRel);
        } else {
            self.listed.fetch_or(claim.mark(), AcqRel);
        }
    }

    /// Announces number `mine`, unless one as new was announced here already: then it needs another.
    pub(super) fn announce(&self, mine: Version) -> bool {
        let newest = self.newest.load(Relaxed);
        if newest >= mine.0 && !seeded!(AnnouncedOlder) {
            return false;
        }
        if injected!(Cas) {
            return false;
        }
        // ORDER(begin): AcqRel, at least: the list before the number.
        // ORDER(epoch): SeqCst; see `Active::epoch`.
        let order = unless_seeded!(BeginRelaxed, SeqCst);
        self.newest.compare_exchange(newest, mine.0.max(newest), order, Relaxed).is_ok()
    }

    /// Its invalidation is over.
    pub(super) fn unlist(&self, claim: &Claim<'_>) {
        // ORDER(active): Release: what the host changed, and the slots published, before the end; pairs with `listed`.
        // AcqRel, since the marks of others stay in order.
        let order = unless_seeded!(EndRelaxed, AcqRel);
        if claim.mark() == Claim::BEYOND {
            self.listed.fetch_sub(Claim::BEYOND, order);
        } else {
            self.listed.fetch_and(!claim.mark(), order);
        }
    }
}
