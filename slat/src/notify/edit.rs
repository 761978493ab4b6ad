//! Edits of the entries in an invalidation's range: rules 6, 7, 9, 11 and 14 of [`crate::notify`].
//!
//! The plan ([`super::plan`]) decides the edit of each entry. A compare-and-swap from the word that was read makes it.
//! Then the edit is booked: the flush that it owes, the tables that it unhooked, the leaves that it removed.

use super::begun::{Begun, Range};
use super::host_range::{PageBehind, walk_behind};
use super::plan::{Edit, plan, plan_part, zaps};
use crate::addr::{Gfn, Level, Span};
use crate::host::{Host, HostPage};
use crate::sync::idle::Idle;
use crate::sync::mode::{Edits, Exclusive};
use crate::sync::readside::Seat;
use crate::sync::tally::Count;
use crate::table::entry::{Entry, Word};
use crate::table::format::{Format, Kind, Leaf, Perms};
use crate::table::memory::Node;
use crate::table::radix::At;
use crate::tlb::debt::Owed;
use crate::trace::TraceEvent;
use crate::walk::{Steps, Walk};
use crate::why::Cause;

/// What is known of the pages in a range that is edited.
#[derive(Clone, Copy, Default)]
pub(super) struct Known<'a> {
    /// The host's page behind the frames, if the host told it.
    now: Option<&'a PageBehind>,
    /// Whether no leaf is left in any table of the range.
    emptied: bool,
    pass: Pass,
    /// Whether a leaf to be split stays if no table page is spare. The caller then asks for pages and edits again.
    defers: bool,
}

/// The passes of an invalidation over its range.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Pass {
    #[default]
    First,
    /// A second pass under the same number. Tables found now were linked after the first pass, and stay.
    Again,
    /// A second pass under a new number.
    Renumbered,
}

/// The change that an edit makes to an entry.
enum Change {
    Nothing,
    To(Word),
    /// Replaces a large leaf by a table of smaller leaves.
    Split,
}

impl Known<'_> {
    /// Adds the page that the host told, if it told one.
    pub(super) fn with<'p>(&self, now: Option<&'p PageBehind>) -> Known<'p> {
        Known { now, ..*self }
    }

    /// Returns the host's page of `gfn`, if the host told it.
    fn of(&self, gfn: Gfn) -> Option<HostPage> {
        self.now.and_then(|page| page.of(gfn))
    }

    /// Returns the host's page of the first of `gfns`, if one told page is behind all of them.
    fn of_all(&self, gfns: Span<Gfn>) -> Option<HostPage> {
        self.of(Gfn(gfns.end.0 - 1)).and(self.of(gfns.start))
    }
}

impl<F: Format, H: Host> Begun<'_, F, H> {
    /// Edits `parts`, or all of the published range. May ask for table pages between passes, unless on a given seat.
    pub(super) fn edit(
        &self,
        idle: &mut Idle,
        parts: Option<&[Span<Gfn>]>,
        seat: Option<&Seat>,
        owed: &mut Owed,
    ) {
        let pass = |idle: &mut Idle, known: Known<'_>| self.edit_knowing(known, idle, parts, seat, owed);
        self.in_passes(idle, seat.is_none(), pass, |idle| self.fill_reserve(idle));
    }

    /// Makes passes over the range until none is due. One is due while large leaves are left for want of a table page;
    /// they are split only if `refill` finds some. One is due, under a new number, if a newer invalidation may have
    /// passed by what a pass took away ([`Ticket::must_repeat`]). Every edit of a narrow invalidation is made in here.
    #[inline(always)]
    pub(super) fn in_passes(
        &self,
        idle: &mut Idle,
        defers: bool,
        mut pass: impl FnMut(&mut Idle, Known<'_>),
        refill: impl Fn(&mut Idle) -> bool,
    ) {
        let mut known = Known { defers, ..Known::default() };
        loop {
            pass(idle, known);
            known = if known.defers && self.reserve.was_short() {
                Known { pass: Pass::Again, defers: refill(idle), ..Known::default() }
            } else if self.ticket.must_repeat(known.pass == Pass::Renumbered) {
                Known { pass: Pass::Renumbered, ..Known::default() }
            } else {
                return;
            };
        }
    }

    fn edit_knowing(
        &self,
        known: Known<'_>,
        idle: &mut Idle,
        parts: Option<&[Span<Gfn>]>,
        seat: Option<&Seat>,
        owed: &mut Owed,
    ) {
        for space in &self.vm.spaces {
            if matches!(self.range, Range::Gfns(only, _) if only != space.id) {
                continue;
            }
            let mut walk = self.walk::<Exclusive>(space, idle, seat);
            self.edit_in(&mut walk, known, parts, owed);
        }
    }

    fn edit_in<M: Edits>(
        &self,
        walk: &mut Walk<'_, F, H, M>,
        mut known: Known<'_>,
        parts: Option<&[Span<Gfn>]>,
        owed: &mut Owed,
    ) {
        loop {
            match (parts, self.range) {
                (Some(parts), _) => parts.iter().for_each(|&gfns| self.edit_frames(walk, gfns, known, owed)),
                (None, Range::Gfns(_, gfns)) => self.edit_frames(walk, gfns, known, owed),
                (None, Range::Hvas(hvas)) => {
                    walk_behind(walk, hvas, |steps, part| self.edit_along(steps, part.gfns, known, owed));
                }
            }
            if known.emptied || known.pass != Pass::First || !self.why.frees_tables() || !walk.keeps_tables()
            {
                return;
            }
            // Once more, for the tables whose leaves the first pass edited.
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
        self.edit_along(&mut walk.steps(gfns, Level::K4), gfns, known, owed);
    }

    /// Edits along `steps` over `gfns`; returns where the steps ended.
    pub(super) fn edit_along<M: Edits>(
        &self,
        steps: &mut Steps<'_, '_, F, H, M>,
        gfns: Span<Gfn>,
        known: Known<'_>,
        owed: &mut Owed,
    ) -> Gfn {
        while let Some((walk, step)) = steps.next() {
            let (at, covers) = (step.at, step.gfns);
            let mut word = at.word;
            let part = gfns.clamp(&covers);
            loop {
                let new = match self.edit_entry((word, at.level), (covers, part), known, owed) {
                    Change::Nothing => break,
                    Change::To(new) => new,
                    Change::Split => match self.reserve.take() {
                        Some(page) => match walk.split_for_part(page, At { word, ..at }, covers.start) {
                            Ok(link) => {
                                word = link;
                                break;
                            }
                            Err((page, found)) => {
                                self.reserve.with(|pages| pages.put_back(page));
                                word = found;
                                continue;
                            }
                        },
                        None if known.defers => break,
                        None => self.zap_beyond(covers),
                    },
                };
                if F::is_table(word, at.level) && !known.emptied && walk.keeps_tables() {
                    break;
                }
                walk.keep_dirty((word, new), at.level, covers.start);
                match at.entry.cas(word, new) {
                    Ok(()) => {
                        self.book(walk, (word, new), at.level, covers, owed);
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

    /// Rule 6 for a row of 4 KiB entries, the first of which maps `first`. Handles plain holes, which most entries of a
    /// sparse guest are, and leaves that the reason zaps in any case: a load and a CAS each. Stops at the first other
    /// entry, and returns the number of entries done.
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
                to = done + 1;
                removed += 1;
            } else {
                break;
            }
            done += 1;
        }
        if removed > 0 {
            self.ticket.takes();
            owed.owe_pages(Span::new(first + from, first + to), removed);
            walk.seat.tally.add_many(Count::Removed4K, removed);
            self.zapped(walk, Span::new(first + from, first + to), Level::K4, removed);
        }
        done
    }

    /// Returns the hole for a leaf that reaches out of the range, after widening the invalidation to all of `covers`.
    fn zap_beyond(&self, covers: Span<Gfn>) -> Word {
        self.ticket.widen(covers);
        self.hole()
    }

    /// Rule 6 for one entry as read: decides its change. The entry maps `covers`, of which `part` is in the range.
    fn edit_entry(
        &self,
        (word, level): (Word, Level),
        (covers, part): (Span<Gfn>, Span<Gfn>),
        known: Known<'_>,
        owed: &mut Owed,
    ) -> Change {
        let whole = part == covers;
        let hole = self.hole();
        match word.kind::<F>(level) {
            Kind::Table(_) if whole && self.why.frees_tables() && known.pass == Pass::First => {
                Change::To(hole)
            }
            Kind::Table(_) => Change::Nothing,
            // A tracked leaf was in TLBs before, and the pass that withdrew it may not have flushed: a flush is owed.
            Kind::Leaf | Kind::Tracked => {
                let old = F::decode(word);
                let edit = if whole {
                    plan(self.why, &old, level, known.of(covers.start))
                } else {
                    let ahead = part.start.0 - covers.start.0;
                    plan_part(self.why, &Leaf { pfn: old.pfn + ahead, ..old }, known.of_all(part))
                };
                match edit {
                    Edit::Zap => Change::To(hole),
                    Edit::Split => Change::Split,
                    Edit::DropWrite => Change::To(F::write_withdrawn(word)),
                    Edit::Replace(pfn) => {
                        let perms = old.perms.without(Perms::WRITE);
                        let new = Leaf { pfn, perms, host_writable: false, dirty: false, ..old };
                        let tracked = word.is_tracked();
                        Change::To(if tracked { Word::tracked(&new) } else { F::leaf(&new, level) })
                    }
                    Edit::Nothing => {
                        // Rule 7: the leaf stays, but another invalidation's flush over it may still be due.
                        if self.ticket.unflushed_over(part) {
                            owed.owe(part);
                        }
                        Change::Nothing
                    }
                }
            }
            Kind::Hole(version) | Kind::Mmio(version) => {
                // Rule 7: the invalidation that wrote this hole has not flushed yet; TLBs may hold stale copies.
                if self.ticket.unflushed(version) {
                    owed.owe(covers);
                    if part != covers {
                        // Invalidations of other regions will find this one's number there, and must find its debt.
                        self.ticket.go_wide();
                    }
                }
                if version < self.ticket.version() { Change::To(hole) } else { Change::Nothing }
            }
            Kind::Frozen(_) if whole => Change::To(hole),
            Kind::Frozen(_) => Change::To(self.zap_beyond(covers)),
        }
    }
}

impl<F: Format, H: Host> Begun<'_, F, H> {
    /// Books an edit: a function of the old word and the new one.
    fn book<M: Edits>(
        &self,
        walk: &Walk<'_, F, H, M>,
        (old, new): (Word, Word),
        level: Level,
        covers: Span<Gfn>,
        owed: &mut Owed,
    ) {
        let kind = old.kind::<F>(level);
        if new.is_hole() && !matches!(kind, Kind::Hole(_) | Kind::Mmio(_)) {
            self.ticket.takes();
        }
        match kind {
            Kind::Table(pfn) => {
                owed.owe(covers);
                // Rule 9, but the subtree is not overwritten (`table/retire.rs` says why).
                // SAFETY: the table was linked until this walk unhooked it just now, in its section.
                let top = unsafe { Node::follow(walk.vm.tables(), pfn) };
                owed.unlink(top, level.down());
            }
            // The recovery that froze the link gives the table back (`huge/recover.rs`).
            Kind::Frozen(mark) if Word::was_link(mark) => owed.owe(covers),
            Kind::Leaf | Kind::Tracked | Kind::Frozen(_) => {
                owed.owe(covers);
                if new.is_hole() {
                    walk.seat.tally.add(Count::removed(level));
                    self.zapped(walk, covers, level, 1);
                }
            }
            Kind::Hole(_) | Kind::Mmio(_) => {}
        }
    }

    /// Reports zapped leaves to the host's trace.
    fn zapped<M: Edits>(&self, walk: &Walk<'_, F, H, M>, gfns: Span<Gfn>, level: Level, leaves: u64) {
        let cause = Cause::Change(self.why);
        walk.vm.host.observe(TraceEvent::Zap { gfns, level, leaves, cause });
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
