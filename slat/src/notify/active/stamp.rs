//! What a fault reads of the active set: the epoch, then a stamp.

use super::lines::Line;
use super::places::Slot;
use super::{Active, COUNT_BITS, is_active, span};
use crate::addr::{Gfn, Hva, Level, Span};
use crate::shadows::Numbers;
use crate::sync::prim::Acquire;
use crate::table::{Version, Word};

/// How many wide invalidations had begun and ended at a moment before the memslot was looked up.
///
/// While it stands, no slot changes, and no table above those of a region goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Epoch(u64);

impl Epoch {
    /// Equal to no epoch that is read: it never counts so far.
    pub(crate) const NEVER: Self = Self(u64::MAX);
}

/// N, at a moment at which no invalidation was active.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuietNumber {
    pub(super) word: u64,
    /// The newest hole that may be filled while it stands.
    pub(crate) newest: Word,
}

impl QuietNumber {
    /// N has no such value: each of so many would have a place.
    pub(crate) const NEVER: Self = Self { word: u64::MAX, newest: Word::OLDEST };

    pub(super) fn new(word: u64) -> Self {
        Self { word, newest: Word::hole(Version(word >> COUNT_BITS)) }
    }
}

/// What a fault may fill, as of before it asks the host: spent by its install.
///
/// It proves nothing by itself. It bounds what an install may fill: holes of invalidations up to this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) struct Stamp {
    /// The newest hole that the fault may fill.
    pub(crate) newest: Word,
    /// How large a page no active invalidation covers a part of, around the frame; and up to where that was looked for.
    pub(crate) free: Level,
    pub(crate) reach: Level,
}

/// A fault may not go on yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unconfirmed {
    /// An active invalidation covers the frame: wait for it.
    Covered,
    /// A wide invalidation began or ended meanwhile: look the slot up again.
    Moved,
}

/// What a fault is about to map, or to edit: the page of this size around a frame, and the host addresses behind it.
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

impl Numbers for Active {
    fn fresh(&self) -> Version {
        self.number(0)
    }

    fn now(&self) -> Version {
        // ORDER(begin): Acquire: what was done before that number was taken.
        Version(self.numbers.word.load(Acquire) >> COUNT_BITS)
    }
}

impl Active {
    /// Before the memslot is looked up.
    #[inline(always)]
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.lines.epoch.word())
    }

    /// Rule 2. After the memslot is known, before the host is asked: a stamp for `page`, and for larger ones up to `reach`. `epoch`
    /// was read before the slot; `seen` is the word that is to be filled, if it is known and a hole.
    #[inline]
    pub(crate) fn stamp(
        &self,
        epoch: Epoch,
        page: Page,
        reach: Level,
        seen: Word,
    ) -> Result<Stamp, Unconfirmed> {
        let seen = if seen.is_hole() { seen } else { Word::OLDEST };
        if seeded!(StampUnconfirmed) {
            return Ok(Stamp { newest: self.lines.of(page.hva).newest_since(seen), free: reach, reach });
        }
        let reach = reach.max(page.level);
        let (newest, free) = if reach <= Level::M2 {
            let line = self.lines.of(page.hva);
            let newest = line.newest_since(seen);
            // ORDER(active): Acquire: of its own number, which the hole has carried.
            debug_assert!(
                newest.version().0 <= self.numbers.word.load(Acquire) >> COUNT_BITS,
                "no number from elsewhere"
            );
            let free = free_of(self.listed_on(line).chain(self.listed_on(&self.lines.epoch)), page, reach);
            (newest, free)
        } else {
            // ORDER(begin): Acquire: with a number its place is seen.
            let newest = Word::hole(Version(self.numbers.word.load(Acquire) >> COUNT_BITS));
            (newest, free_of(self.places.used(), page, reach))
        };
        let free = free.ok_or(Unconfirmed::Covered)?;
        // ORDER(begin): Acquire loads before this one stay before it (the memslot, the number, the lists, the places).
        if self.epoch() == epoch { Ok(Stamp { newest, free, reach }) } else { Err(Unconfirmed::Moved) }
    }

    /// Where no memslot was found: whether none of `gfns` is about to get one, since `epoch` was read.
    pub(crate) fn nowhere(&self, epoch: Epoch, gfns: Span<Gfn>) -> bool {
        let covers = |slot: &Slot| is_active(slot) && span::<Gfn>(&slot.gfns).overlaps(&gfns);
        !self.listed_on(&self.lines.epoch).any(covers) && self.epoch() == epoch
    }

    fn listed_on(&self, line: &Line) -> impl Iterator<Item = &Slot> {
        self.places.listed(line.listed())
    }
}

/// Over how large a page around `page`, up to `reach`, none of `slots` is active; `None` where one is over the page itself.
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
            // SAFETY: above the page's own level, and that is 1 at least.
            free = unsafe { free.down_unchecked() };
        }
    }
    Some(free)
}
