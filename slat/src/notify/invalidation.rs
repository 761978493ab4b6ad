//! `Invalidation`: a guard around a change in the primary MMU.
//!
//! ```text
//! let mut change = vm.invalidate(range, why);   begin: faults on the range wait from here
//! change.apply(&mut idle).settle();             walk, then one flush: no vCPU uses the range any more
//! …the host changes its own entries…
//! drop(change);                                 end: faults on the range go on and see the new state
//! ```
//! It cannot end while its debt is open. The compiler refuses to drop it before the debt:
//!
//! ```compile_fail,E0505
//! # use slat::*;
//! # fn f<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
//! let mut change = vm.invalidate(Span::new(Hva(0), Hva(4096)), Why::Unmap);
//! let debt = change.apply(idle);
//! drop(change);
//! debt.settle();
//! # }
//! ```
//! A debt that is leaked (`core::mem::forget`) stays on the record of its invalidation, which pays it with the next debt or
//! when it ends. An invalidation that is leaked never ends: faults on its range wait for ever, its place in the active set
//! and the tables that it owes a flush for are not given back before the VM is dropped, and the host must not change the
//! range. Invalidations that meet its holes go on paying its flush.
//!
//! No invalidation stops the world, waits for a fault, or makes a fault elsewhere retry
//! ([`super::active`] has the argument).

use super::active::{Stamp, Ticket};
use super::along::{PageBehind, along};
use super::plan::{Edit, plan, zaps};
use super::why::Why;
use crate::addr::{Gfn, Hva, Level, Span};
use crate::host::{Host, HostPage};
use crate::slots::SpaceId;
use crate::space::Space;
use crate::sync::idle::Idle;
use crate::sync::mode::{Edits, Exclusive, Mode, Shared};
use crate::sync::readside::Seat;
use crate::sync::tally::Count;
use crate::table::entry::{Entry, Kind, Version, Word};
use crate::table::format::{Format, Leaf, Perms};
use crate::table::memory::Node;
use crate::table::steps::Steps;
use crate::table::walk::Walk;
use crate::tlb::FlushDebt;
use crate::tlb::debt::Owed;
use crate::vm::Vm;

/// See the module's header. Dropping one that was never applied calls it off: the host then changes nothing. Dropping one
/// whose debt was leaked pays that debt, and so waits for vCPUs in the guest: its thread must not be in the guest itself.
#[derive(Debug)]
#[must_use = "the range is protected only while this lives"]
pub struct Invalidation<'vm, F: Format, H: Host> {
    begun: Begun<'vm, F, H>,
    /// What its edits owe so far. Its debts are views of this record, so a debt that is leaked is not lost.
    owed: Owed,
}

/// An invalidation from its begin to its end, without the record of what it owes.
#[derive(Debug)]
struct Begun<'vm, F: Format, H: Host> {
    vm: &'vm Vm<F, H>,
    ticket: Ticket<'vm>,
    range: Range,
    why: Why,
}

/// What is known of the pages in a range that is edited.
#[derive(Clone, Copy, Default)]
struct Known<'a> {
    /// The host's page, where it was told.
    now: Option<&'a PageBehind>,
    /// No leaf is left in any table of the range.
    emptied: bool,
}

/// What is invalidated: guest frames directly, or whatever memslots map a host range.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Range {
    /// Of one address space.
    Gfns(SpaceId, Span<Gfn>),
    /// In every address space.
    Hvas(Span<Hva>),
}

impl Range {
    fn published(self) -> (Span<Gfn>, Span<Hva>) {
        match self {
            Self::Gfns(_, gfns) => (gfns, Span::new(Hva(0), Hva(0))),
            Self::Hvas(hvas) => (Span::new(Gfn(0), Gfn(0)), hvas),
        }
    }
}

impl<'vm, F: Format, H: Host> Invalidation<'vm, F, H> {
    /// Begins: publishes exactly the range.
    pub(crate) fn begin(vm: &'vm Vm<F, H>, range: Range, why: Why) -> Self {
        let (gfns, hvas) = range.published();
        Self::begun(vm, vm.active.begin(gfns, hvas), range, why)
    }

    /// The same, or nothing where it would have to wait for another to end, or for memory.
    pub(super) fn try_begin(vm: &'vm Vm<F, H>, range: Range, why: Why) -> Option<Self> {
        let (gfns, hvas) = range.published();
        Some(Self::begun(vm, vm.active.try_begin(gfns, hvas)?, range, why))
    }

    fn begun(vm: &'vm Vm<F, H>, ticket: Ticket<'vm>, range: Range, why: Why) -> Self {
        let begun = Begun { vm, ticket, range, why: vm.heard(range, why) };
        Self { begun, owed: Owed::default() }
    }

    /// Edits every entry of the range by the plan and returns what that owes. Waits for no fault; settling waits
    /// for vCPUs in the guest. Whatever follows from the host's change must come after the settling.
    ///
    /// Where the reason is decided [page by page](Why::page_by_page), nothing happens here.
    pub fn apply<'i>(&'i mut self, idle: &'i mut Idle) -> FlushDebt<'i> {
        self.apply_on(idle, None)
    }

    /// The host's pages at `hvas`, in the range, map `to` now, or nothing: where the reason is decided
    /// [page by page](Why::page_by_page), edits what is mapped there, and returns what that owes. `to` names the frame of
    /// the first page of `hvas`; where it is larger than 4 KiB, those that follow have the frames that follow. What lies
    /// beyond that one page is zapped. The host's own entry must not change meanwhile; frames that it mapped must not be
    /// used again before the settling.
    pub fn changed<'i>(
        &'i mut self,
        idle: &'i mut Idle,
        hvas: Span<Hva>,
        to: Option<HostPage>,
    ) -> FlushDebt<'i> {
        self.changed_on(idle, hvas, to, None);
        self.debt(idle)
    }

    /// The same as part of what it owes, on this seat, or on any.
    pub(super) fn changed_on(
        &mut self,
        idle: &mut Idle,
        hvas: Span<Hva>,
        to: Option<HostPage>,
        seat: Option<&Seat>,
    ) {
        let Self { begun, owed } = self;
        let Range::Hvas(published) = begun.range else { return };
        if begun.why.page_by_page() {
            begun.ticket.owes_again();
            for space in &begun.vm.spaces {
                let mut walk = begun.walk::<Exclusive>(space, idle, seat);
                along(&mut walk, published.clamp(&hvas), |steps, part| {
                    let now = to.and_then(|page| PageBehind::part(part, hvas, page));
                    begun.edit_along(steps, part.gfns, Known { now: now.as_ref(), emptied: false }, owed)
                });
            }
        }
    }

    /// [`apply`](Self::apply) on this seat, or on any.
    pub(super) fn apply_on<'i>(&'i mut self, idle: &'i mut Idle, seat: Option<&Seat>) -> FlushDebt<'i> {
        if !self.begun.why.page_by_page() {
            self.begun.edit(idle, None, seat, &mut self.owed);
        }
        self.debt(idle)
    }

    /// The same for a reason that is not decided page by page, to be paid with what else it will owe.
    pub(super) fn apply_unpaid(&mut self, idle: &mut Idle) {
        self.begun.edit(idle, None, None, &mut self.owed);
    }

    /// Rule 7 without an edit: owes the flush of `hvas`, if another invalidation over them has not flushed yet.
    ///
    /// That one keeps every fault on the frames behind `hvas` waiting until it has flushed, so their translations in TLBs
    /// are from before it. Frames that no memslot maps any more have been flushed by the transaction that took the memslot away.
    pub(super) fn adopt_on(&mut self, idle: &mut Idle, hvas: Span<Hva>, seat: Option<&Seat>) {
        let Self { begun, owed } = self;
        if !begun.ticket.unflushed_behind(hvas) {
            return;
        }
        for space in &begun.vm.spaces {
            let mut walk = begun.walk::<Shared>(space, idle, seat);
            along(&mut walk, hvas, |_, part| {
                owed.owe(part.gfns);
                part.gfns.end
            });
        }
    }

    /// Edits these ranges instead, which lie in what was published, under this invalidation's number.
    pub(crate) fn apply_to<'i>(&'i mut self, idle: &'i mut Idle, parts: &[Span<Gfn>]) -> FlushDebt<'i> {
        self.begun.edit(idle, Some(parts), None, &mut self.owed);
        self.debt(idle)
    }

    /// Its number.
    pub(crate) fn version(&self) -> Version {
        self.begun.ticket.version()
    }

    /// What it leaves behind where nothing is mapped any more.
    pub(super) fn hole(&self) -> Word {
        self.begun.hole()
    }

    /// What it owes so far, for edits that its owner makes under its number.
    pub(crate) fn owed(&mut self) -> &mut Owed {
        &mut self.owed
    }

    /// What it owes so far, to be paid.
    pub(crate) fn debt<'i>(&'i mut self, _idle: &'i mut Idle) -> FlushDebt<'i> {
        self.open_debt()
    }

    /// As [`confirm`](crate::notify::active::Active::confirm): nobody else is active over any of it, and W still stands.
    pub(crate) fn confirm_alone(&self, stamp: Stamp, gfns: Span<Gfn>, hvas: Span<Hva>) -> bool {
        self.begun.ticket.confirm_alone(stamp, gfns, hvas)
    }

    fn open_debt(&mut self) -> FlushDebt<'_> {
        let Begun { vm, why, ref ticket, .. } = self.begun;
        FlushDebt::of(vm, &mut self.owed, why, ticket)
    }
}

/// The end. It pays what is still owed: where a debt was leaked, where the owner unwinds, or where its edits are paid
/// together here. A grace period is not waited for, since the thread may be in a walk.
impl<F: Format, H: Host> Drop for Invalidation<'_, F, H> {
    fn drop(&mut self) {
        if !self.owed.is_nothing() && !seeded!(LeakedUnpaid) {
            self.open_debt().without_grace().settle();
        }
    }
}

impl<F: Format, H: Host> Begun<'_, F, H> {
    fn hole(&self) -> Word {
        Word::hole(self.ticket.version())
    }

    fn walk<'g, M: Mode>(
        &'g self,
        space: &'g Space<F>,
        idle: &'g mut Idle,
        seat: Option<&'g Seat>,
    ) -> Walk<'g, F, H, M> {
        match seat {
            Some(seat) => Walk::on_seat(self.vm, space, idle, seat),
            None => Walk::on_any_seat(self.vm, space, idle),
        }
    }

    /// Edits these ranges, or all that was published.
    fn edit(&self, idle: &mut Idle, parts: Option<&[Span<Gfn>]>, seat: Option<&Seat>, owed: &mut Owed) {
        for space in &self.vm.spaces {
            if matches!(self.range, Range::Gfns(only, _) if only != space.id) {
                continue;
            }
            let mut walk = self.walk::<Exclusive>(space, idle, seat);
            self.edit_in(&mut walk, parts, owed);
        }
    }

    fn edit_in<M: Edits>(&self, walk: &mut Walk<'_, F, H, M>, parts: Option<&[Span<Gfn>]>, owed: &mut Owed) {
        let mut known = Known::default();
        loop {
            match (parts, self.range) {
                (Some(parts), _) => parts.iter().for_each(|&gfns| self.edit_frames(walk, gfns, known, owed)),
                (None, Range::Gfns(_, gfns)) => self.edit_frames(walk, gfns, known, owed),
                (None, Range::Hvas(hvas)) => {
                    along(walk, hvas, |steps, part| self.edit_along(steps, part.gfns, known, owed));
                }
            }
            if known.emptied || !self.why.frees_tables() || !walk.keeps_tables() {
                return;
            }
            // Once more, for the tables that were passed through.
            known.emptied = true;
        }
    }

    fn edit_frames<M: Edits>(
        &self,
        walk: &mut Walk<'_, F, H, M>,
        gfns: Span<Gfn>,
        known: Known<'_>,
        owed: &mut Owed,
    ) {
        self.edit_along(walk.steps(gfns, Level::K4), gfns, known, owed);
    }

    /// Edits along `steps` over `gfns`; returns where they ended.
    fn edit_along<M: Edits>(
        &self,
        mut steps: Steps<'_, '_, F, H, M>,
        gfns: Span<Gfn>,
        known: Known<'_>,
        owed: &mut Owed,
    ) -> Gfn {
        while let Some((walk, step)) = steps.next() {
            let (at, covers) = (step.at, step.gfns);
            let mut word = at.word;
            let whole = gfns.covers(&covers) || seeded!(WholeByStart) && gfns.contains(covers.start);
            let now = known.now.and_then(|page| page.of(covers.start));
            while let Some(new) = self.edit_entry((word, at.level), (covers, whole), now, owed) {
                if F::is_table(word, at.level) && !known.emptied && walk.keeps_tables() {
                    break;
                }
                if !seeded!(KeptTooLate) {
                    walk.keep_dirty((word, new), at.level, covers.start);
                }
                if seeded!(ReplaceThroughHole) && !new.is_hole() && at.entry.cas(word, self.hole()).is_ok() {
                    word = self.hole();
                }
                match at.entry.cas(word, new) {
                    Ok(()) => {
                        if seeded!(KeptTooLate) {
                            walk.keep_dirty((word, new), at.level, covers.start);
                        }
                        book(walk, (word, new), at.level, covers, owed);
                        break;
                    }
                    Err(found) => word = found,
                }
            }
            steps.saw(word);
            let (walk, ahead) = steps.ahead();
            let row = self.edit_row(walk, ahead, owed);
            steps.advance(row);
        }
        steps.goal()
    }

    /// Rule 6 for a row of 4K entries, the first of them for `first`: plain holes, which most entries of a sparse guest
    /// are, and leaves that go whatever they say; a load and a CAS each. Stops at the first that is anything else, and
    /// returns how many it has done.
    fn edit_row<M: Edits>(
        &self,
        walk: &Walk<'_, F, H, M>,
        (entries, first): (&[Entry], Gfn),
        owed: &mut Owed,
    ) -> u64 {
        let (mine, zaps) = (self.hole(), zaps(self.why));
        let (mut removed, mut from, mut to) = (0, 0, 0);
        let mut done = 0;
        for entry in entries {
            let word = entry.load();
            if word.is_hole() {
                if self.ticket.unflushed(word.version()) || (word < mine && entry.cas(word, mine).is_err()) {
                    break;
                }
            } else if zaps && F::is_present(word) {
                walk.keep_dirty((word, mine), Level::K4, first + done);
                if entry.cas(word, mine).is_err() {
                    break;
                }
                from = if removed == 0 { done } else { from };
                to = done + u64::from(!seeded!(FlushShort));
                removed += 1;
            } else {
                break;
            }
            done += 1;
        }
        if removed > 0 {
            owed.owe_pages(Span::new(first + from, first + to), removed);
            walk.seat.tally.add_many(Count::Removed4K, removed);
        }
        done
    }

    /// Rule 6, for one entry as it was read: what to make it, if anything.
    fn edit_entry(
        &self,
        (word, level): (Word, Level),
        (covers, whole): (Span<Gfn>, bool),
        now: Option<HostPage>,
        owed: &mut Owed,
    ) -> Option<Word> {
        let kind = word.kind::<F>(level);
        if !whole && matches!(kind, Kind::Leaf | Kind::Tracked | Kind::Frozen(_)) {
            // A large leaf that reaches out of the range goes whole, under a number that covers all of it.
            if !seeded!(LargeNotWidened) {
                self.ticket.widen(covers);
            }
            return Some(self.hole());
        }
        let hole = self.hole();
        match kind {
            Kind::Table(_) => (whole && self.why.frees_tables()).then_some(hole),
            // A tracked leaf was in TLBs before, and whoever withdrew it need not have flushed: it owes what a present
            // one does.
            Kind::Leaf | Kind::Tracked => match plan(self.why, &F::decode(word), level, now) {
                Edit::Zap => Some(hole),
                Edit::DropWrite => Some(F::write_withdrawn(word)),
                Edit::Replace(pfn) => {
                    let old = F::decode(word);
                    let perms = old.perms.without(Perms::WRITE);
                    let new = Leaf { pfn, perms, host_writable: false, dirty: false, ..old };
                    Some(if word.is_tracked() { Word::tracked(&new) } else { F::leaf(&new, level) })
                }
                Edit::Nothing => {
                    // Rule 7: left alone, but another's flush over it may still be due.
                    if self.ticket.unflushed_over(covers) {
                        owed.owe(covers);
                    }
                    None
                }
            },
            Kind::Hole(version) | Kind::Mmio(version) => {
                // Rule 7: who emptied this has not flushed yet: stale copies may exist on its account.
                if self.ticket.unflushed(version) {
                    owed.owe(covers);
                }
                let numbered = seeded!(UpperHoleUnnumbered) && level > Level::K4;
                (version < self.ticket.version() && !numbered).then_some(hole)
            }
            Kind::Frozen(_) => Some(hole),
        }
    }
}

/// Books what an edit changed: one function of the old word and the new, whoever made the change.
fn book<F: Format, H: Host, M: Edits>(
    walk: &Walk<'_, F, H, M>,
    (old, new): (Word, Word),
    level: Level,
    covers: Span<Gfn>,
    owed: &mut Owed,
) {
    match old.kind::<F>(level) {
        Kind::Table(pfn) => {
            if !seeded!(UnhookOwesNothing) {
                owed.owe(covers);
            }
            // Rule 9, with a difference: what hangs there is not overwritten (`table/retire.rs` says why).
            // SAFETY: linked until this walk unhooked it just now, in its section.
            let top = unsafe { Node::follow(&walk.vm.host, pfn) };
            owed.unlink(top, level.down());
        }
        // The table that hung there is given back by whoever froze the link (`huge/recover.rs`).
        Kind::Frozen(mark) if Word::was_link(mark) => owed.owe(covers),
        kind @ (Kind::Leaf | Kind::Tracked | Kind::Frozen(_)) => {
            let forgets = !new.is_hole() && seeded!(ProtectOwesNothing);
            if !forgets && (!seeded!(FrozenUnflushed) || !matches!(kind, Kind::Frozen(_))) {
                owed.owe(covers);
            }
            if new.is_hole() && !(seeded!(TrackedUncounted) && old.is_tracked()) {
                walk.seat.tally.add(Count::removed(level));
            }
        }
        Kind::Hole(_) | Kind::Mmio(_) => {}
    }
}
