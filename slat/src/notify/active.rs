//! The active set: the word W, the invalidations in flight, and the stamps of faults.
//!
//! This is the heart of the engine: how a fault and an invalidation that race are told apart without a lock.
//! A hole carries the number of the last invalidation that covered it. A fault takes a **stamp** before it asks
//! the host, and installs by CAS from the very hole it saw, provided that the hole is not newer than the stamp.
//!
//! ```text
//! W = K (newest invalidation, 52 bits) | n (active ones, 12 bits)
//!
//! fault                                   invalidation
//! S := stamp: x := W                      begin: slot := {k = K+1, ranges, unflushed}; CAS W → (k, n+1)
//! memslot of the gfn                      every hole of the range := hole(k); leaves edited by the plan
//! confirm: nobody active covers it,       flush; slot := flushed
//!          and W still = x                the host changes its entry
//! the host's answer                       end: n := n−1, then clear the slot
//! hole ≤ hole(S)?  CAS hole → leaf
//! ```
//! * An invalidation that begins after the stamp has a number above S: where it has passed, the hole is too new
//!   and the install is refused; where it has not, it will meet the leaf and take it away.
//! * One that began before and has ended changed the host first: the fault was told the new page.
//! * One that is active and covers the frame: the fault waits.
//! * The second look at W makes the scan a consistent cut: without it an older invalidation that unhooks a
//!   table hides a newer one that worked inside it. The same look also confirms the memslot of the frame: a
//!   slot set is published inside an invalidation of the frames that it changes. Of other frames an unchanged W
//!   says nothing while an invalidation is active.
//!
//! Ended means `n` first, slot second: the other order lets a fault see an empty slot and an old W.

use crate::addr::{Gfn, Hva, Position, Span};
use crate::sync::prim::{AcqRel, Acquire, AtomicU64, Padded, Patience, Relaxed, Release, SeqCst, fence};
use crate::table::{Version, Word};
use core::cell::Cell;
use places::{Claim, Places, Slot};

mod places;

const COUNT_BITS: u32 = 64 - Version::BITS;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
/// Invalidations for which there are places from the start; [`places`] has the rest.
const SLOTS: usize = if cfg!(loom) { 3 } else { 32 };

const ACTIVE: u64 = 1;
const UNFLUSHED: u64 = 2;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Active {
    /// W, on a line of its own: read by every fault, written rarely.
    word: Padded<AtomicU64>,
    places: Places,
}

/// What a fault saw before it asked anybody: spent by its install.
///
/// It proves nothing by itself. It bounds what an install may fill: holes of invalidations up to this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) struct Stamp {
    w: u64,
}

impl Stamp {
    /// Equal to no stamp that is taken: W never counts so far.
    pub(crate) const NEVER: Self = Self { w: u64::MAX };

    /// Whether no invalidation was active.
    #[inline(always)]
    pub(crate) const fn is_quiet(self) -> bool {
        self.w & COUNT == 0
    }

    /// The newest invalidation that the fault has seen begin.
    pub(crate) const fn version(self) -> Version {
        Version(self.w >> COUNT_BITS)
    }

    /// The newest hole that the fault may fill.
    #[inline(always)]
    pub(crate) const fn newest(self) -> Word {
        Word::hole(Version(self.w >> COUNT_BITS))
    }
}

/// A fault may not go on yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unconfirmed {
    /// An active invalidation covers the frame: wait for it.
    Covered,
    /// Something began or ended meanwhile: take a new stamp.
    Moved,
}

/// An invalidation that has begun. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Ticket<'a> {
    active: &'a Active,
    claim: Claim<'a>,
    /// What is published of guest frames.
    gfns: Cell<Span<Gfn>>,
    version: Cell<Version>,
}

impl Active {
    pub(crate) fn new() -> Self {
        Self::with_places(SLOTS)
    }

    fn with_places(places: usize) -> Self {
        Self { word: Padded::default(), places: Places::new(places) }
    }

    /// Rule 2, first half: before the memslot is looked up and the host is asked.
    #[inline(always)]
    pub(crate) fn stamp(&self) -> Stamp {
        // ORDER(stamp): Acquire pairs with the Release of `Ticket::drop`: whoever sees an invalidation ended
        // sees what its host had changed by then.
        // ORDER(begin): and whoever sees one begun sees its slot.
        Stamp { w: self.word.0.load(unless_seeded!(StampRelaxed, Acquire)) }
    }

    /// Rule 2, second half: after the memslot is known, before the host is asked.
    #[inline(always)]
    pub(crate) fn confirm(&self, stamp: Stamp, gfns: Span<Gfn>, hvas: Span<Hva>) -> Result<(), Unconfirmed> {
        if seeded!(StampUnconfirmed) {
            return Ok(());
        }
        if !stamp.is_quiet() && self.covered(gfns, hvas, None) {
            return Err(Unconfirmed::Covered);
        }
        // ORDER(stamp): Acquire loads before this one stay before it (the memslot's root, the slots of the
        // scan): whoever published them had moved W first, by a read-modify-write that this load then sees.
        if self.word.0.load(Acquire) == stamp.w { Ok(()) } else { Err(Unconfirmed::Moved) }
    }

    #[cold]
    fn covered(&self, gfns: Span<Gfn>, hvas: Span<Hva>, but: Option<&Slot>) -> bool {
        self.places.used().filter(|slot| !is(slot, but)).any(|slot| {
            // ORDER(active): Acquire pairs with the Release in `begin`: an active slot's ranges are whole. Ranges
            // torn by the slot's next user do no harm: W has moved since, and the fault will see it.
            slot.state.load(unless_seeded!(StateRelaxed, Acquire)) & ACTIVE != 0
                && (span::<Gfn>(&slot.gfns).overlaps(&gfns) || span::<Hva>(&slot.hvas).overlaps(&hvas))
        })
    }

    /// Whether the invalidation that wrote holes of `version` has not flushed yet: then whoever relies on such a hole
    /// owes its flush too (rule 7).
    pub(crate) fn unflushed(&self, version: Version) -> bool {
        self.others_unflushed(None, wrote(version))
    }

    /// Whether an active invalidation over `gfns` has not flushed yet: then a leaf that is left alone may
    /// be stale in a TLB on its account (rule 7). An invalidation of host addresses may cover any frame.
    pub(crate) fn unflushed_over(&self, gfns: Span<Gfn>) -> bool {
        self.others_unflushed(None, covers(gfns))
    }

    fn others_unflushed(&self, mine: Option<&Slot>, matches: impl Fn(u64, &Slot) -> bool) -> bool {
        if seeded!(NotAdopted) {
            return false;
        }
        // Nobody else: the common case, one load.
        // ORDER(adopt): Acquire pairs with the Release in `drop`: whoever has ended has paid.
        if self.word.0.load(unless_seeded!(OthersRelaxed, Acquire)) & COUNT <= u64::from(mine.is_some()) {
            return false;
        }
        self.places.used().any(|slot| {
            // ORDER(adopt): Acquire pairs with the Release in `flushed`: a debt seen as paid is paid.
            let state = slot.state.load(Acquire);
            let unpaid = state & (ACTIVE | UNFLUSHED) == ACTIVE | UNFLUSHED;
            unpaid && !is(slot, mine) && matches(state >> 2, slot)
        })
    }

    /// Rule 1: publishes the ranges, then the number. Where no place is free the set grows; [`places`] says when that is
    /// over, and this waits.
    pub(crate) fn begin(&self, gfns: Span<Gfn>, hvas: Span<Hva>) -> Ticket<'_> {
        let mut patience = Patience::default();
        loop {
            match self.try_begin(gfns, hvas) {
                Some(ticket) => return ticket,
                None if self.places.grow() => {}
                None => patience.wait(),
            }
        }
    }

    /// The same, unless it would have to wait, or to allocate.
    pub(crate) fn try_begin(&self, gfns: Span<Gfn>, hvas: Span<Hva>) -> Option<Ticket<'_>> {
        let claim = self.places.claim()?;
        set(&claim.slot.gfns, gfns);
        set(&claim.slot.hvas, hvas);
        let ticket = Ticket { active: self, claim, gfns: Cell::new(gfns), version: Cell::default() };
        ticket.take_number(1);
        ticket.claim.begun();
        Some(ticket)
    }
}

/// Whether `slot` is the one that the caller has.
fn is(slot: &Slot, mine: Option<&Slot>) -> bool {
    mine.is_some_and(|mine| core::ptr::eq(slot, mine))
}

/// One that was widened has had several numbers. Whoever else had one between owes nothing by this answer, only
/// pays once more.
fn wrote(version: Version) -> impl Fn(u64, &Slot) -> bool {
    // ORDER(active): Acquire, as in `span`: if it is the slot's next user's, then the one before has paid.
    move |last, slot| (slot.first.load(unless_seeded!(FirstRelaxed, Acquire))..=last).contains(&version.0)
}

fn covers(gfns: Span<Gfn>) -> impl Fn(u64, &Slot) -> bool {
    move |_, slot| !span::<Hva>(&slot.hvas).is_empty() || span::<Gfn>(&slot.gfns).overlaps(&gfns)
}

fn span<T: Position>(cells: &[AtomicU64; 2]) -> Span<T> {
    // ORDER(active): Acquire: whoever reads a range of the slot's next user sees in W that the one before has ended.
    let [start, end] = cells.each_ref().map(|cell| cell.load(unless_seeded!(RangesRelaxed, Acquire)));
    Span::new(T::from_raw(start), T::from_raw(end))
}

/// The start first: of a span that grows, whoever reads one old and one new end sees no less than the old span.
fn set<T: Position>(cells: &[AtomicU64; 2], span: Span<T>) {
    // ORDER(active): Release: whatever the slot's last user did before; pairs with `span`.
    cells[0].store(span.start.raw(), Release);
    cells[1].store(span.end.raw(), Release);
}

impl Ticket<'_> {
    /// Its number: what it writes into holes from now on.
    pub(crate) fn version(&self) -> Version {
        self.version.get()
    }

    /// Publishes the ranges in the slot under the next number, and counts `more` active ones.
    fn take_number(&self, more: u64) {
        loop {
            let w = self.active.word.0.load(Relaxed);
            let version = Version((w >> COUNT_BITS) + 1);
            debug_assert!(version.0 >> Version::BITS == 0, "142 years at a million a second");
            if more > 0 {
                // ORDER(active): Release, as in `set`.
                self.claim.slot.first.store(version.0, Release);
            }
            // ORDER(active): Release: the ranges before the state, the state before W; pairs with `covered`.
            self.claim.slot.state.store(version.0 << 2 | UNFLUSHED | ACTIVE, Release);
            let next = version.0 << COUNT_BITS | (w & COUNT) + more;
            if injected!(Cas) {
                continue;
            }
            // ORDER(begin): AcqRel: the slot before W moves; the slot set published before my number is the one
            // that I shall walk.
            if self
                .active
                .word
                .0
                .compare_exchange(w, next, unless_seeded!(BeginRelaxed, AcqRel), Relaxed)
                .is_ok()
            {
                // ORDER(upgrade): W moved before any entry is looked at; pairs with the fence after a freeze
                // (rule 10): either the freezer sees this number, or this walk sees the frozen entry.
                if !seeded!(BeginUnfenced) {
                    fence(SeqCst);
                }
                self.version.set(version);
                return;
            }
        }
    }

    /// [`Active::confirm`] for the invalidator itself: whether nobody else is active over any of it, and W still stands.
    pub(crate) fn confirm_alone(&self, stamp: Stamp, gfns: Span<Gfn>, hvas: Span<Hva>) -> bool {
        if seeded!(RecoveredBeside) {
            return true;
        }
        // ORDER(stamp): as in `confirm`.
        !self.active.covered(gfns, hvas, Some(self.claim.slot)) && self.active.word.0.load(Acquire) == stamp.w
    }

    /// Rule 11: nothing is zapped outside of what is published. A leaf that reaches out of the range is published
    /// first, under a new number: as if this invalidation ended and a wider one began in the same instant.
    pub(crate) fn widen(&self, gfns: Span<Gfn>) {
        if !self.gfns.get().covers(&gfns) {
            self.gfns.set(self.gfns.get().hull(&gfns));
            set(&self.claim.slot.gfns, self.gfns.get());
            self.take_number(0);
        }
    }

    /// [`Active::unflushed`], by another than this one.
    pub(crate) fn unflushed(&self, version: Version) -> bool {
        self.active.others_unflushed(Some(self.claim.slot), wrote(version))
    }

    /// [`Active::unflushed_over`], by another than this one.
    pub(crate) fn unflushed_over(&self, gfns: Span<Gfn>) -> bool {
        self.active.others_unflushed(Some(self.claim.slot), covers(gfns))
    }

    /// Whether another active invalidation of any of these host addresses has not flushed yet.
    pub(crate) fn unflushed_behind(&self, hvas: Span<Hva>) -> bool {
        self.active.others_unflushed(Some(self.claim.slot), |_, slot| span::<Hva>(&slot.hvas).overlaps(&hvas))
    }

    /// It goes on to edit: what it has paid was for what it had edited before.
    pub(crate) fn owes_again(&self) {
        // ORDER(adopt): Release, and before the edits, which are Release too: whoever meets one of them sees this.
        self.claim.slot.state.store(self.version().0 << 2 | UNFLUSHED | ACTIVE, Release);
    }

    /// Whatever this invalidation owed is paid.
    pub(crate) fn flushed(&self) {
        // ORDER(adopt): Release: the flush before the mark.
        self.claim.slot.state.store(self.version().0 << 2 | ACTIVE, unless_seeded!(PaidRelaxed, Release));
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        // ORDER(stamp): Release: what the host changed, and the slot set published, before the end. The count
        // goes first: a fault that still sees this slot then sees W moved, and takes a new stamp.
        self.active.word.0.fetch_sub(1, unless_seeded!(EndRelaxed, Release));
        self.claim.end();
    }
}

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const NOWHERE: Span<Hva> = Span::new(Hva(0), Hva(0));

    fn gfns(start: u64, end: u64) -> Span<Gfn> {
        Span::new(Gfn(start), Gfn(end))
    }

    #[test]
    fn a_stamp_is_confirmed_only_over_a_quiet_range() {
        let active = Active::new();
        let stamp = active.stamp();
        assert_eq!(active.confirm(stamp, gfns(5, 6), NOWHERE), Ok(()));
        let ticket = active.begin(gfns(0, 10), NOWHERE);
        assert_eq!(active.confirm(stamp, gfns(5, 6), NOWHERE), Err(Unconfirmed::Moved), "one began");
        let stamp = active.stamp();
        assert_eq!(active.confirm(stamp, gfns(5, 6), NOWHERE), Err(Unconfirmed::Covered));
        assert_eq!(active.confirm(stamp, gfns(10, 11), NOWHERE), Ok(()), "others are not disturbed");
        drop(ticket);
        assert_eq!(active.confirm(stamp, gfns(10, 11), NOWHERE), Err(Unconfirmed::Moved), "one ended");
        assert_eq!(active.confirm(active.stamp(), gfns(5, 6), NOWHERE), Ok(()));
    }

    #[test]
    fn a_stamp_fills_holes_up_to_its_own_age() {
        let active = Active::new();
        let before = active.stamp();
        let version = active.begin(gfns(0, 1), NOWHERE).version();
        assert!(Word::hole(version) > before.newest(), "bumped after the stamp: too new");
        assert!(Word::hole(version) <= active.stamp().newest(), "a later stamp may fill it");
    }

    #[test]
    fn debts_of_others_are_adopted_until_they_are_paid() {
        let active = Active::new();
        let a = active.begin(gfns(0, 10), NOWHERE);
        let b = active.begin(gfns(20, 30), Span::new(Hva(0x1000), Hva(0x2000)));
        assert!(b.unflushed(a.version()) && !b.unflushed(b.version()));
        assert!(b.unflushed_over(gfns(5, 6)), "a covers it");
        assert!(!b.unflushed_over(gfns(15, 16)), "a does not");
        assert!(a.unflushed_over(gfns(15, 16)), "b invalidates host addresses: may be anywhere");
        a.flushed();
        assert!(!b.unflushed(a.version()));
        let [inside, beside] = [0x1000, 0x2000].map(|start| Span::sized(Hva(start), 0x1000));
        assert!(a.unflushed_behind(inside) && !a.unflushed_behind(beside) && !b.unflushed_behind(inside));
        b.flushed();
        assert!(!a.unflushed_behind(inside));
    }

    #[test]
    fn the_set_grows_where_there_is_memory() {
        let active = Active::with_places(2);
        let two = [0, 1].map(|at| active.begin(gfns(at, at + 1), NOWHERE));
        assert!(active.try_begin(gfns(2, 3), NOWHERE).is_none(), "that would allocate");
        #[cfg(feature = "std")]
        crate::inject::every(crate::inject::Point::Alloc, 1, || assert!(!active.places.grow()));
        let stamp = active.stamp();
        let more: std::vec::Vec<_> = (2..50).map(|at| active.begin(gfns(at, at + 1), NOWHERE)).collect();
        assert_eq!(active.confirm(stamp, gfns(60, 61), NOWHERE), Err(Unconfirmed::Moved));
        assert_eq!(active.confirm(active.stamp(), gfns(49, 50), NOWHERE), Err(Unconfirmed::Covered));
        assert!(two[0].unflushed(more[47].version()) && !more[47].unflushed(more[47].version()));
        drop(more);
        assert_eq!(active.places.used().count(), 2, "the others are looked at only while one is taken");
        assert_eq!(active.confirm(active.stamp(), gfns(49, 50), NOWHERE), Ok(()));
    }

    #[test]
    fn widening_is_a_new_number_over_a_larger_range() {
        let active = Active::new();
        let a = active.begin(gfns(5, 6), NOWHERE);
        let b = active.begin(gfns(900, 901), NOWHERE);
        let (first, stamp) = (a.version(), active.stamp());
        assert_eq!(active.confirm(stamp, gfns(0, 1), NOWHERE), Ok(()), "published to the page");
        a.widen(gfns(5, 6));
        assert_eq!(a.version(), first, "nothing new");
        a.widen(gfns(0, 512));
        assert!(a.version() > b.version());
        assert_eq!(active.confirm(stamp, gfns(700, 701), NOWHERE), Err(Unconfirmed::Moved), "W says so");
        assert_eq!(active.confirm(active.stamp(), gfns(0, 1), NOWHERE), Err(Unconfirmed::Covered));
        assert!(b.unflushed(first) && b.unflushed(a.version()), "holes of either number are its debts");
        drop((a, b));
        assert_eq!(active.confirm(active.stamp(), gfns(0, 1000), NOWHERE), Ok(()));
    }
}
