//! The places of the memslots, as the test knows them: the pages that may back a guest frame at this moment.
//!
//! Two slots of address space 0, each of half the host's memory, are created, deleted and moved over places that are
//! aligned to tables or not, overlap each other, or lie across 1 GiB. Address space 1 has one slot that stays: all of
//! the memory, an alias. While a transaction runs, a slot is at its old *or* its new place; when it has returned, only
//! at the new one.

use crate::host::{PAGES, REGION, hva, page_of};
use slat::{Gfn, Hva, Level, Slot, SlotId, SpaceId, Span};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

pub const SLOTS: u64 = 2;
/// Pages of each slot.
pub const SIZE: u64 = PAGES / SLOTS;
/// Frames within which a slot moves.
const WINDOW: u64 = 2 * Level::G1.pages();
/// Number of places in them.
const PLACES: [u64; 4] = [0, 5 * REGION, Level::G1.pages() - 4 * REGION, 20 * REGION + 3];

/// The other space, and its only slot.
pub const ALIASES: SpaceId = SpaceId(1);
const ALIAS: Gfn = Gfn(64 * Level::G1.pages());

/// `version << 48 | before << 24 | after`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place(u64);

const NOWHERE: u64 = 0xff_ffff;

impl Place {
    fn before(self) -> u64 {
        self.0 >> 24 & NOWHERE
    }

    fn after(self) -> u64 {
        self.0 & NOWHERE
    }
}

/// One slot.
pub struct Known {
    place: AtomicU64,
    /// Held by the thread that changes the slot.
    pub state: Mutex<State>,
}

#[derive(Default)]
pub struct State {
    pub at: Option<Gfn>,
    /// The number of its dirty log; zero if it does not log.
    pub log: u64,
    /// Pages taken from that log that no check has compared yet: a callback may panic between the two.
    pub taken: BTreeSet<u64>,
}

impl State {
    /// Stores from now on are compared with the pages that are marked from now on, in log number `log`.
    pub fn log_anew(&mut self, log: u64) {
        self.log = log;
        self.taken.clear();
    }
}

/// Every slot.
pub struct Places {
    slots: [Known; SLOTS as usize],
}

impl Known {
    fn new() -> Self {
        let nowhere = NOWHERE << 24 | NOWHERE;
        Self { place: AtomicU64::new(nowhere), state: Mutex::new(State::default()) }
    }

    fn place(&self) -> Place {
        Place(self.place.load(SeqCst))
    }

    /// Called when a transaction begins that puts the slot at `after`.
    pub fn going(&self, to: Option<Gfn>) {
        let now = self.place();
        let to = to.map_or(NOWHERE, |gfn| gfn.0);
        self.place.store((now.0 >> 48).wrapping_add(1) << 48 | now.after() << 24 | to, SeqCst);
    }

    /// Called when the transaction has returned, or has panicked: the slot is at `at`.
    pub fn arrived(&self, at: Option<Gfn>) {
        let (now, at) = (self.place(), at.map_or(NOWHERE, |gfn| gfn.0));
        self.place.store((now.0 >> 48).wrapping_add(1) << 48 | at << 24 | at, SeqCst);
    }

    /// Returns the slot's place now, or after the running transaction.
    pub fn start(&self) -> Option<Gfn> {
        Some(self.place().after()).filter(|&after| after != NOWHERE).map(Gfn)
    }
}

/// A frame that had a slot when it was looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct There(Option<Place>);

impl Places {
    pub fn new() -> Self {
        Self { slots: std::array::from_fn(|_| Known::new()) }
    }

    pub fn known(&self, slot: u64) -> &Known {
        &self.slots[slot as usize]
    }

    /// Returns the host addresses that may back `gfn` at this moment.
    pub fn behind(&self, space: SpaceId, gfn: Gfn) -> impl Iterator<Item = Hva> {
        let bases = if space == ALIASES {
            [Some((0, ALIAS.0, PAGES)), None]
        } else {
            let slot = gfn.0 / WINDOW;
            let place = self.slots.get(slot as usize).map(Known::place);
            [Place::before, Place::after].map(|side| place.map(|place| (slot * SIZE, side(place), SIZE)))
        };
        bases.into_iter().flatten().filter_map(move |(page, base, pages)| {
            let index = gfn.0.checked_sub(base).filter(|&index| index < pages)?;
            Some(hva(page + index))
        })
    }

    /// Returns the host address behind `gfn`, if no transaction is about to change that.
    pub fn settled(&self, space: SpaceId, gfn: Gfn) -> Option<Hva> {
        let before = self.there(space, gfn)?;
        let hva = self.behind(space, gfn).next();
        hva.filter(|_| self.there(space, gfn) == Some(before))
    }

    /// Whether `gfn` has a slot, and no transaction is about to remove it. Two equal answers hold for the time between
    /// them.
    pub fn there(&self, space: SpaceId, gfn: Gfn) -> Option<There> {
        if space == ALIASES {
            return self.behind(space, gfn).next().map(|_| There(None));
        }
        let place = self.slots.get((gfn.0 / WINDOW) as usize)?.place();
        let inside = |base: u64| gfn.0.checked_sub(base).is_some_and(|index| index < SIZE);
        (inside(place.before()) && inside(place.after())).then_some(There(Some(place)))
    }
}

/// The slot of space 1.
pub fn alias() -> Slot {
    Slot::new(SlotId(0), ALIAS, PAGES, hva(0))
}

/// Slot number `slot`, from `gfn` on.
pub fn slot_at(slot: u64, gfn: Gfn) -> Slot {
    Slot::new(SlotId(slot as u32), gfn, SIZE, hva(slot * SIZE))
}

/// Returns the places of slot number `slot`.
pub fn places_of(slot: u64) -> [Gfn; PLACES.len()] {
    PLACES.map(|place| Gfn(slot * WINDOW + place))
}

/// Returns every frame that a slot of `space` can ever have, and some beside.
pub fn frames_of(space: SpaceId) -> Span<Gfn> {
    if space == ALIASES { alias().gfns } else { Span::new(Gfn(0), Gfn(SLOTS * WINDOW)) }
}

/// Returns the frame of `page` in `space`, by the places in `known`; if its slot is deleted, by the slot's first place.
pub fn frame_of(known: &Places, space: SpaceId, page: u64) -> Gfn {
    if space == ALIASES {
        return ALIAS + page;
    }
    let slot = page / SIZE;
    known.known(slot).start().unwrap_or(Gfn(slot * WINDOW)) + page % SIZE
}

/// Returns the slot of a host address, and the page number in that slot.
pub fn part_of(hva: Hva) -> (u64, u64) {
    (page_of(hva) / SIZE, page_of(hva) % SIZE)
}
