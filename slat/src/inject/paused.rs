//! A fault that pauses between its reads of the lists and its looks at the listed places.
//!
//! A fault's stamp is not atomic ([`Active::stamp`](crate::active::Active::stamp)): the fault reads the epoch,
//! the number of its region and the lists, and then the places that it found listed. Between two of these reads, its
//! thread may stand still for any time. An explorer would have to stop a vCPU at that one access, for as long as several
//! invalidations take. [`PausedFault`] is such a fault without a vCPU: its first half, kept for later.
//!
//! An invalidation promises that no fault fills an entry of its range, from its edits to its end. So a fault that
//! pauses just before an invalidation begins can fill nothing just before the host changes the pages.

use crate::active::{Epoch, Page, RegionLine};
use crate::addr::{Gfn, Hva, Level, PAGE_SIZE, Span};
use crate::sync::Shared;
use crate::table::Word;
use crate::{Format, Host, Idle, Vm, Walk};

/// The first half of the stamp of a fault, on any page of a region.
#[derive(Clone, Copy, Debug)]
pub struct PausedFault {
    epoch: Epoch,
    newest: Word,
    listed: [(u64, u64); 2],
}

impl<F: Format, H: Host> Vm<F, H> {
    /// A fault in the region of `pages`, which are frames with the addresses behind them, has read the lists. Before it,
    /// faults on each of the pages have met its entry, and have raised the region's number to a newer hole there.
    pub fn paused_fault(
        &self,
        idle: &mut Idle,
        pages: impl IntoIterator<Item = (Gfn, Hva)>,
    ) -> Option<PausedFault> {
        let walk = Walk::<F, H, Shared>::on_any_seat(self, &self.spaces[0], idle);
        let meet = |(gfn, hva)| {
            let _ = self.active.stamp(
                self.active.epoch(),
                Page::small(gfn, hva),
                Level::K4,
                walk.descend(gfn).word,
            );
            hva
        };
        // Before the caller looks the memslots up, as a fault does.
        let epoch = self.active.epoch();
        let hva = pages.into_iter().map(meet).last()?;
        let newest = self.active.newest_of(RegionLine::of(hva));
        Some(PausedFault { epoch, newest, listed: self.active.listed_over(Some(hva)) })
    }

    /// The fault continues, on one of `pages` of its region: frames with the addresses behind them. Returns a page for
    /// which it may ask the host now, and whose entry it may fill with the answer.
    pub fn may_fill(
        &self,
        idle: &mut Idle,
        fault: &PausedFault,
        pages: impl IntoIterator<Item = (Gfn, Hva)>,
    ) -> Option<Gfn> {
        let walk = Walk::<F, H, Shared>::on_any_seat(self, &self.spaces[0], idle);
        let fills = |gfn| {
            let word = walk.descend(gfn).word;
            word.is_hole() && word <= fault.newest
        };
        let is_confirmed = |gfn, hva| {
            let (gfns, hvas) = (Span::sized(gfn, 1), Span::sized(hva, PAGE_SIZE));
            !self.active.any_over(fault.listed, gfns, hvas) && self.active.epoch() == fault.epoch
        };
        // The last look at the entry is the fault's. The first one saves most of the others.
        let may_fill =
            |(gfn, hva): (Gfn, Hva)| (fills(gfn) && is_confirmed(gfn, hva) && fills(gfn)).then_some(gfn);
        pages.into_iter().find_map(may_fill)
    }
}
