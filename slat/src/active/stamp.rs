//! The fault's side of the active set: it reads the epoch, then takes a stamp.

use super::lines::Line;
use super::places::Slot;
use super::{Active, COUNT, COUNT_BITS, Ticket, is, is_active, is_over, span};
use crate::addr::{Gfn, Hva, Level, Span};
use crate::sync::prim::Relaxed;
use crate::table::{Version, Word};

/// Number of begins and ends of wide invalidations, as read before the memslot look-up.
///
/// While it is unchanged, no slot changes, and no table above the leaf tables is unhooked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Epoch(u64);

impl Epoch {
    /// Equal to no epoch that is read: the count never gets there.
    pub(crate) const NEVER: Self = Self(u64::MAX);
}

/// N, read while no invalidation was active.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuietNumber {
    word: u64,
    /// The newest hole that may be filled while N is unchanged.
    pub(crate) newest: Word,
}

impl QuietNumber {
    /// Equal to no N: N never counts so many active invalidations.
    pub(crate) const NEVER: Self = Self { word: u64::MAX, newest: Word::OLDEST };

    fn new(word: u64) -> Self {
        Self { word, newest: Word::hole(Version(word >> COUNT_BITS)) }
    }
}

/// Bound on the holes that a fault may fill, taken before it asks the host. Its install consumes it.
///
/// It proves nothing by itself: an install may fill holes of invalidations up to `newest`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) struct Stamp {
    /// The newest hole that the fault may fill.
    pub(crate) newest: Word,
    /// The largest page around the frame that no active invalidation overlaps; and the largest size that was checked.
    pub(crate) free: Level,
    pub(crate) reach: Level,
}

/// Reason why a fault may not continue yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unconfirmed {
    /// An active invalidation covers the frame: the fault waits for it.
    Covered,
    /// A wide invalidation began or ended meanwhile: the fault looks the slot up again.
    Moved,
}

/// The page that a fault is about to map or edit: its size, a frame in it, and the host address behind that frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    pub(crate) gfn: Gfn,
    pub(crate) hva: Hva,
    pub(crate) level: Level,
}

impl Page {
    pub(crate) const fn small(gfn: Gfn, hva: Hva) -> Self {
        Self { gfn, hva, level: Level::K4 }
    }

    fn around(self, level: Level) -> (Span<Gfn>, Span<Hva>) {
        let hva = Hva(self.hva.0 & !(level.bytes() - 1));
        (Span::sized(self.gfn.base(level), level.pages()), Span::sized(hva, level.bytes()))
    }
}

impl Active {
    /// Takes a number that no invalidation and no other caller has.
    pub(crate) fn fresh(&self) -> Version {
        self.number(0)
    }

    /// Returns the newest number.
    pub(crate) fn now(&self) -> Version {
        // Sees what was done before that number was taken.
        Version(self.head.n.load(order!(begin.now, Acquire)) >> COUNT_BITS)
    }

    /// Returns the epoch; called before the memslot look-up.
    #[inline(always)]
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.lines.epoch.word())
    }

    /// Returns N, if no invalidation is active.
    pub(crate) fn quiet_number(&self) -> Option<QuietNumber> {
        // Before the caller reads the epoch; and as in `is_at`.
        let word = self.head.n.load(order!(quiet.load, Acquire));
        (word & COUNT == 0).then(|| QuietNumber::new(word))
    }

    /// Whether no invalidation has begun or ended since `number` was read.
    #[inline(always)]
    pub(crate) fn is_at(&self, number: QuietNumber) -> bool {
        // Pairs with the Release in `drop`: the host of each ended invalidation has changed.
        self.head.n.load(order!(quiet.load, Acquire)) == number.word
    }

    /// Rule 2, after the memslot look-up and before the host is asked: returns a stamp for `page`, and for larger pages
    /// up to `reach`. `epoch` was read before the slot. `seen` is the word to be filled, if it is known and a hole.
    #[inline]
    pub(crate) fn stamp(
        &self,
        epoch: Epoch,
        page: Page,
        reach: Level,
        seen: Word,
    ) -> Result<Stamp, Unconfirmed> {
        let seen = if seen.is_hole() { seen } else { Word::OLDEST };
        let reach = reach.max(page.level);
        let (newest, free) = if reach <= Level::M2 {
            let line = self.lines.of(page.hva);
            let newest = line.newest_since(seen);
            debug_assert!(
                newest.version().0 <= self.head.n.load(Relaxed) >> COUNT_BITS,
                "no number from elsewhere"
            );
            let free = free_of(self.listed_on(line).chain(self.listed_on(&self.lines.epoch)), page, reach);
            (newest, free)
        } else {
            // A thread that reads a number sees its place.
            let number = self.head.n.load(order!(begin.far, Acquire)) >> COUNT_BITS;
            let newest = Word::hole(Version(number));
            (newest, free_of(self.places.used(), page, reach))
        };
        let free = free.ok_or(Unconfirmed::Covered)?;
        // The Acquire loads before this one (memslot, number, lists, places) stay before it.
        if self.epoch() == epoch { Ok(Stamp { newest, free, reach }) } else { Err(Unconfirmed::Moved) }
    }

    /// After a look-up that found no memslot: whether no transaction since `epoch` may give one to any of `gfns`.
    pub(crate) fn nowhere(&self, epoch: Epoch, gfns: Span<Gfn>) -> bool {
        let covers = |slot: &Slot| is_active(slot) && span::<Gfn>(&slot.gfns).overlaps(&gfns);
        !self.listed_on(&self.lines.epoch).any(covers) && self.epoch() == epoch
    }

    fn listed_on(&self, line: &Line) -> impl Iterator<Item = &Slot> {
        self.places.listed(line.listed())
    }
}

impl Ticket<'_> {
    /// Whether no other active invalidation covers `gfns` or `hvas`, and `start` stands. Scans all places.
    pub(crate) fn is_alone(&self, start: Epoch, gfns: Span<Gfn>, hvas: Span<Hva>) -> bool {
        // A thread that reads a number sees its place. The caller has frozen the entry and fenced: an invalidation that
        // is not seen here will see the frozen entry.
        let _ = self.active.head.n.load(order!(active.alone, Acquire));
        let mut others = self.active.places.used().filter(|slot| !is(slot, Some(&self.claim.slot)));
        !others.any(|slot| is_over(slot, gfns, hvas)) && self.active.epoch() == start
    }
}

/// Returns the largest page around `page`, up to `reach`, that no active slot overlaps; `None` if one overlaps `page`.
#[inline]
fn free_of<'s>(slots: impl Iterator<Item = &'s Slot>, page: Page, reach: Level) -> Option<Level> {
    let mut free = reach;
    for slot in slots.filter(|slot| is_active(slot)) {
        let (gfns, hvas) = (span::<Gfn>(&slot.gfns), span::<Hva>(&slot.hvas));
        let covers = |(g, h): (Span<Gfn>, Span<Hva>)| gfns.overlaps(&g) || hvas.overlaps(&h);
        while covers(page.around(free)) {
            if free == page.level {
                return None;
            }
            // SAFETY: `free` is above the page's own level, which is at least 1.
            free = unsafe { free.down_unchecked() };
        }
    }
    Some(free)
}
