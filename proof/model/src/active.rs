//! The active set and its words: how an invalidation begins, widens and ends, and what a fault checks. Models
//! `active`.
//!
//! ```text
//! narrow, by host address               wide, by guest frame
//! place                                 place
//! listed in each region                 listed on the epoch
//! number K from N                       number K from N; the epoch's word changes
//! each region's word: not below K       walk, flush, host changes
//! walk                                  the epoch's word changes
//! took something, and a region's        unlisted, place cleared
//!   word is above K? a new number,
//!   and the walk once more; after
//!   that: listed on the epoch, too
//! flush, host changes
//! unlisted, place cleared
//!
//! a fault: e := epoch; the slot; V := the region's word, not below the hole that it has met; the places listed in the
//! region; the places listed on the epoch; the epoch's word is e still
//! ```
//! An invalidation is listed before it is numbered: a thread that knows a number finds all listed that have an older one.
//!
//! # Steps that are one here and several in the engine
//! * *The invalidation lists its place on the last line, and takes its number*: a fault in between sees the place, and
//!   waits more often.
//! * *A wide invalidation is listed on the epoch, takes its number, and changes the epoch's word*: it does nothing in
//!   between.
//! * *The end unlists the place, counts down and clears it*: the host has already changed. A fault in between waits
//!   more often.
//! * *A fresh number moves the epoch when a wide one ends*: the same.
//! * *A fault reads the epoch and the slot; it checks the last place, and the epoch again*: if the second read of the
//!   epoch returns the same value, the epoch had that value at each moment between.
//! * *A short invalidation elsewhere in the region begins and ends*: a fault in between checks its place in vain.
//! * *A recovery checks all places*: each invalidation that begins after the freeze meets the frozen entry.

use crate::bug::Bug;
use crate::scenario::Scenario;
use crate::state::{
    Change, EPOCH, Fault, LOGGED, Memo, NONE, Op, PAGES, Pc, Range, Shared, Slot, Span, State, THREADS,
    Thread, Track, WIDE, Walk, Why, Word, bits, region,
};

/// Result of a step of the check of the active set.
pub(crate) enum Look {
    /// The check is not finished.
    Unfinished,
    /// An invalidation covers the page.
    Covered,
    /// A wide invalidation has begun or ended.
    Moved,
    /// The slot is current, and the stamp is valid.
    Confirmed,
}

/// Debts of other invalidations.
impl State {
    /// Returns the other invalidations that have not flushed. N says whether there are any. A narrow invalidation
    /// checks only its own lines and the epoch.
    fn unpaid(&self, i: usize) -> impl Iterator<Item = &Slot> {
        let Shared { numbers, slots, lines, .. } = &self.shared;
        let others = numbers.count > u8::from(slots[i].active);
        let looks = if slots[i].active && slots[i].lines & WIDE == 0 { slots[i].lines | WIDE } else { !0 };
        let looked_at = (0..).zip(lines).filter(move |(line, _)| looks & 1 << line != 0);
        let found = looked_at.fold(0, |set, (_, line)| set | line.listed);
        let places = (0..THREADS).filter(move |&j| j != i && found & 1 << j != 0).map(|j| &slots[j]);
        places.filter(move |slot| others && slot.active && slot.unflushed)
    }

    /// `Ticket::unflushed`.
    pub(crate) fn unflushed(&self, i: usize, version: u8) -> bool {
        self.unpaid(i).any(|slot| (slot.first..=slot.last).contains(&version))
    }

    /// `Ticket::unflushed_behind`.
    pub(crate) fn unflushed_behind(&self, i: usize, hvas: Span) -> bool {
        self.unpaid(i).any(|slot| slot.hvas.overlaps(hvas))
    }

    /// `Ticket::unflushed_over`.
    pub(crate) fn unflushed_over(&self, i: usize, gfns: Span) -> bool {
        self.unpaid(i).any(|slot| !slot.hvas.is_empty() || slot.gfns.overlaps(gfns))
    }

    /// Rule 7 for an unchanged leaf: adopts another invalidation's flush over `gfns` that may still be due.
    pub(crate) fn adopt(&mut self, i: usize, gfns: Span) {
        if self.unflushed_over(i, gfns) {
            self.threads[i].owe(gfns);
        }
    }

    /// Replaces the numbers in use by small ones in the same order, so that states that differ only in numbers are one
    /// state.
    pub(crate) fn renumber(&mut self) {
        let mut used = 1_u128;
        self.each_number(&mut |number| used |= 1 << *number);
        self.each_number(&mut |number| *number = (used & ((1 << *number) - 1)).count_ones() as u8);
    }

    fn each_number(&mut self, f: &mut impl FnMut(&mut u8)) {
        let Shared { numbers, lines, slots, nodes, published, .. } = &mut self.shared;
        f(&mut numbers.newest);
        f(published);
        for line in lines {
            f(&mut line.newest);
        }
        for slot in slots {
            f(&mut slot.first);
            f(&mut slot.last);
        }
        let words = nodes.iter_mut().flat_map(|node| &mut node.entries);
        words.filter_map(Word::number).for_each(&mut *f);
        for thread in &mut self.threads {
            let Thread {
                walk: Walk { word, thawed, .. },
                fault: Fault { epoch, region, stamp, met, offered, memo, .. },
                change: Change { number, .. },
                ..
            } = thread;
            [epoch, region, stamp, met, number].into_iter().for_each(&mut *f);
            [Some(word), thawed.as_mut()].into_iter().flatten().filter_map(Word::number).for_each(&mut *f);
            offered.iter_mut().flatten().for_each(&mut *f);
            memo.iter_mut().flat_map(Memo::numbers).for_each(&mut *f);
        }
    }

    pub(crate) fn next_number(&mut self) -> u8 {
        self.shared.numbers.newest += 1;
        self.shared.numbers.newest
    }
}

/// Begin and end of an invalidation.
impl Scenario {
    /// Returns the ranges that operation `op` publishes.
    fn published(&self, op: Op) -> (Span, Span) {
        match op {
            Op::Invalidate { why: Why::ChangePte, .. } if self.bug == Some(Bug::ToldUnannounced) => {
                (Span::default(), Span::default())
            }
            Op::Invalidate { range: Range::Gfns(gfns), .. } | Op::Commit { gfns, .. } => {
                (gfns, Span::default())
            }
            Op::Invalidate { range: Range::Hvas(hvas), .. } => (Span::default(), hvas),
            Op::Recover { gfn } => (Shared::extent(1, gfn), Span::default()),
            Op::BeginLog => (LOGGED, Span::default()),
            _ => (Span::new(0, PAGES), Span::default()),
        }
    }

    /// Returns the lines on which it is announced. No narrow invalidation covers the range of a table of links.
    fn lines(deep: bool, gfns: Span, hvas: Span) -> u8 {
        let regions = bits(3).filter(|&region| Shared::extent(1, region * 2).overlaps(hvas));
        match regions.fold(0, |set, region| set | 1 << region) {
            3 if deep => WIDE,
            0 if !gfns.is_empty() => WIDE,
            lines => lines,
        }
    }

    /// `Active::begin`, `Ticket::widen`, `Ticket::renumber`, `Ticket::go_wide`.
    pub(crate) fn begin(&self, s: &mut State, i: usize, op: Op) {
        match s.threads[i].pc {
            Pc::BeginSlot => {
                if let Op::Invalidate { range: Range::Gfns(gfns), why: Why::Track, .. } = op {
                    s.shared.watched |= (gfns.start..gfns.end).fold(0, |set, gfn| set | 1 << gfn);
                }
                let (gfns, hvas) = self.published(op);
                let lines = Self::lines(s.shared.deep, gfns, hvas);
                let active = self.bug != Some(Bug::ListedBeforePlace);
                // It has no number yet.
                s.shared.slots[i] = Slot { active, unflushed: true, first: 1, last: 0, gfns, hvas, lines };
                s.threads[i].change.lines = lines;
                if lines == 0 || self.bug == Some(Bug::NumberedBeforeListed) {
                    self.take_number(s, i, op);
                } else {
                    s.threads[i].pc = Pc::List;
                }
            }
            Pc::List => {
                let at = s.threads[i].change.lines.trailing_zeros();
                s.shared.lines[at as usize].listed |= 1 << i;
                s.threads[i].change.lines &= !(1 << at);
                if self.bug == Some(Bug::SecondLineForgotten) {
                    s.threads[i].change.lines = 0;
                }
                if s.threads[i].change.lines == 0 {
                    self.take_number(s, i, op);
                }
            }
            Pc::Announce => self.announce(s, i, op),
            Pc::ListLate => {
                for line in bits(s.shared.slots[i].lines) {
                    s.shared.lines[line as usize].listed |= 1 << i;
                }
                s.shared.slots[i].active = true;
                self.begun(s, i, op);
            }
            Pc::WidenSlot => {
                let gfns = Shared::extent(s.threads[i].walk.level, s.threads[i].gfn);
                s.shared.slots[i].gfns = s.shared.slots[i].gfns.hull(gfns);
                s.threads[i].pc = match self.bug {
                    Some(Bug::WidenWithoutNumber) => Pc::EditEntry,
                    Some(Bug::WidenedNarrowly) => Pc::NextNumber,
                    _ => Pc::GoWide,
                };
            }
            Pc::NextNumber => {
                let number = s.next_number();
                (s.shared.slots[i].last, s.threads[i].change.number) = (number, number);
                s.threads[i].change.lines = s.shared.slots[i].lines & !WIDE;
                s.threads[i].pc = Pc::Announce;
                if s.threads[i].change.lines == 0 {
                    self.begun(s, i, op);
                }
            }
            Pc::GoWide => {
                let number = s.next_number();
                s.shared.lines[EPOCH].listed |= 1 << i;
                s.shared.lines[EPOCH].newest = number;
                s.shared.slots[i].lines |= WIDE;
                (s.shared.slots[i].last, s.threads[i].change.number) = (number, number);
                if s.threads[i].walk.span.is_empty() {
                    // After its passes.
                    self.settle(s, i, op);
                } else {
                    s.threads[i].pc = Pc::EditEntry;
                }
            }
            pc => unreachable!("{pc:?} in a beginning"),
        }
    }

    /// Takes the first number. A wide invalidation also moves the epoch.
    fn take_number(&self, s: &mut State, i: usize, op: Op) {
        let number = s.next_number();
        s.shared.numbers.count += 1;
        (s.shared.slots[i].first, s.shared.slots[i].last) = (number, number);
        s.threads[i].change.number = number;
        s.threads[i].change.lines = s.shared.slots[i].lines & !WIDE;
        if s.shared.slots[i].lines == WIDE {
            s.shared.lines[EPOCH].newest = number;
        }
        s.threads[i].pc = Pc::Announce;
        if s.threads[i].change.lines == 0 {
            self.announced(s, i, op);
        }
    }

    /// Announces to the next region.
    fn announce(&self, s: &mut State, i: usize, op: Op) {
        let number = s.threads[i].change.number;
        let at = s.threads[i].change.lines.trailing_zeros();
        let line = &mut s.shared.lines[at as usize];
        line.newest = number.max(line.newest);
        s.threads[i].change.lines &= !(1 << at);
        if s.threads[i].change.lines == 0 {
            self.announced(s, i, op);
        }
    }

    /// Ends the announcement to all regions.
    fn announced(&self, s: &mut State, i: usize, op: Op) {
        match self.bug {
            Some(Bug::NumberedBeforeListed | Bug::ListedBeforePlace) if s.threads[i].walk.span.is_empty() => {
                s.threads[i].pc = Pc::ListLate;
            }
            _ => self.begun(s, i, op),
        }
    }

    /// Begins its walk under its number, or continues it.
    fn begun(&self, s: &mut State, i: usize, op: Op) {
        s.threads[i].pc = match op {
            _ if !s.threads[i].walk.span.is_empty() => Pc::EditEntry,
            Op::Recover { gfn } => {
                s.enter(i, gfn);
                Pc::Descend
            }
            Op::ZapAll if s.shared.log.track != Track::DirtyBits => Pc::Flip,
            Op::ZapAll if self.bug == Some(Bug::FlipTakesDirty) => Pc::Flip,
            Op::BeginLog => Pc::Publish,
            Op::Commit { .. } if self.bug == Some(Bug::PublishedBeforeZap) => Pc::Publish,
            Op::Invalidate { why: Why::ChangePte, .. } => Pc::Tell,
            _ if s.shared.held.gfn != NONE || self.holds() => Pc::TakeHeld,
            _ => Pc::Walk,
        };
    }

    /// Returns the first step of the end.
    pub(crate) fn first_of_end(&self, s: &State, i: usize) -> Pc {
        let stands = matches!(self.bug, Some(Bug::EpochStandsAtEnd | Bug::UnlistedFirst));
        if s.shared.slots[i].lines & WIDE != 0 && !stands { Pc::EndEpoch } else { Pc::EndSlot }
    }

    /// `Ticket::drop`.
    pub(crate) fn end(&self, s: &mut State, i: usize, op: Op) {
        match s.threads[i].pc {
            Pc::EndEpoch => {
                s.shared.lines[EPOCH].newest = s.next_number();
                if !s.shared.slots[i].active {
                    self.ended(s, i, op);
                    return;
                }
                s.threads[i].pc = Pc::EndSlot;
            }
            Pc::EndSlot => {
                let wide = s.shared.slots[i].lines & WIDE != 0;
                for line in &mut s.shared.lines {
                    line.listed &= !(1 << i);
                }
                s.shared.numbers.count -= 1;
                s.shared.slots[i] = Slot::default();
                if wide && self.bug == Some(Bug::UnlistedFirst) {
                    s.threads[i].pc = Pc::EndEpoch;
                } else {
                    self.ended(s, i, op);
                }
            }
            pc => unreachable!("{pc:?} in an end"),
        }
    }

    fn ended(&self, s: &mut State, i: usize, op: Op) {
        if self.bug == Some(Bug::EndBeforeFlush) && matches!(op, Op::Invalidate { .. }) {
            let flush = self.first_of_flush(&s.shared);
            s.threads[i].pc = if s.threads[i].flush.owed.is_empty() { Pc::HostChanges } else { flush };
        } else if self.bug == Some(Bug::SlotsEndBeforeGrace) && matches!(op, Op::Commit { .. }) {
            s.threads[i].pc = Pc::Synchronize;
        } else if self.bug == Some(Bug::ConvertedUncovered)
            && matches!(op, Op::Commit { .. })
            && !s.threads[i].commit.withdrawn
        {
            s.threads[i].commit.withdrawn = true;
            s.threads[i].pc = self.first_of_publication(s, i);
        } else if op == Op::BeginLog && !s.shared.log.set {
            self.arm_all(s, i);
        } else {
            s.done(i);
        }
    }
}

/// The check of a fault.
impl Scenario {
    /// One step of the check, from the region's word on.
    pub(crate) fn look(&self, s: &mut State, i: usize, gfn: u8) -> Look {
        let thread = s.threads[i];
        let late = self.bug == Some(Bug::RegionReadAfterScan);
        s.threads[i].pc = match thread.pc {
            Pc::StampRegion => {
                // A hole may be newer than the region's word, if an invalidation that was announced elsewhere wrote it.
                let word = &mut s.shared.lines[region(thread.fault.hva)].newest;
                let met = thread.walk.word.version().unwrap_or(0).max(thread.fault.met);
                s.threads[i].fault.stamp = met.max(*word);
                *word = met.max(*word);
                s.threads[i].fault.region = *word;
                s.threads[i].fault.met = 0;
                if late { Pc::EpochUnmoved } else { Pc::ScanRegion }
            }
            Pc::ScanRegion => {
                s.threads[i].fault.part = false;
                s.threads[i].fault.places = s.shared.lines[region(thread.fault.hva)].listed;
                let none = self.bug == Some(Bug::RegionUnscanned);
                if s.threads[i].fault.places == 0 || none { Pc::ScanEpoch } else { Pc::LookRegion }
            }
            Pc::ScanEpoch => {
                s.threads[i].fault.places = s.shared.lines[EPOCH].listed;
                if s.threads[i].fault.places == 0 || self.bug == Some(Bug::EpochUnscanned) {
                    if late && thread.fault.hva != NONE {
                        s.threads[i].pc = Pc::StampRegion;
                        return Look::Unfinished;
                    }
                    return self.unmoved(s, i);
                }
                Pc::LookEpoch
            }
            Pc::ScanAll => {
                let (gfns, hvas) = Self::looked_at(s, i, gfn, true);
                let covers = |slot: &Slot| slot.gfns.overlaps(gfns) || slot.hvas.overlaps(hvas);
                let mut others = (0..THREADS).filter(|&j| j != i).map(|j| &s.shared.slots[j]);
                if others.any(|slot| slot.active && covers(slot)) {
                    return Look::Covered;
                }
                return self.unmoved(s, i);
            }
            Pc::LookRegion | Pc::LookEpoch => {
                let place = s.threads[i].fault.places.trailing_zeros();
                s.threads[i].fault.places &= !(1 << place);
                let slot = s.shared.slots[place as usize];
                let [page, around] = [false, true].map(|around| {
                    let (gfns, hvas) = Self::looked_at(s, i, gfn, around);
                    slot.active && (slot.gfns.overlaps(gfns) || slot.hvas.overlaps(hvas))
                });
                if page && self.bug != Some(Bug::ActiveUnchecked) {
                    s.threads[i].fault.places = 0;
                    return Look::Covered;
                }
                s.threads[i].fault.part |= around && thread.fault.large;
                if s.threads[i].fault.places != 0 {
                    return Look::Unfinished;
                }
                match thread.pc {
                    Pc::LookRegion => Pc::ScanEpoch,
                    _ if late && thread.fault.hva != NONE => Pc::StampRegion,
                    _ => return self.unmoved(s, i),
                }
            }
            Pc::EpochUnmoved => return self.unmoved(s, i),
            pc => unreachable!("{pc:?} in a look"),
        };
        Look::Unfinished
    }

    /// The second read of the epoch.
    fn unmoved(&self, s: &State, i: usize) -> Look {
        let stands = s.shared.lines[EPOCH].newest == s.threads[i].fault.epoch;
        if stands || self.bug == Some(Bug::EpochLookedAtOnce) { Look::Confirmed } else { Look::Moved }
    }

    /// Returns the frames and host pages that thread `i` checks; or those of the region around.
    fn looked_at(s: &State, i: usize, gfn: u8, around: bool) -> (Span, Span) {
        let thread = &s.threads[i];
        // The frozen entry may be a large leaf: no part of it may be covered by an invalidation.
        let whole = around || thread.walk.thawed.is_some() && thread.walk.level == 1;
        let of = |page| if whole { Shared::extent(1, page) } else { Span::new(page, page + 1) };
        (of(gfn), if thread.fault.hva == NONE { Span::default() } else { of(thread.fault.hva) })
    }
}
