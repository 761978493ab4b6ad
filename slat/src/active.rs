//! The active set: the numbers of invalidations, the invalidations in flight, and the stamps of faults.
//!
//! The active set orders a fault and an invalidation that race, without a lock. A hole carries the number of the last
//! invalidation that covered it. A fault takes a **stamp** before it asks the host. It installs by CAS from the hole
//! that it read, and only if that hole is not newer than the stamp. [`crate::notify`] states the numbered rules of the
//! protocol, each with the hazard that it prevents.
//!
//! ```text
//! N = K (newest number, 52 bits) | n (active invalidations, 12 bits)   only invalidations write it
//! a line for each region: a number, and the invalidations listed there; one more line, the epoch   ([`lines`])
//!
//! fault                                    narrow invalidation
//! the hole; e := epoch                     begin: place := {ranges, unflushed}; listed on each of its lines
//! memslot of the gfn                              k := next number of N
//! V := the newer of hole and region               number of each of its regions := the newer of that and k
//! none listed there, or on the epoch,      every hole of the range := hole(k); leaves edited by the plan
//!   covers the page; epoch still = e       flush; place := flushed
//! the host's answer                        the host changes its entry
//! hole ≤ hole(V)?  CAS hole → leaf         end: unlisted; n := n−1; the place is free
//! ```
//! A **wide** invalidation is listed on the epoch alone. It moves the epoch when it begins and when it ends. A fault
//! reads only the line of its region and the epoch, and reads only the epoch twice.
//!
//! # Why one scan is enough
//! * **Listed, then numbered.** A thread that reads a number, in a hole, in N, or on a region's line, finds listed
//!   every active invalidation with this number or an older one. An invalidation that covers the page and has a number
//!   up to V is therefore listed, or has ended. If it has ended, the host changed before the fault asks.
//! * An invalidation that the fault does not find has a number above V. If it has passed the entry, the hole is too new
//!   and the install is refused. Otherwise it reaches the entry later and zaps the new leaf.
//! * No hole is older than the last invalidation that covered it. But a newer one may work below a link that an older
//!   one then unhooks, or pass a leaf that it then zaps. So the older one looks for a newer announcement after each
//!   pass of edits, and edits its range again under a new number, or becomes wide ([`follow`]).
//! * Slots are published inside a wide invalidation. If it covers the page and has published since the fault's look-up,
//!   the fault finds it listed, or finds the epoch moved. A narrow invalidation walks the slots that are published at
//!   that time. If a fault has found a slot that the invalidation has not, the invalidation took its number before the
//!   transaction ended, so that fault finds the invalidation listed.

use crate::addr::{Gfn, Hva, Position, Span};
use crate::lent::Lent;
use crate::sync::prim::{AtomicU64, Padded, Patience, fence_after_rmw};
use crate::table::{Version, Word};
use lines::{Line, Lines, Regions};
use places::{Claim, MAX_PLACES, Places, SLOTS, Slot};

mod follow;
mod lines;
mod places;
mod stamp;

pub(crate) use lines::RegionLine;
pub(crate) use stamp::{Epoch, Page, QuietNumber, Stamp, Unconfirmed};

const COUNT_BITS: u32 = 64 - Version::BITS;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const _: () = assert!(MAX_PLACES <= COUNT as usize + 1, "N counts them all");

const ACTIVE: u64 = 1;
const UNFLUSHED: u64 = 2;

/// The active set of a VM. See the module's header.
#[derive(Debug)]
pub(crate) struct Active {
    head: Padded<Head>,
    lines: Lines,
    places: Places,
}

/// Words that each invalidation writes when it begins and ends, on one cache line. Most faults read neither.
#[derive(Debug, Default)]
struct Head {
    /// N: newest number and number of active invalidations.
    n: AtomicU64,
    /// Bitmap of the first places that are claimed.
    claimed: AtomicU64,
}

/// The things that edits put a hole in place of, since the invalidation last found no newer one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Removed {
    Nothing,
    /// Something in an earlier pass: the range is being edited again.
    Earlier,
    /// Something in the current pass.
    InPass,
}

/// The lists of active invalidations that may cover a page.
pub(crate) type Listed = [(u64, u64); 2];

/// An invalidation that has begun. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Ticket<'a> {
    active: Lent<'a, Active>,
    claim: Claim<'a>,
    /// The regions on whose lines it is announced.
    regions: Regions<'a>,
    /// Whether it is listed on the epoch.
    wide: bool,
    version: Version,
    hole: Word,
    removed: Removed,
}

impl Active {
    pub(crate) fn new() -> Self {
        Self::with_places(SLOTS)
    }

    fn with_places(places: usize) -> Self {
        Self { head: Padded::default(), lines: Lines::new(), places: Places::new(places) }
    }

    /// Returns the hole of the newest number on the region's line.
    #[inline(always)]
    pub(crate) fn newest_of(&self, line: RegionLine) -> Word {
        self.lines.at(line).newest()
    }

    /// Whether an active invalidation covers any of `gfns` or `hvas`, which lie in the region of `line`.
    #[inline]
    pub(crate) fn covered(&self, line: RegionLine, gfns: Span<Gfn>, hvas: Span<Hva>) -> bool {
        let listed = [self.lines.at(line), &self.lines.epoch].map(Line::listed);
        // Mostly none is.
        listed != [(0, 0); 2] && self.any_over(listed, gfns, hvas)
    }

    /// Whether an active invalidation among the `listed` covers any of `gfns` or `hvas`.
    #[inline(never)]
    pub(crate) fn any_over(&self, listed: Listed, gfns: Span<Gfn>, hvas: Span<Hva>) -> bool {
        let mut listed = listed.into_iter().flat_map(|listed| self.places.listed(listed));
        listed.any(|slot| is_over(slot, gfns, hvas))
    }

    /// Returns the newest number.
    #[cfg(test)]
    pub(crate) fn newest(&self) -> Version {
        Version(self.head.n.load(crate::sync::prim::Relaxed) >> COUNT_BITS)
    }

    /// The lists that a fault polls while an invalidation over `hva` is active: they change when it ends.
    pub(crate) fn listed_over(&self, hva: Option<Hva>) -> Listed {
        [hva.map_or((0, 0), |hva| self.lines.of(hva).listed()), self.lines.epoch.listed()]
    }

    /// Whether the invalidation that wrote holes of `version` has not flushed yet. A thread that relies on such a hole
    /// then owes its flush too (rule 7).
    pub(crate) fn unflushed(&self, version: Version) -> bool {
        self.any_unflushed(None, wrote(version))
    }

    /// Whether an active invalidation over `gfns` has not flushed yet. It may have left a stale copy of a leaf in a TLB
    /// (rule 7). An invalidation of host addresses may cover any frame.
    pub(crate) fn unflushed_over(&self, gfns: Span<Gfn>) -> bool {
        self.any_unflushed(None, covers(gfns))
    }

    /// Whether a place other than `mine` is unflushed and matches.
    fn any_unflushed(&self, mine: Option<&Slot>, matches: impl Fn(u64, &Slot) -> bool) -> bool {
        // Mostly there is no other: one load answers.
        // Pairs with the Release in `drop`: an invalidation that has ended has paid.
        let active = self.head.n.load(order!(adopt.others, Acquire)) & COUNT;
        active > u64::from(mine.is_some())
            && self.places.used().any(|slot| !is(slot, mine) && is_unflushed(slot, &matches))
    }

    /// Begins an invalidation by rule 1: publishes the ranges, then the number. If no place is free, the set grows; if
    /// it cannot grow ([`places`]), this waits for another invalidation to end.
    pub(crate) fn begin(&self, gfns: Span<Gfn>, hvas: Span<Hva>) -> Ticket<'_> {
        let mut patience = Patience::default();
        loop {
            match self.try_begin(gfns, hvas) {
                Some(ticket) => return ticket,
                None if self.grow() => {}
                None => patience.wait(),
            }
        }
    }

    /// Makes more places. Returns false if it cannot.
    #[cold]
    pub(crate) fn grow(&self) -> bool {
        self.places.grow()
    }

    /// Like [`begin`](Self::begin), but returns `None` instead of growing or waiting.
    pub(crate) fn try_begin(&self, gfns: Span<Gfn>, hvas: Span<Hva>) -> Option<Ticket<'_>> {
        let claim = self.places.claim(&self.head.claimed)?;
        set(&claim.slot.gfns, gfns);
        set(&claim.slot.hvas, hvas);
        // The ranges before the state. The invalidation has no number and no hole yet.
        claim.slot.state.store(UNFLUSHED | ACTIVE, order!(active.begin, Release));
        let regions = if gfns.is_empty() { self.lines.narrow(hvas) } else { None };
        let mut ticket = Ticket {
            active: Lent::new(self),
            claim,
            regions: regions.unwrap_or(Regions::NONE),
            wide: regions.is_none(),
            version: Version::default(),
            hole: Word::OLDEST,
            removed: Removed::Nothing,
        };
        ticket.announce();
        Some(ticket)
    }

    /// Part of rule 1: takes the next number, which is unique, and counts `more` active invalidations.
    fn number(&self, more: u64) -> Version {
        // The list before the number, for each thread that reads this number or a later one.
        let before = self.head.n.fetch_add((1 << COUNT_BITS) + more, order!(begin.number, AcqRel));
        let version = Version((before >> COUNT_BITS) + 1);
        debug_assert!(version.0 >> Version::BITS == 0, "142 years at a million a second");
        version
    }
}

/// Whether `slot` is the caller's own.
fn is(slot: &Slot, mine: Option<&Slot>) -> bool {
    mine.is_some_and(|mine| core::ptr::eq(slot, mine))
}

fn is_active(slot: &Slot) -> bool {
    // Pairs with the Release in `try_begin`: an active slot's ranges are whole. Ranges torn by the slot's next user do
    // no harm: the previous invalidation has ended.
    slot.state.load(order!(active.state, Acquire)) & ACTIVE != 0
}

fn is_unflushed(slot: &Slot, matches: impl Fn(u64, &Slot) -> bool) -> bool {
    // Pairs with the Release in `flushed`: a debt seen as paid is paid.
    let state = slot.state.load(order!(adopt.state, Acquire));
    state & (ACTIVE | UNFLUSHED) == ACTIVE | UNFLUSHED && matches(state >> 2, slot)
}

fn is_over(slot: &Slot, gfns: Span<Gfn>, hvas: Span<Hva>) -> bool {
    is_active(slot) && (span::<Gfn>(&slot.gfns).overlaps(&gfns) || span::<Hva>(&slot.hvas).overlaps(&hvas))
}

/// Matches the slot of the invalidation that wrote holes of `version`. A widened invalidation has had several numbers.
/// Another invalidation's number may lie between them; the caller then pays one flush too many.
fn wrote(version: Version) -> impl Fn(u64, &Slot) -> bool {
    // As in `span`: if the slot's next user wrote it, the previous invalidation has paid.
    move |last, slot| (slot.first.load(order!(active.first, Acquire))..=last).contains(&version.0)
}

fn covers(gfns: Span<Gfn>) -> impl Fn(u64, &Slot) -> bool {
    move |_, slot| !span::<Hva>(&slot.hvas).is_empty() || span::<Gfn>(&slot.gfns).overlaps(&gfns)
}

fn span<T: Position>(cells: &[AtomicU64; 2]) -> Span<T> {
    // A reader of the slot's next range sees the end of the previous invalidation.
    let [start, end] = cells.each_ref().map(|cell| cell.load(order!(active.span, Acquire)));
    Span::new(T::from_raw(start), T::from_raw(end))
}

/// Stores the start first. While a span grows, a reader of one old and one new end sees at least the old span.
fn set<T: Position>(cells: &[AtomicU64; 2], span: Span<T>) {
    // After all accesses of the slot's last user; pairs with `span`.
    cells[0].store(span.start.raw(), order!(active.set, Release));
    cells[1].store(span.end.raw(), order!(active.set, Release));
}

impl Ticket<'_> {
    /// Its current number, which its edits write into holes.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// The hole with its current number.
    pub(crate) fn hole(&self) -> Word {
        self.hole
    }

    /// Takes the next number, and counts `more` active invalidations.
    fn take_number(&mut self, more: u64) {
        let version = self.active.number(more);
        let slot = self.claim.slot;
        if more > 0 {
            // As in `set`.
            slot.first.store(version.0, order!(active.set_first, Release));
        }
        // Before the edits (also Release): a thread that meets an edit sees this state.
        slot.state.store(version.0 << 2 | UNFLUSHED | ACTIVE, order!(adopt.begin, Release));
        self.version = version;
        self.hole = Word::hole(version);
    }

    /// Rule 1: lists the place, takes a number, and announces it to the regions or on the epoch.
    fn announce(&mut self) {
        let bit = self.claim.bit;
        self.each_line(move |line| line.list(bit));
        self.take_number(1);
        if self.wide {
            self.active.lines.epoch.move_on();
        }
        let hole = self.hole;
        self.each_region(move |line| line.announce(hole));
        // ORDER(upgrade): listed before its walk reads an entry; pairs with the fence after a freeze (rule 10): either
        // the freezer sees this invalidation, or this one's walk sees the frozen entry.
        // ORDER(follow): announced before its walk reads an entry; pairs with the fence in `is_followed`.
        // ORDER(held): announced before it reads the holds; pairs with the fence in `Holds::publish`.
        // ORDER(watched-store): the count before the listener reads; pairs with the fence in `has_after_store`.
        fence_after_rmw();
    }

    /// Calls `visit` with the line of each of its regions.
    #[inline(always)]
    fn each_region(&self, visit: impl Fn(&Line)) {
        self.regions.each(&self.active.lines, visit);
    }

    /// Calls `visit` with each line that lists it.
    #[inline(always)]
    fn each_line(&self, visit: impl Fn(&Line)) {
        if self.wide {
            visit(&self.active.lines.epoch);
        }
        self.each_region(visit);
    }

    /// Like [`Active::unflushed`], among the other invalidations.
    #[inline]
    pub(crate) fn unflushed(&self, version: Version) -> bool {
        self.another_unflushed(wrote(version))
    }

    /// Like [`Active::unflushed_over`], among the other invalidations.
    pub(crate) fn unflushed_over(&self, gfns: Span<Gfn>) -> bool {
        self.another_unflushed(covers(gfns))
    }

    /// Whether another active invalidation of any of `hvas` has not flushed yet.
    pub(crate) fn unflushed_behind(&self, hvas: Span<Hva>) -> bool {
        self.another_unflushed(|_, slot| span::<Hva>(&slot.hvas).overlaps(&hvas))
    }

    /// Any debtor of its range is listed on the epoch or one of its lines ([`go_wide`](Self::go_wide)).
    #[inline(always)]
    fn another_unflushed(&self, matches: impl Fn(u64, &Slot) -> bool) -> bool {
        // Mostly there is one region, and no other invalidation is listed there or on the epoch: four loads answer.
        let bit = self.claim.bit;
        if let Some(line) = self.regions.only()
            && !self.wide
            && line.listed_but(bit) == (0, 0)
            && self.active.lines.epoch.listed_but(bit) == (0, 0)
        {
            return false;
        }
        self.any_other_unflushed(matches)
    }

    /// The same for any number of regions, and where others are listed.
    #[inline(never)]
    fn any_other_unflushed(&self, matches: impl Fn(u64, &Slot) -> bool) -> bool {
        let (active, mine) = (self.active.get(), self.claim.slot.get());
        if self.wide {
            return active.any_unflushed(Some(mine), matches);
        }
        let hides = |line: &Line| {
            let others = line.listed_but(self.claim.bit);
            let unflushed = |slot: &Slot| !is(slot, Some(mine)) && is_unflushed(slot, &matches);
            others != (0, 0) && active.places.listed(others).any(unflushed)
        };
        self.regions.any(&active.lines, hides) || hides(&active.lines.epoch)
    }

    /// Marks it unflushed again: it makes further edits after a flush.
    pub(crate) fn owes_again(&self) {
        // Before the edits (also Release): a thread that meets an edit sees this state.
        self.claim.slot.state.store(self.version().0 << 2 | UNFLUSHED | ACTIVE, order!(adopt.again, Release));
    }

    /// Marks everything that it owed as paid.
    pub(crate) fn flushed(&self) {
        // The flush before the mark.
        self.claim.slot.state.store(self.version().0 << 2 | ACTIVE, order!(adopt.paid, Release));
    }
}

/// Ends the invalidation, in the order of rule 8.
impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.hide_nothing();
        if self.wide {
            // A number for no invalidation. An invalidation with a later number sees what this one published. One with
            // an earlier number is found listed by each fault that sees the epoch move.
            let _ = self.active.number(0);
            self.active.lines.epoch.move_on();
        }
        let bit = self.claim.bit;
        self.each_line(move |line| line.unlist(bit));
        // Paid, and the host has changed, before the count falls; pairs with `any_unflushed` and `is_at`.
        self.active.head.n.fetch_sub(1, order!(adopt.end, Release));
        self.active.places.end(&self.claim, &self.active.head.claimed);
    }
}

#[cfg(all(test, feature = "std", not(shuttle)))]
pub(super) mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
