//! Places in which invalidations publish their ranges. Faults and edits scan them.
//!
//! The set begins with 64 places. When all are taken, it grows by blocks of 128, 256, … 2,048 places (16 KiB to 256 KiB
//! each), which stay until the VM is dropped. A fault or an edit scans the blocks only while a place in a block is
//! taken. A thread may therefore nest any number of invalidations, and a transaction inside an invalidation waits for
//! no other one, up to 4,032 in the VM at once. Beyond that, or without memory for a block, the next one waits for one
//! to end.
use crate::lent::Lent;
use crate::sync::blocks::Blocks;
use crate::sync::prim::{AtomicBool, AtomicU64, Padded, Relaxed};
use core::num::NonZero;

/// Number of places at the start.
pub(super) const SLOTS: usize = if cfg!(loom) { 3 } else { 64 };
/// Maximum number of further blocks, each with twice as many places as the one before.
const BLOCKS: usize = 5;
/// Upper bound, exclusive, of the places in use at once.
pub(super) const MAX_PLACES: usize = SLOTS << (BLOCKS + 1);
const _: () = assert!(SLOTS <= 64, "a bit each");

/// One invalidation in flight.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// For a place beyond the first ones: whether a thread has claimed it. Set before it is active, cleared after.
    claimed: AtomicBool,
    /// `k << 2 | unflushed << 1 | active`. 54 bits.
    pub(super) state: AtomicU64,
    /// The number with which it began. Each widening takes a further number.
    pub(super) first: AtomicU64,
    pub(super) gfns: [AtomicU64; 2],
    pub(super) hvas: [AtomicU64; 2],
}

/// All places of an active set. See the module's header.
#[derive(Debug)]
pub(super) struct Places {
    slots: Blocks<Slot, BLOCKS>,
    /// Number of first places that were ever used; scans skip the others. Written only when it grows.
    used: Padded<AtomicU64>,
    /// Number of places beyond the first ones that are taken or about to be.
    beyond: Padded<AtomicU64>,
}

/// Exclusive use of a place, until [`Places::end`].
#[derive(Debug)]
pub(super) struct Claim<'a> {
    pub(super) slot: Lent<'a, Slot>,
    /// The bit of one of the first places. A place beyond them has none.
    pub(super) bit: Option<PlaceBit>,
}

/// The bit of one of the first places in a bitmap of them.
pub(super) type PlaceBit = NonZero<u64>;

impl Places {
    /// A set with `places` first places.
    pub(super) fn new(places: usize) -> Self {
        Self { slots: Blocks::new(places, 2 * places), used: Padded::default(), beyond: Padded::default() }
    }

    /// Returns every place that an invalidation counted by N can have. Relaxed is enough: an invalidation counts its
    /// place before it moves N by a Release, and the caller has read N by an Acquire.
    pub(super) fn used(&self) -> impl Iterator<Item = &Slot> {
        let first = u64::MAX.checked_shr(64 - self.used.load(Relaxed) as u32).unwrap_or(0);
        // Pairs with the Release in `end`: if the count is zero, each of their invalidations has paid. One that the
        // caller has found in N is counted: it was counted before N moved.
        self.scan(first, self.beyond.load(order!(places.look, Acquire)) > 0)
    }

    /// Returns the first places whose bits are set; and all places beyond them, if any of those is listed.
    pub(super) fn listed(&self, (first, beyond): (u64, u64)) -> impl Iterator<Item = &Slot> {
        self.scan(first, beyond > 0)
    }

    /// Returns the first places whose bits are set; and all places beyond them, if any is to be looked at.
    #[inline(always)]
    fn scan(&self, mut first: u64, beyond: bool) -> impl Iterator<Item = &Slot> {
        // Block and place.
        let mut next = (if beyond { 0 } else { BLOCKS }, 0);
        // Mostly nothing is listed.
        core::iter::from_fn(move || {
            if first == 0 && next.0 == BLOCKS { None } else { self.step(&mut first, &mut next) }
        })
    }

    /// A step of [`scan`](Self::scan), compiled once for its many callers.
    #[inline(never)]
    fn step(&self, first: &mut u64, (block, at): &mut (usize, usize)) -> Option<&Slot> {
        if *first != 0 {
            let bit = first.trailing_zeros() as usize;
            *first &= *first - 1;
            return self.slots.first().get(bit).map(|slot| &slot.0);
        }
        while *block < BLOCKS {
            let places = self.slots.get(*block)?;
            if let Some(slot) = places.get(*at) {
                *at += 1;
                return Some(&slot.0);
            }
            (*block, *at) = (*block + 1, 0);
        }
        None
    }

    /// Adds a block. False if all blocks exist, or without memory.
    pub(super) fn grow(&self) -> bool {
        self.slots.grow()
    }

    /// Claims a free place, if there is one; `begin` then moves N. `claimed` has a bit for each first place.
    pub(super) fn claim(&self, claimed: &AtomicU64) -> Option<Claim<'_>> {
        loop {
            let free = claimed.load(Relaxed).trailing_ones() as usize;
            let Some(slot) = self.slots.first().get(free) else { break };
            // Pairs with the last user's Release.
            if claimed.fetch_or(1 << free, order!(active.claim, Acquire)) & 1 << free == 0 {
                if self.used.load(Relaxed) <= free as u64 {
                    self.used.fetch_max(free as u64 + 1, Relaxed);
                }
                return Some(Claim { slot: Lent::new(&slot.0), bit: PlaceBit::new(1 << free) });
            }
        }
        // As above.
        let claim = order!(active.claim_beyond, Acquire);
        let take = |slot: &Slot| !slot.claimed.load(Relaxed) && !slot.claimed.swap(true, claim);
        // Counted before the caller moves N by a Release; see `used`.
        let beyond = &self.beyond.0;
        beyond.fetch_add(1, Relaxed);
        let found = self.scan(0, true).find(|slot| take(slot));
        if found.is_none() {
            beyond.fetch_sub(1, Relaxed);
        }
        found.map(|slot| Claim { slot: Lent::new(slot), bit: None })
    }

    /// Frees the place: its invalidation is unlisted and counted off. `claimed` as for [`claim`](Self::claim).
    pub(super) fn end(&self, claim: &Claim<'_>, claimed: &AtomicU64) {
        // Pairs with `is_active`.
        claim.slot.state.store(0, order!(active.clear, Release));
        // After all accesses; pairs with `claim`.
        let order = order!(active.free, Release);
        if let Some(bit) = claim.bit {
            claimed.fetch_and(!bit.get(), order);
        } else {
            // Pairs with `used`.
            self.beyond.fetch_sub(1, order!(places.end, Release));
            claim.slot.claimed.store(false, order);
        }
    }
}
