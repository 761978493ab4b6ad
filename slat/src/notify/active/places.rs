//! Where invalidations publish themselves: places, which faults and edits scan.
//!
//! The set begins with 64 places. Where all are taken it grows by blocks of 128, 256, … 2,048 places, which stay until the VM
//! is dropped: 16 KiB to 256 KiB each. While a place of such a block is taken, a fault or an edit that scans the set scans the
//! blocks too; else it does not. So a thread may begin any number of invalidations inside each other, and no transaction
//! inside an invalidation waits for another one to end, up to 4,032 in the VM at once. Beyond that number, or where there is no
//! memory for a block, the next invalidation waits for one to end.

use super::{COUNT, SLOTS};
use crate::sync::prim::{Acquire, AtomicBool, AtomicPtr, AtomicU64, Padded, Relaxed, Release};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::null_mut;

/// Blocks of more places, each with twice as many as the one before.
const BLOCKS: usize = 5;
const _: () = assert!(SLOTS << (BLOCKS + 1) <= COUNT as usize + 1, "N counts them all");
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
    slots: Box<[Padded<Slot>]>,
    /// How many of them were ever used: scans pass over the others. Written as often as that grows.
    used: Padded<AtomicU64>,
    beyond: Padded<Beyond>,
}

/// The places beyond the first ones.
#[derive(Debug)]
struct Beyond {
    /// How many of them are taken, or about to be.
    taken: AtomicU64,
    /// Null, or as many places as [`Places::len_of`] says, linked once and for all.
    blocks: [AtomicPtr<Padded<Slot>>; BLOCKS],
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
        let blocks = core::array::from_fn(|_| AtomicPtr::new(null_mut()));
        Self {
            slots: (0..places).map(|_| Padded::default()).collect(),
            used: Padded::default(),
            beyond: Padded(Beyond { taken: AtomicU64::new(0), blocks }),
        }
    }

    /// Every place that an invalidation counted by N can have. Relaxed is enough: one that begins counts its place before it
    /// moves N by a Release, and the caller has read N by an Acquire.
    pub(super) fn used(&self) -> impl Iterator<Item = &Slot> {
        let first = self.slots.iter().take(self.used.load(Relaxed) as usize);
        first.chain(self.used_beyond()).map(|slot| &slot.0)
    }

    /// The first places whose bits these are; and all of the others, if there are any: which ones, nothing says.
    pub(super) fn listed(&self, (mut first, beyond): (u64, u64)) -> impl Iterator<Item = &Slot> {
        let first = core::iter::from_fn(move || {
            let index = first.trailing_zeros();
            first &= first.wrapping_sub(1);
            self.slots.get(index as usize)
        });
        first.chain(self.blocks(if beyond > 0 { BLOCKS } else { 0 })).map(|slot| &slot.0)
    }

    /// The same of those beyond the first ones.
    fn used_beyond(&self) -> impl Iterator<Item = &Padded<Slot>> {
        // ORDER(places): Acquire pairs with the Release in `Claim::end`: where none is left, all that were there have
        // paid. One that the caller has found in N is counted: it did that before it moved N.
        let any = self.beyond.taken.load(unless_seeded!(BeyondRelaxed, Acquire)) > 0;
        self.blocks(if any { BLOCKS } else { 0 })
    }

    fn blocks(&self, most: usize) -> impl Iterator<Item = &Padded<Slot>> {
        (0..most).flat_map(|block| {
            // SAFETY: null, or linked by `grow` with so many places, and freed when the set is dropped.
            unsafe { self.block(block).as_ref() }.unwrap_or_default()
        })
    }

    /// How many places a block has.
    fn len_of(&self, block: usize) -> usize {
        self.slots.len() << (block + 1)
    }

    /// Null where it has not been made.
    fn block(&self, block: usize) -> *mut [Padded<Slot>] {
        // ORDER(places): Acquire pairs with the Release in `grow`: the places are made.
        let first = self.beyond.blocks[block].load(Acquire);
        core::ptr::slice_from_raw_parts_mut(first, self.len_of(block))
    }

    /// Makes the next block. False where all are made, or where there is no memory.
    #[cold]
    pub(super) fn grow(&self) -> bool {
        let Some(block) = (0..BLOCKS).find(|&block| self.block(block).is_null()) else { return false };
        let (len, mut fresh) = (self.len_of(block), Vec::new());
        if injected!(Alloc) || fresh.try_reserve_exact(len).is_err() {
            return false;
        }
        fresh.resize_with(len, Padded::<Slot>::default);
        let fresh = Box::into_raw(fresh.into_boxed_slice());
        // ORDER(places): Release: the places before the link.
        let place = &self.beyond.blocks[block];
        if place.compare_exchange(null_mut(), fresh.cast(), Release, Relaxed).is_err() {
            // SAFETY: from `into_raw` just now, and linked nowhere: another thread was faster.
            drop(unsafe { Box::from_raw(fresh) });
        }
        true
    }

    /// A place that is free, if there is one. Hands it to `begin`, which moves N. `taken` has a bit for each of the first
    /// places.
    pub(super) fn claim<'a>(&'a self, taken: &'a AtomicU64) -> Option<Claim<'a>> {
        loop {
            let free = taken.load(Relaxed).trailing_ones() as usize;
            let Some(slot) = self.slots.get(free) else { break };
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
        let beyond = &self.beyond.taken;
        if !seeded!(BeyondLate) {
            beyond.fetch_add(1, Relaxed);
        }
        let found = self.blocks(BLOCKS).find(|slot| take(slot));
        if found.is_none() && !seeded!(BeyondLate) {
            beyond.fetch_sub(1, Relaxed);
        }
        found.map(|slot| Claim { slot: &slot.0, place: Place::Beyond(beyond) })
    }
}

impl Claim<'_> {
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

impl Drop for Places {
    fn drop(&mut self) {
        for block in (0..BLOCKS).map(|block| self.block(block)).filter(|block| !block.is_null()) {
            // SAFETY: from `into_raw` in `grow`, with this length; no claim borrows the set any more.
            drop(unsafe { Box::from_raw(block) });
        }
    }
}
