//! Frames that the VMM or hardware uses beside the tables: the part of [`crate::held`] that invalidations read.
//!
//! ```text
//! hold, refresh                             invalidation
//! page := hva; state := asking              listed, numbered, announced
//! fence ──────────────────────────────────  fence
//! stamp: no invalidation covers the page    over the page, or its frame?  state := taken
//! host; asking → valid                      flush if hardware uses it; heavy barrier; wait for uses that have begun
//!
//! use: begun; light barrier; valid? … ended
//! ```
//! A held frame stands for a leaf: an invalidation that takes away a leaf, or its write permission, withdraws the
//! frame. The argument is that of a freeze (rule 10 of [`crate::notify`]): the invalidation finds the page, or the
//! stamp finds the invalidation.
//!
//! A use writes one word of its own cell and reads another, so it touches no other thread's line. In a VM without held
//! frames an invalidation pays one load. Otherwise an invalidation that meets no held frame pays one more load for each
//! of its regions.

use super::SpaceId;
use crate::addr::{Gfn, Hva, Level, Span};
use crate::sync::barrier::Barrier;
use crate::sync::blocks::Blocks;
use crate::sync::prim::{AtomicU64, Patience, Relaxed};

/// Number of blocks of cells: half a million cells in all.
const BLOCKS: usize = if cfg!(loom) { 1 } else { 16 };
/// Number of cells in the first block.
const FIRST: usize = if cfg!(any(loom, shuttle)) { 1 } else { 8 };
/// Number of counters for regions, selected by a hash.
const REGIONS: usize = if cfg!(loom) { 2 } else { 128 };
/// An invalidation of more regions checks all cells.
const NARROW: u64 = 16;

/// Log2 of a region's size in bytes, as in [`crate::notify`].
const REGION_SHIFT: u32 = Level::M2.bytes().ilog2();

const KIND: u64 = 3;
/// No thread owns the cell.
const FREE: u64 = 0;
/// An invalidation has withdrawn the frame, or the host has not been asked yet.
const WITHDRAWN: u64 = 1;
const ASKING: u64 = 2;
const VALID: u64 = 3;
/// The holder writes to the frame.
const WRITE: u64 = 4;
/// The holder gives the frame to hardware.
const HARDWARE: u64 = 8;
const SPACE_SHIFT: u32 = 8;

/// One held frame. Only its holder writes the cell, except for the [kind](KIND) in `state`.
#[derive(Debug, Default)]
pub(crate) struct HoldCell {
    /// The kind, how the frame is used, and the address space.
    state: AtomicU64,
    /// Number of uses begun plus number of uses ended: odd during a use.
    uses: AtomicU64,
    gfn: AtomicU64,
    hva: AtomicU64,
}

/// How a frame is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldAs {
    pub(crate) space: SpaceId,
    pub(crate) gfn: Gfn,
    pub(crate) write: bool,
    pub(crate) hardware: bool,
}

/// Number of held frames by region.
struct Regions([AtomicU64; REGIONS]);

impl Default for Regions {
    fn default() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// All held frames of a VM; see the module's header.
pub(crate) struct Holds {
    /// Number of held frames. If zero, nothing else is read.
    frames: AtomicU64,
    /// Allocated with the first held frame.
    regions: Blocks<Regions, 1>,
    cells: Blocks<HoldCell, BLOCKS>,
}

/// The frames that an invalidation has withdrawn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Withdrawn {
    /// Whether it withdrew any frame. The invalidation must then wait for uses that have begun.
    pub(crate) any: bool,
    /// The hull of the frames that hardware uses.
    pub(crate) hardware: Option<Span<Gfn>>,
}

fn region(number: u64) -> usize {
    number as usize % REGIONS
}

fn region_of(hva: Hva) -> usize {
    region(hva.0 >> REGION_SHIFT)
}

impl Holds {
    pub(crate) fn new() -> Self {
        Self { frames: AtomicU64::new(0), regions: Blocks::new(0, 1), cells: Blocks::new(0, FIRST) }
    }

    /// Whether no frame is held.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.load(Relaxed) == 0
    }

    fn cells(&self) -> impl Iterator<Item = &HoldCell> {
        self.cells.beyond(BLOCKS).flatten().map(|cell| &cell.0)
    }

    fn regions(&self) -> Option<&Regions> {
        self.regions.beyond(1).flatten().map(|regions| &regions.0).next()
    }

    /// Claims a cell for a frame. Returns `None` if memory is missing.
    pub(crate) fn claim(&self, held: HeldAs) -> Option<&HoldCell> {
        let flags = |on, flag| if on { flag } else { 0 };
        let state = WITHDRAWN
            | flags(held.write, WRITE)
            | flags(held.hardware, HARDWARE)
            | u64::from(held.space.0) << SPACE_SHIFT;
        while self.regions().is_none() {
            if !self.regions.grow() && self.regions().is_none() {
                return None;
            }
        }
        let cell = loop {
            let free = |cell: &&HoldCell| {
                // Pairs with the previous holder's Release in `give_back`.
                let claim = order!(held_cell.claim, Acquire);
                cell.state.load(Relaxed) == FREE
                    && cell.state.compare_exchange(FREE, state, claim, Relaxed).is_ok()
            };
            match self.cells().find(free) {
                Some(cell) => break cell,
                None if self.cells.grow() => {}
                None => return None,
            }
        };
        cell.gfn.store(held.gfn.0, Relaxed);
        self.frames.fetch_add(1, Relaxed);
        self.count(cell.hva(), 1);
        Some(cell)
    }

    /// Ends the hold.
    pub(crate) fn give_back(&self, cell: &HoldCell) {
        cell.end();
        self.count(cell.hva(), 1_u64.wrapping_neg());
        self.frames.fetch_sub(1, Relaxed);
        // Hands the cell over to its next holder.
        cell.state.store(FREE, order!(held_cell.back, Release));
    }

    fn count(&self, hva: Hva, more: u64) {
        if let Some(regions) = self.regions() {
            regions.0[region_of(hva)].fetch_add(more, Relaxed);
        }
    }

    /// Publishes the page at `hva`, so that invalidations find it. The holder must then take a stamp, and ask the host.
    pub(crate) fn publish(&self, cell: &HoldCell, hva: Hva) {
        let before = cell.hva();
        if region_of(before) != region_of(hva) {
            self.count(hva, 1);
        }
        cell.hva.store(hva.0, Relaxed);
        if region_of(before) != region_of(hva) {
            self.count(before, 1_u64.wrapping_neg());
        }
        cell.set(ASKING);
        // Published before the stamp; pairs with the fence in `announce`. Either the stamp sees the invalidation, or the
        // invalidation sees the page.
        fence!(held.publish);
    }

    /// Withdraws the frames for which `covers` returns true. The caller is an invalidation that has been announced, of
    /// `hvas` or of a larger range. `covers` gets the hold and its page.
    #[cold]
    pub(crate) fn withdraw(
        &self,
        hvas: Option<Span<Hva>>,
        covers: impl Fn(&HeldAs, Hva) -> bool,
    ) -> Withdrawn {
        let mut found = Withdrawn::default();
        if hvas.is_some_and(|hvas| !self.any_in(hvas)) {
            return found;
        }
        for cell in self.cells() {
            let mut state = cell.state.load(Relaxed);
            let held = cell.held(state);
            if state & KIND == FREE || !covers(&held, cell.hva()) {
                continue;
            }
            // A frame that is already withdrawn counts, too: the invalidation that did it may not have flushed or waited
            // for uses yet.
            while matches!(state & KIND, ASKING | VALID) {
                match cell.state.compare_exchange(state, state & !KIND | WITHDRAWN, Relaxed, Relaxed) {
                    Ok(_) => break,
                    Err(now) => state = now,
                }
            }
            found.any = true;
            if held.hardware {
                let gfns = Span::sized(held.gfn, 1);
                found.hardware = Some(found.hardware.map_or(gfns, |hull| hull.hull(&gfns)));
            }
        }
        found
    }

    /// Whether any frame with a page in these regions is held.
    fn any_in(&self, hvas: Span<Hva>) -> bool {
        let (first, end) = (hvas.start.0 >> REGION_SHIFT, hvas.end.0.div_ceil(1 << REGION_SHIFT));
        end.saturating_sub(first) > NARROW
            || self.regions().is_some_and(|regions| {
                (first..end).any(|number| regions.0[region(number)].load(Relaxed) != 0)
            })
    }

    /// Waits for the end of every use that had begun when an invalidation withdrew its frame. The caller is in no use.
    #[cold]
    pub(crate) fn outlast(&self, barrier: Barrier) {
        // ORDER(held-use): the mark before this load; pairs with `light` in `begin`.
        barrier.heavy();
        for cell in self.cells() {
            // Pairs with the Release in `end` and `begin`. A use is over before its frame is given away.
            let uses = || cell.uses.load(order!(held_end.wait, Acquire));
            let then = uses();
            let mut patience = Patience::default();
            while then % 2 == 1 && cell.state.load(Relaxed) & KIND == WITHDRAWN && uses() == then {
                patience.wait();
            }
        }
    }
}

impl HoldCell {
    pub(crate) fn hva(&self) -> Hva {
        Hva(self.hva.load(Relaxed))
    }

    fn held(&self, state: u64) -> HeldAs {
        HeldAs {
            space: SpaceId((state >> SPACE_SHIFT) as u8),
            gfn: Gfn(self.gfn.load(Relaxed)),
            write: state & WRITE != 0,
            hardware: state & HARDWARE != 0,
        }
    }

    /// Sets the kind. Called by the holder: if an invalidation takes the frame at the same time, the stamp finds it.
    fn set(&self, kind: u64) {
        self.state.store(self.state.load(Relaxed) & !KIND | kind, Relaxed);
    }

    /// Confirms the host's answer. Returns false if an invalidation has taken the page back since it was published.
    pub(crate) fn confirm(&self) -> bool {
        let asking = self.state.load(Relaxed) & !KIND | ASKING;
        self.state.compare_exchange(asking, asking & !KIND | VALID, Relaxed, Relaxed).is_ok()
    }

    /// The host has returned no page.
    pub(crate) fn refused(&self) {
        self.set(WITHDRAWN);
    }

    /// Whether the frame may be used, during a use or by a vCPU that has entered the guest.
    #[inline(always)]
    pub(crate) fn is_valid(&self) -> bool {
        self.state.load(Relaxed) & KIND == VALID
    }

    /// Begins a use. Returns false if the frame is not valid.
    #[inline(always)]
    pub(crate) fn begin(&self, barrier: Barrier) -> bool {
        self.end();
        let begun = self.uses.load(Relaxed) + 1;
        // ORDER(held-use): begun before the load of `state`. `light` here pairs with `heavy` in `outlast`: either the
        // invalidation sees the use, or the use sees that the frame is taken.
        // Release, because a waiter for the previous use may see this word instead of its end.
        self.uses.store(begun, order!(held_end.next, Release));
        barrier.light();
        let valid = self.is_valid();
        if !valid {
            self.end();
        }
        valid
    }

    /// Ends a use, if one is in progress, even one whose guard was leaked.
    #[inline(always)]
    pub(crate) fn end(&self) {
        let uses = self.uses.load(Relaxed);
        if uses % 2 == 1 {
            // Every access of the use before this store; pairs with `outlast`.
            self.uses.store(uses + 1, order!(held_end.end, Release));
        }
    }
}
