//! Where invalidations publish themselves: places, which faults and edits scan.
//!
//! The set begins with 64 places. Where all are taken it grows by blocks of 128, 256, … 2,048 places, which stay until the VM
//! is dropped: 16 KiB to 256 KiB each. While a place of such a block is taken, a fault or an edit that scans the set scans the
//! blocks too; else it does not. So a thread may begin any number of invalidations inside each other, and no transaction
//! inside an invalidation waits for another one to end, up to 4,032 in the VM at once. Beyond that number, or where there is no
//! memory for a block, the next invalidation waits for one to end.

use crate::slots::bitmap::bits;
use crate::sync::blocks::Blocks;
use crate::sync::prim::{Acquire, AtomicBool, AtomicU64, Padded, Relaxed, Release};

/// Places that there are from the start.
pub(super) const SLOTS: usize = if cfg!(loom) { 3 } else { 64 };
/// Blocks of more places, each with twice as many as the one before.
const BLOCKS: usize = 5;
/// Fewer than this at once.
pub(super) const MOST: usize = SLOTS << (BLOCKS + 1);
const _: () = assert!(SLOTS <= 64, "a bit each");

/// One invalidation in flight.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Claimed by a thread, before and after it is active: one beyond the first ones.
    taken: AtomicBool,
    /// `k << 2 | unflushed << 1 | active`. 54 bits.
    pub(super) state: AtomicU64,
    /// The number that it began with: it has another one for each time that it was widened.
    pub(super) first: AtomicU64,
    pub(super) gfns: [AtomicU64; 2],
    pub(super) hvas: [AtomicU64; 2],
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Places {
    slots: Blocks<Slot, BLOCKS>,
    /// How many of them were ever used: scans pass over the others. Written as often as that grows.
    used: Padded<AtomicU64>,
    /// How many of those beyond the first ones are taken, or about to be.
    beyond: Padded<AtomicU64>,
}

/// A place that its holder has to itself. Given back by [`Claim::end`].
#[derive(Debug)]
pub(super) struct Claim<'a> {
    pub(super) slot: &'a Slot,
    place: Place<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Place<'a> {
    /// One of the first: its bit, and where it is taken.
    First(u64, &'a AtomicU64),
    /// Another one, and where they are counted.
    Beyond(&'a AtomicU64),
}

impl Places {
    /// So many, until it grows.
    pub(super) fn new(places: usize) -> Self {
        Self { slots: Blocks::new(places, 2 * places), used: Padded::default(), beyond: Padded::default() }
    }

    /// Every place that an invalidation counted by N can have. Relaxed is enough: one that begins counts its place before it
    /// moves N by a Release, and the caller has read N by an Acquire.
    pub(super) fn used(&self) -> impl Iterator<Item = &Slot> {
        let first = self.slots.first().iter().take(self.used.load(Relaxed) as usize);
        first.chain(self.used_beyond()).map(|slot| &slot.0)
    }

    /// The first places whose bits these are; and all of the others, if there are any: which ones, nothing says.
    pub(super) fn listed(&self, (first, beyond): (u64, u64)) -> impl Iterator<Item = &Slot> {
        let first = bits(first).map_while(|bit| self.slots.first().get(bit as usize));
        first.chain(self.beyond(beyond > 0)).map(|slot| &slot.0)
    }

    /// The same of those beyond the first ones.
    fn used_beyond(&self) -> impl Iterator<Item = &Padded<Slot>> {
        // ORDER(places): Acquire pairs with the Release in `Claim::end`: where none is left, all that were there have
        // paid. One that the caller has found in N is counted: it did that before it moved N.
        let any = self.beyond.load(unless_seeded!(BeyondRelaxed, Acquire)) > 0;
        self.beyond(any)
    }

    /// Those beyond the first ones, if there are `any`.
    fn beyond(&self, any: bool) -> impl Iterator<Item = &Padded<Slot>> {
        self.slots.beyond(if any { BLOCKS } else { 0 }).flatten()
    }

    /// Makes more. False where all are made, or where there is no memory.
    pub(super) fn grow(&self) -> bool {
        self.slots.grow()
    }

    /// The claim that was made of this set.
    pub(super) fn bind<'a>(&'a self, taken: &'a AtomicU64, unbound: &Unbound) -> Option<Claim<'a>> {
        match *unbound {
            Unbound::First(bit) => {
                let slot = &self.slots.first().get(bit.trailing_zeros() as usize)?.0;
                Some(Claim { slot, place: Place::First(bit, taken) })
            }
            Unbound::Beyond(address) => {
                let mut slots = self.beyond(true).map(|slot| &slot.0);
                let slot = slots.find(|slot| core::ptr::from_ref(*slot).addr() == address)?;
                Some(Claim { slot, place: Place::Beyond(&self.beyond.0) })
            }
        }
    }

    /// A place that is free, if there is one. Hands it to `begin`, which moves N. `taken` has a bit for each of the first
    /// places.
    pub(super) fn claim<'a>(&'a self, taken: &'a AtomicU64) -> Option<Claim<'a>> {
        loop {
            let free = taken.load(Relaxed).trailing_ones() as usize;
            let Some(slot) = self.slots.first().get(free) else { break };
            // ORDER(active): Acquire takes over from the last user's Release.
            if taken.fetch_or(1 << free, Acquire) & 1 << free == 0 {
                if self.used.load(Relaxed) <= free as u64 {
                    self.used.fetch_max(free as u64 + 1, Relaxed);
                }
                return Some(Claim { slot: &slot.0, place: Place::First(1 << free, taken) });
            }
        }
        // ORDER(active): as above.
        let take = |slot: &Slot| !slot.taken.load(Relaxed) && !slot.taken.swap(true, Acquire);
        // Counted before the caller moves N, which is by a Release; see `used_beyond`.
        let beyond = &self.beyond.0;
        if !seeded!(BeyondLate) {
            beyond.fetch_add(1, Relaxed);
        }
        let found = self.beyond(true).find(|slot| take(slot));
        if found.is_none() && !seeded!(BeyondLate) {
            beyond.fetch_sub(1, Relaxed);
        }
        found.map(|slot| Claim { slot: &slot.0, place: Place::Beyond(beyond) })
    }
}

/// A claim, with its set forgotten.
#[derive(Debug)]
pub(super) enum Unbound {
    /// One of the first places, by its bit.
    First(u64),
    /// Another one, by its address.
    Beyond(usize),
}

impl Claim<'_> {
    /// The same with its set forgotten.
    pub(super) fn unbound(&self) -> Unbound {
        match self.place {
            Place::First(bit, _) => Unbound::First(bit),
            Place::Beyond(_) => Unbound::Beyond(core::ptr::from_ref(self.slot).addr()),
        }
    }

    /// Its bit, if it is one of the first places.
    pub(super) fn bit(&self) -> Option<u64> {
        match self.place {
            Place::First(bit, _) => Some(bit),
            Place::Beyond(_) => None,
        }
    }

    /// Its invalidation has begun.
    pub(super) fn begun(&self) {
        if let Place::Beyond(beyond) = self.place
            && seeded!(BeyondLate)
        {
            beyond.fetch_add(1, Relaxed);
        }
    }

    /// Its invalidation is listed nowhere, and counted off: the place is free.
    pub(super) fn end(&self) {
        // ORDER(active): Release; pairs with `covered`.
        self.slot.state.store(0, unless_seeded!(ClearRelaxed, Release));
        let order = unless_seeded!(TakenRelaxed, Release);
        match self.place {
            Place::First(bit, taken) => {
                taken.fetch_and(!bit, order);
            }
            Place::Beyond(beyond) => {
                // ORDER(places): Release; pairs with `used_beyond`.
                beyond.fetch_sub(1, unless_seeded!(BeyondEndRelaxed, Release));
                self.slot.taken.store(false, order);
            }
        }
    }
}
