//! Edits of the entries in an invalidation's range: rules 6, 7, 9, 11 and 14 of [`crate::notify`].
//!
//! The plan ([`super::plan`]) decides the edit of each entry. A compare-and-swap from the word that was read makes it.
//! Then the edit is booked: the flush that it owes, the tables that it unhooked, the leaves that it removed.

use super::begun::{Begun, Extent, Nth, Pass, Scope, walk};
use super::host_range::{PageBehind, walk_behind};
use super::plan::{Edit, plan, plan_part, zaps};
use crate::hooks::{Nested, NestedHooks};
use crate::oracle;
use crate::sync::{Count, Edits, Exclusive, Seat};
use crate::table::{At, Entry, Kind, Node};
use crate::trace::TraceEvent;
use crate::walk::Steps;
use crate::{Cause, Format, Gfn, Host, Idle, Leaf, Level, Perms, Span, Walk, Word};
use core::mem::take;

/// The word that an edit puts in place of an entry's.
enum New {
    Nothing,
    To(Word),
    /// Replaces a large leaf by a table of smaller leaves.
    Split,
}

impl<F: Format, H: Host> Begun<'_, F, H> {
    /// Edits the entries in `scope`, on the given seat or on any, withdraws held frames and reaches nested guests there,
    /// and adds the debt to what is owed. May ask for table pages between passes, unless on a given seat.
    ///
    /// Makes passes until none is due. One is due while large leaves are left for want of a table page; they are split
    /// only if the reserve then gets some. One is due, under a new number, if a newer invalidation may have passed by
    /// what a pass removed ([`Ticket::must_repeat`](crate::active::Ticket::must_repeat)). Every edit of a narrow
    /// invalidation is made in here.
    #[inline(never)]
    pub(crate) fn edit(&mut self, idle: &mut Idle, scope: &Scope<'_>, seat: Option<&Seat>) {
        let range = self.target.range;
        let extent = &range.part(scope);
        self.ticket.owes_again();
        self.withdraw_held(extent);
        self.pass = Pass { defers: seat.is_none(), ..Pass::default() };
        loop {
            Nested::reach(self, extent, self.pass.defers);
            self.edit_once(idle, extent, seat);
            self.pass = if take(&mut self.reserve.is_short) && self.pass.defers {
                // The host tells pages under a lock of its own.
                let asks = seat.is_none() && !matches!(scope, Scope::Told(..));
                Pass { nth: Nth::Again, defers: self.restock(asks), ..Pass::default() }
            } else if self.ticket.must_repeat(self.pass.nth == Nth::Renumbered) {
                Pass { nth: Nth::Renumbered, ..Pass::default() }
            } else {
                break;
            };
        }
        self.is_applied |= matches!(scope, Scope::Whole);
        oracle::edited(self, idle, scope, seat);
    }

    /// Makes one pass.
    #[inline(always)]
    fn edit_once(&mut self, idle: &mut Idle, extent: &Extent<'_>, seat: Option<&Seat>) {
        let vm = self.target.vm.get();
        for space in &vm.spaces {
            if matches!(extent, Extent::Gfns(only, _) if *only != space.id) {
                continue;
            }
            let mut walk = walk::<F, H, Exclusive>(vm, space, idle, seat);
            loop {
                self.edit_in(&mut walk, extent);
                let frees = self.pass.nth == Nth::First && self.target.why.frees_tables();
                // Once more, for the tables whose leaves the first round edited.
                self.pass.emptied = !self.pass.emptied && frees && walk.keeps_tables();
                if !self.pass.emptied {
                    break;
                }
            }
        }
    }

    #[inline(always)]
    fn edit_in<M: Edits>(&mut self, walk: &mut Walk<'_, F, H, M>, extent: &Extent<'_>) {
        match extent {
            Extent::Gfns(_, parts) => {
                for &gfns in *parts {
                    self.edit_along(&mut walk.steps(gfns, Level::K4), gfns, None);
                }
            }
            Extent::Hvas(hvas, to) => walk_behind(walk, *hvas, |steps, part| {
                let now = to.as_ref().and_then(|(hva, page)| PageBehind::part(part, *hva, *page));
                self.edit_along(steps, part.gfns, now.as_ref())
            }),
        }
    }

    /// Edits along `steps` over `gfns`; returns where the steps ended. `now` is the host's page behind the frames, if the
    /// host told it.
    fn edit_along<M: Edits>(
        &mut self,
        steps: &mut Steps<'_, '_, F, H, M>,
        gfns: Span<Gfn>,
        now: Option<&PageBehind>,
    ) -> Gfn {
        while let Some((walk, step)) = steps.next() {
            let (at, covers) = (step.at, step.gfns);
            let mut word = at.word;
            let part = gfns.clamp(&covers);
            loop {
                let new = match self.edit_entry((word, at.level), (covers, part), now) {
                    New::Nothing => break,
                    New::To(new) => new,
                    New::Split => match self.reserve.take() {
                        Some(page) => match walk.split_for_part(page, At { word, ..at }, covers.start) {
                            Ok(link) => {
                                word = link;
                                break;
                            }
                            Err((page, found)) => {
                                self.reserve.pages.put_back(page);
                                word = found;
                                continue;
                            }
                        },
                        None if self.pass.defers => break,
                        None => self.zap_beyond(covers),
                    },
                };
                if F::is_table(word, at.level) && !self.pass.emptied && walk.keeps_tables() {
                    break;
                }
                walk.keep_dirty((word, new), at.level, covers.start);
                match at.entry.cas(word, new) {
                    Ok(()) => {
                        self.book(walk, (word, new), at.level, covers);
                        break;
                    }
                    Err(found) => word = found,
                }
            }
            steps.saw(word);
            let (walk, ahead) = steps.ahead();
            let row = self.edit_row(walk, ahead);
            steps.advance(row);
        }
        steps.goal()
    }

    /// Rule 6 for a row of 4 KiB entries, the first of which maps `first`. Handles plain holes, which most entries of a
    /// sparse guest are, and leaves that the reason zaps in any case: a load and a CAS each. Stops at the first other
    /// entry, and returns the number of entries done.
    fn edit_row<M: Edits>(&mut self, walk: &Walk<'_, F, H, M>, (entries, first): (&[Entry], Gfn)) -> u64 {
        let (mine, zaps) = (self.ticket.hole(), zaps(self.target.why));
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
            self.ticket.removes();
            self.owed.owe_pages(Span::new(first + from, first + to), removed);
            walk.seat.tally.add_many(Count::Removed4K, removed);
            self.zapped(walk, Span::new(first + from, first + to), Level::K4, removed);
        }
        done
    }

    /// Returns the hole for a leaf that reaches out of the range, after widening the invalidation to all of `covers`.
    fn zap_beyond(&mut self, covers: Span<Gfn>) -> Word {
        self.ticket.widen(covers);
        self.ticket.hole()
    }

    /// Rule 6 for one entry as read: decides its change. The entry maps `covers`, of which `part` is in the range.
    fn edit_entry(
        &mut self,
        (word, level): (Word, Level),
        (covers, part): (Span<Gfn>, Span<Gfn>),
        now: Option<&PageBehind>,
    ) -> New {
        let why = self.target.why;
        let whole = part == covers;
        let hole = self.ticket.hole();
        match word.kind::<F>(level) {
            Kind::Table(_) if whole && why.frees_tables() && self.pass.nth == Nth::First => New::To(hole),
            Kind::Table(_) => New::Nothing,
            // A withdrawn leaf was in TLBs before, and the pass that withdrew it may not have flushed: a flush is owed.
            Kind::Leaf | Kind::Withdrawn => {
                let old = F::decode(word);
                let edit = if whole {
                    plan(why, &old, level, now.and_then(|page| page.of(covers.start)))
                } else {
                    let ahead = part.start.0 - covers.start.0;
                    plan_part(
                        why,
                        &Leaf { pfn: old.pfn + ahead, ..old },
                        now.and_then(|page| page.of_all(part)),
                    )
                };
                match edit {
                    Edit::Zap => New::To(hole),
                    Edit::Split => New::Split,
                    Edit::DropWrite => New::To(F::write_withdrawn(word)),
                    Edit::Replace(pfn) => {
                        let perms = old.perms.without(Perms::WRITE);
                        let new = Leaf { pfn, perms, host_writable: false, dirty: false, ..old };
                        let withdrawn = word.is_withdrawn();
                        New::To(if withdrawn { Word::withdrawn(&new) } else { F::leaf(&new, level) })
                    }
                    Edit::Nothing => {
                        // Rule 7: the leaf stays, but another invalidation's flush over it may still be due.
                        if self.ticket.unflushed_over(part) {
                            self.owed.owe(part);
                        }
                        New::Nothing
                    }
                }
            }
            Kind::Hole(version) | Kind::Mmio(version) => {
                // Rule 7: the invalidation that wrote this hole has not flushed yet; TLBs may hold stale copies.
                if self.ticket.unflushed(version) {
                    self.owed.owe(covers);
                    if part != covers {
                        // Invalidations of other regions will find this one's number there, and must find its debt.
                        self.ticket.go_wide();
                    }
                }
                // Its number may be a new one by now.
                if version < self.ticket.version() { New::To(self.ticket.hole()) } else { New::Nothing }
            }
            Kind::Frozen(_) if whole => New::To(hole),
            Kind::Frozen(_) => New::To(self.zap_beyond(covers)),
        }
    }

    /// Books an edit: a function of the old word and the new one.
    fn book<M: Edits>(
        &mut self,
        walk: &Walk<'_, F, H, M>,
        (old, new): (Word, Word),
        level: Level,
        covers: Span<Gfn>,
    ) {
        let kind = old.kind::<F>(level);
        if new.is_hole() && !matches!(kind, Kind::Hole(_) | Kind::Mmio(_)) {
            self.ticket.removes();
        }
        match kind {
            Kind::Table(pfn) => {
                // Rule 9: a fault that stands in a dead table of links finds that the epoch has moved.
                debug_assert!(
                    level <= Level::M2 || self.ticket.is_wide(),
                    "unhooked by a narrow invalidation"
                );
                self.owed.owe(covers);
                // Rule 9, but the subtree is not overwritten (`table/retire.rs` says why).
                // SAFETY: the table was linked until this walk unhooked it just now, in its section.
                let top = unsafe { Node::follow(walk.vm.tables(), pfn) };
                self.owed.unlink(top, level.down());
            }
            // The recovery that froze the link gives the table back (`huge/recover.rs`).
            Kind::Frozen(mark) if Word::was_link(mark) => self.owed.owe(covers),
            Kind::Leaf | Kind::Withdrawn | Kind::Frozen(_) => {
                self.owed.owe(covers);
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
        let cause = Cause::Change(self.target.why);
        walk.vm.host.observe(TraceEvent::Zap { gfns, level, leaves, cause });
    }
}

#[cfg(all(test, feature = "std", not(shuttle)))]
mod loom_tests;
