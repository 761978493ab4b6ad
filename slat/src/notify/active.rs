//! The active set: the numbers of invalidations, the invalidations in flight, and the stamps of faults.
//!
//! This is the heart of the engine: how a fault and an invalidation that race are told apart without a lock.
//! A hole carries the number of the last invalidation that covered it. A fault takes a **stamp** before it asks
//! the host, and installs by CAS from the very hole it saw, provided that the hole is not newer than the stamp.
//! [`crate::notify`] states the rules of the protocol, numbered, each with the hazard that it prevents.
//!
//! ```text
//! N = K (newest number, 52 bits) | n (active ones, 12 bits)      moved and read by invalidations only
//! a line for each region: a number, and who is active there; and the epoch, for all regions   ([`lines`])
//!
//! fault                                    invalidation, narrow: of few regions of host addresses
//! the hole; e := epoch                     begin: place := {ranges, unflushed}; listed on each of its lines
//! memslot of the gfn                              k := next number of N
//! V := the newer of hole and region               number of each of its regions := the newer of that and k
//! none listed there, or on the epoch,      every hole of the range := hole(k); leaves edited by the plan
//!   covers the page; epoch still = e       flush; place := flushed
//! the host's answer                        the host changes its entry
//! hole ≤ hole(V)?  CAS hole → leaf         end: unlisted; n := n−1; the place is free
//! ```
//! A **wide** one is listed on the epoch alone, which it moves when it begins and when it ends. What is written elsewhere a
//! fault does not read; and nothing that it reads does it read again, but for the epoch.
//!
//! # Why one look is enough
//! * **Listed, then numbered.** A thread that sees a number, in a hole, in N, or announced to a region, sees every
//!   invalidation listed that has this number or an older one. So one that covers the page and has a number up to V is found listed,
//!   or it has ended: then the host had changed before the fault asks.
//! * One that the fault does not find has a number above V. Where it has passed, the hole is too new and the install is refused;
//!   where it has not, it will meet the leaf and take it away.
//! * No hole is older than what has covered it. A newer one may have worked below a link that an older one unhooks then, or
//!   have passed by a leaf that an older one takes away then: so the older one looks afterwards whether one has been announced
//!   since, and goes over its range again under a new number ([`Ticket::is_followed`]).
//! * The slots are published inside a wide one. One that covers the page and has published since the fault looked is found
//!   listed, or it has moved the epoch. A narrow one walks the slots of its own time: if a fault has found a slot that it has
//!   not, then it was numbered before the transaction ended, and so that fault finds it listed.

use crate::addr::{Gfn, Hva, Level, Position, Span};
use crate::sync::prim::{
    AcqRel, Acquire, AtomicU64, Padded, Patience, Release, SeqCst, fence, fence_after_rmw,
};
use crate::table::{Version, Word};
use core::cell::Cell;
use lines::{Line, Lines};
use places::{Claim, MOST, Places, SLOTS, Slot};

mod lines;
mod places;
mod stamp;
mod unbound;

pub(crate) use lines::RegionLine;
pub(crate) use stamp::{Epoch, Page, QuietNumber, Stamp, Unconfirmed};
pub(crate) use unbound::UnboundTicket;

const COUNT_BITS: u32 = 64 - Version::BITS;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const _: () = assert!(MOST <= COUNT as usize + 1, "N counts them all");

const ACTIVE: u64 = 1;
const UNFLUSHED: u64 = 2;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Active {
    numbers: Padded<Numbers>,
    lines: Lines,
    places: Places,
}

/// What each invalidation writes when it begins and when it ends, and no fault reads: one line for both.
#[derive(Debug, Default)]
struct Numbers {
    /// N.
    word: AtomicU64,
    /// Which of the first places are taken.
    taken: AtomicU64,
}

/// An invalidation that has begun. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Ticket<'a> {
    active: &'a Active,
    claim: Claim<'a>,
    /// The first of the regions on whose lines it is announced, and the one after the last.
    regions: (u64, u64),
    /// Whether it is announced on the epoch.
    wide: Cell<bool>,
    /// What is published of guest frames.
    gfns: Cell<Span<Gfn>>,
    version: Cell<Version>,
    hole: Cell<Word>,
}

impl Active {
    pub(crate) fn new() -> Self {
        Self::with_places(SLOTS)
    }

    fn with_places(places: usize) -> Self {
        Self { numbers: Padded::default(), lines: Lines::new(), places: Places::new(places) }
    }

    /// The hole of the newest invalidation that a region has heard of.
    #[inline(always)]
    pub(crate) fn newest_of(&self, line: RegionLine) -> Word {
        self.lines.at(line).newest()
    }

    /// N, if no invalidation is active.
    pub(crate) fn quiet_number(&self) -> Option<QuietNumber> {
        // ORDER(quiet): Acquire: before the epoch is looked at; and as in `is_at`.
        let word = self.numbers.word.load(unless_seeded!(QuietRelaxed, Acquire));
        (word & COUNT == 0 || seeded!(QuietBeside)).then(|| QuietNumber::new(word))
    }

    /// Whether none has begun since.
    #[inline(always)]
    pub(crate) fn is_at(&self, number: QuietNumber) -> bool {
        // ORDER(quiet): Acquire pairs with the Release in `drop`: the host of each that has ended has changed.
        self.numbers.word.load(unless_seeded!(QuietRelaxed, Acquire)) == number.word
    }

    /// Whether an active invalidation covers any of these, which are in one region, the one of `line`.
    #[inline]
    pub(crate) fn covered(&self, line: RegionLine, gfns: Span<Gfn>, hvas: Span<Hva>) -> bool {
        let listed = [self.lines.at(line), &self.lines.epoch].map(Line::listed);
        let mut listed = listed.into_iter().flat_map(|listed| self.places.listed(listed));
        listed.any(|slot| is_over(slot, gfns, hvas)) && !seeded!(StampUnconfirmed)
    }

    /// The newest number.
    #[cfg(test)]
    pub(crate) fn newest(&self) -> Version {
        // ORDER(begin): Acquire; tests alone look at it.
        Version(self.numbers.word.load(Acquire) >> COUNT_BITS)
    }

    /// What faults that wait for an invalidation over `hva` look at: it changes when that one ends.
    pub(crate) fn listed_over(&self, hva: Option<Hva>) -> [(u64, u64); 2] {
        [hva.map_or((0, 0), |hva| self.lines.of(hva).listed()), self.lines.epoch.listed()]
    }

    /// Whether the invalidation that wrote holes of `version` has not flushed yet: then a thread that relies on such a hole
    /// owes its flush too (rule 7).
    pub(crate) fn unflushed(&self, version: Version) -> bool {
        self.any_unflushed(None, wrote(version))
    }

    /// Whether an active invalidation over `gfns` has not flushed yet: then a leaf that is left alone may
    /// be stale in a TLB on its account (rule 7). An invalidation of host addresses may cover any frame.
    pub(crate) fn unflushed_over(&self, gfns: Span<Gfn>) -> bool {
        self.any_unflushed(None, covers(gfns))
    }

    /// The same among all but the one that asks.
    fn any_unflushed(&self, mine: Option<&Slot>, matches: impl Fn(u64, &Slot) -> bool) -> bool {
        // No other, mostly: one load.
        // ORDER(adopt): Acquire pairs with the Release in `drop`: one that has ended has paid.
        let active = self.numbers.word.load(unless_seeded!(OthersRelaxed, Acquire)) & COUNT;
        active > u64::from(mine.is_some())
            && self.places.used().any(|slot| !is(slot, mine) && is_unflushed(slot, &matches))
    }

    /// Rule 1: publishes the ranges, then the number. Where no place is free the set grows; [`places`] says when that is
    /// over, and this waits.
    pub(crate) fn begin(&self, gfns: Span<Gfn>, hvas: Span<Hva>) -> Ticket<'_> {
        let mut patience = Patience::default();
        loop {
            match self.begin_now(gfns, hvas) {
                Some(ticket) => return ticket,
                None => patience.wait(),
            }
        }
    }

    /// The same, unless it would have to wait.
    pub(crate) fn begin_now(&self, gfns: Span<Gfn>, hvas: Span<Hva>) -> Option<Ticket<'_>> {
        loop {
            let ticket = self.try_begin(gfns, hvas);
            if ticket.is_some() || !self.places.grow() {
                return ticket;
            }
        }
    }

    /// The same, unless it would have to wait, or to allocate.
    pub(crate) fn try_begin(&self, gfns: Span<Gfn>, hvas: Span<Hva>) -> Option<Ticket<'_>> {
        let claim = self.places.claim(&self.numbers.taken)?;
        set(&claim.slot.gfns, gfns);
        set(&claim.slot.hvas, hvas);
        // ORDER(active): Release: the ranges before the state. It has no number yet, and no hole of it is anywhere.
        claim.slot.state.store(UNFLUSHED | ACTIVE, Release);
        let regions = if gfns.is_empty() { Lines::narrow(hvas) } else { None };
        let ticket = Ticket {
            active: self,
            claim,
            regions: regions.unwrap_or_default(),
            wide: Cell::new(regions.is_none()),
            gfns: Cell::new(gfns),
            version: Cell::default(),
            hole: Cell::new(Word::OLDEST),
        };
        ticket.announce();
        ticket.claim.begun();
        Some(ticket)
    }

    /// Part of rule 1: the next number, which no other invalidation gets, and `more` active ones.
    fn number(&self, more: u64) -> Version {
        // ORDER(begin): AcqRel: the list before the number, for each thread that sees this number or a later one.
        let before =
            self.numbers.word.fetch_add((1 << COUNT_BITS) + more, unless_seeded!(NumberedRelaxed, AcqRel));
        let version = Version((before >> COUNT_BITS) + 1);
        debug_assert!(version.0 >> Version::BITS == 0, "142 years at a million a second");
        version
    }
}

/// Whether `slot` is the one that the caller has.
fn is(slot: &Slot, mine: Option<&Slot>) -> bool {
    mine.is_some_and(|mine| core::ptr::eq(slot, mine))
}

fn is_active(slot: &Slot) -> bool {
    // ORDER(active): Acquire pairs with the Release in `try_begin`: an active slot's ranges are whole. Ranges torn by the
    // slot's next user do no harm: the one before has ended.
    slot.state.load(unless_seeded!(StateRelaxed, Acquire)) & ACTIVE != 0
}

fn is_unflushed(slot: &Slot, matches: impl Fn(u64, &Slot) -> bool) -> bool {
    // ORDER(adopt): Acquire pairs with the Release in `flushed`: a debt seen as paid is paid.
    let state = slot.state.load(Acquire);
    state & (ACTIVE | UNFLUSHED) == ACTIVE | UNFLUSHED && matches(state >> 2, slot) && !seeded!(NotAdopted)
}

fn is_over(slot: &Slot, gfns: Span<Gfn>, hvas: Span<Hva>) -> bool {
    is_active(slot) && (span::<Gfn>(&slot.gfns).overlaps(&gfns) || span::<Hva>(&slot.hvas).overlaps(&hvas))
}

/// One that was widened has had several numbers. Another invalidation with a number between owes nothing by this answer, only
/// pays once more.
fn wrote(version: Version) -> impl Fn(u64, &Slot) -> bool {
    // ORDER(active): Acquire, as in `span`: if it is the slot's next user's, then the one before has paid.
    move |last, slot| (slot.first.load(unless_seeded!(FirstRelaxed, Acquire))..=last).contains(&version.0)
}

fn covers(gfns: Span<Gfn>) -> impl Fn(u64, &Slot) -> bool {
    move |_, slot| !span::<Hva>(&slot.hvas).is_empty() || span::<Gfn>(&slot.gfns).overlaps(&gfns)
}

fn span<T: Position>(cells: &[AtomicU64; 2]) -> Span<T> {
    // ORDER(active): Acquire: a thread that reads a range of the slot's next user sees that the one before has ended.
    let [start, end] = cells.each_ref().map(|cell| cell.load(unless_seeded!(RangesRelaxed, Acquire)));
    Span::new(T::from_raw(start), T::from_raw(end))
}

/// The start first: of a span that grows, a reader of one old and one new end sees no less than the old span.
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

    /// The hole of its number.
    pub(crate) fn hole(&self) -> Word {
        self.hole.get()
    }

    /// Takes the next number, and counts `more` active ones.
    fn take_number(&self, more: u64) {
        let version = self.active.number(more);
        let slot = self.claim.slot;
        if more > 0 {
            // ORDER(active): Release, as in `set`.
            slot.first.store(version.0, Release);
        }
        // ORDER(adopt): Release, and before the edits, which are Release too: an invalidation that meets one of them sees this.
        slot.state.store(version.0 << 2 | UNFLUSHED | ACTIVE, Release);
        self.version.set(version);
        self.hole.set(Word::hole(version));
    }

    /// Rule 1: lists it, numbers it, and tells its regions, or all.
    fn announce(&self) {
        let list = || self.lines().for_each(|line| line.list(&self.claim));
        if !seeded!(NumberedFirst) {
            list();
        }
        self.take_number(1);
        if seeded!(NumberedFirst) {
            list();
        }
        if self.wide.get() {
            self.active.lines.epoch.move_on();
        }
        self.regions().for_each(|line| line.announce(self.hole()));
        // ORDER(upgrade): listed before any entry is looked at; pairs with the fence after a freeze (rule 10): either the
        // freezer sees this one, or this one's walk sees the frozen entry.
        // ORDER(follow): announced before any entry is looked at; pairs with the fence in `is_followed`.
        // ORDER(held): and before what is held is looked at; pairs with the fence in `Holds::publish`.
        // ORDER(watched-store): a count before its listener reads; pairs with the fence in `has_after_store`.
        if !seeded!(BeginUnfenced) {
            fence_after_rmw();
        }
    }

    #[inline]
    fn regions(&self) -> impl Iterator<Item = &Line> {
        let lines = &self.active.lines;
        (self.regions.0..self.regions.1).map(|region| lines.at(RegionLine::of_region(region)))
    }

    fn lines(&self) -> impl Iterator<Item = &Line> {
        self.wide.get().then_some(&self.active.lines.epoch.0).into_iter().chain(self.regions())
    }

    /// Rule 14. After an edit that takes something away, before its flush: whether a newer invalidation has been announced to one of its
    /// regions since it was numbered. That one may have passed by what this one has taken away since, and has left no number
    /// there; or it has left one below a link that is gone. A fault that could fill the older hole waits for this
    /// invalidation: which [takes a new number](Self::renumber), and goes over its range once more.
    ///
    /// A wide one moves the epoch to end: such a fault sees that, and starts over.
    pub(crate) fn is_followed(&self) -> bool {
        if self.wide.get() || seeded!(NewerHidden) {
            return false;
        }
        // ORDER(follow): the edits before the look; pairs with the fence in `announce`: either this one sees the newer number, or
        // the newer one's walk sees the edits.
        fence(SeqCst);
        self.regions().any(|line| line.newest() > self.hole())
    }

    /// It goes on under a new number.
    pub(crate) fn renumber(&self) {
        self.take_number(0);
    }

    /// Whether an active invalidation other than this one is over any of these, or a slot may have changed since `epoch`
    /// was read: one look at all places.
    pub(crate) fn is_alone(&self, epoch: Epoch, gfns: Span<Gfn>, hvas: Span<Hva>) -> bool {
        if seeded!(RecoveredBeside) {
            return true;
        }
        // ORDER(active): Acquire: with a number its place is seen. After a freeze and its fence: one that is not seen
        // here will see the frozen entry.
        let _ = self.active.numbers.word.load(Acquire);
        let mut others = self.active.places.used().filter(|slot| !is(slot, Some(self.claim.slot)));
        !others.any(|slot| is_over(slot, gfns, hvas)) && self.active.epoch() == epoch
    }

    /// Rule 11: nothing is zapped outside of what is published. A leaf that reaches out of the range is published first,
    /// under a new number: as if this one ended and a wider one began at once.
    pub(crate) fn widen(&self, gfns: Span<Gfn>) {
        if self.gfns.get().covers(&gfns) {
            return;
        }
        self.gfns.set(self.gfns.get().hull(&gfns));
        set(&self.claim.slot.gfns, self.gfns.get());
        if gfns.len() > Level::M2.pages() && !self.wide.get() {
            return self.go_wide(); // into more regions than it is announced to
        }
        self.take_number(0);
        self.regions().for_each(|line| line.announce(self.hole()));
        // ORDER(upgrade): as in `announce`.
        fence(SeqCst);
    }

    /// It is listed on the epoch from now on, and goes on under a new number.
    pub(crate) fn go_wide(&self) {
        if !self.wide.replace(true) {
            self.active.lines.epoch.list(&self.claim);
            self.take_number(0);
            self.active.lines.epoch.move_on();
        }
        // ORDER(upgrade): as in `announce`.
        fence(SeqCst);
    }

    /// [`Active::unflushed`], by another than this one.
    #[inline]
    pub(crate) fn unflushed(&self, version: Version) -> bool {
        self.another_unflushed(wrote(version))
    }

    /// [`Active::unflushed_over`], by another than this one.
    pub(crate) fn unflushed_over(&self, gfns: Span<Gfn>) -> bool {
        self.another_unflushed(covers(gfns))
    }

    /// Whether another active invalidation of any of these host addresses has not flushed yet.
    pub(crate) fn unflushed_behind(&self, hvas: Span<Hva>) -> bool {
        self.another_unflushed(|_, slot| span::<Hva>(&slot.hvas).overlaps(&hvas))
    }

    /// One that owes a flush of what this one covers is listed on the epoch, or on a line of this one's ([`go_wide`](Self::go_wide)).
    #[inline]
    fn another_unflushed(&self, matches: impl Fn(u64, &Slot) -> bool) -> bool {
        let (active, mine) = (self.active, self.claim.slot);
        if self.wide.get() {
            return active.any_unflushed(Some(mine), matches);
        }
        let hides = |line: &Line| {
            let others = line.listed_but(&self.claim);
            let unflushed = |slot: &Slot| !is(slot, Some(mine)) && is_unflushed(slot, &matches);
            others != (0, 0) && active.places.listed(others).any(unflushed)
        };
        self.regions().any(&hides) || hides(&active.lines.epoch)
    }

    /// It goes on to edit: what it has paid was for earlier edits.
    pub(crate) fn owes_again(&self) {
        // ORDER(adopt): Release, and before the edits, which are Release too: a thread that meets one of them sees this.
        self.claim.slot.state.store(self.version().0 << 2 | UNFLUSHED | ACTIVE, Release);
    }

    /// Whatever this invalidation owed is paid.
    pub(crate) fn flushed(&self) {
        // ORDER(adopt): Release: the flush before the mark.
        self.claim.slot.state.store(self.version().0 << 2 | ACTIVE, unless_seeded!(PaidRelaxed, Release));
    }
}

/// The end, in the order of rule 8.
impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if self.wide.get() && !seeded!(EpochKept) {
            // A number for no invalidation: one that is numbered later sees what this one has published; one that was numbered
            // before is found listed by each fault that sees the epoch move.
            if !seeded!(EndUnnumbered) {
                let _ = self.active.number(0);
            }
            self.active.lines.epoch.move_on();
        }
        self.lines().for_each(|line| line.unlist(&self.claim));
        // ORDER(adopt): Release: paid before the count.
        self.active.numbers.word.fetch_sub(1, Release);
        self.claim.end();
    }
}

#[cfg(all(test, loom))]
pub(super) mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
