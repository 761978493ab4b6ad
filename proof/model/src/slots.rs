//! Slot transactions: `GuestSpace::commit`, the versions that it publishes, and how they are looked up.
//!
//! ```text
//! lock; room for a version      a cell without readers: else a grace period first
//! begin                         faults on the frames that change wait
//!   zap what slots lose, flush  notifiers still find the slot meanwhile: it is withdrawn, not gone
//!   publish                     the cell, then the word that names it
//!   something was taken?        a grace period
//! end
//! a log begins, unmarked?       arm its pages, flush
//! ```
//! A conversion to private or shared memory is such a transaction: the frame gets another page ([`Op::Commit`]).
//!
//! In scenarios about cells, a version lies in one of two cells, and a look-up takes two steps: the word, and the cell
//! that it names. Otherwise a version is one word.

use crate::bug::Bug;
use crate::scenario::Scenario;
use crate::state::{Bad, Cell, NONE, Op, Pc, Shared, State, Version};

/// Looking up.
impl Scenario {
    /// `SlotSets::read`: reads the word, or the whole version if that is one word. Begins a section if the thread is in
    /// none.
    pub(crate) fn read_version(s: &mut State, i: usize) -> Option<Version> {
        if s.shared.sets.cells.is_none() {
            return Some(s.shared.memslots);
        }
        s.threads[i].inside = true;
        s.threads[i].fault.version = s.shared.sets.number;
        None
    }

    /// The cell that the word named.
    pub(crate) fn read_cell(s: &mut State, i: usize) -> Version {
        let number = s.threads[i].fault.version;
        let cell = s.shared.sets.cells.expect("read before")[(number % 2) as usize];
        if cell.number != number {
            s.shared.bad = Some(Bad::MixedSlots);
        }
        s.threads[i].fault.version = 0;
        cell.version
    }
}

/// Changing.
impl Scenario {
    /// Returns whether the transaction takes something from readers.
    fn takes(shared: &Shared, op: Op) -> bool {
        match op {
            Op::Commit { gfns, .. } => shared.memslots[gfns.start as usize] != NONE,
            _ => op == Op::BeginLog,
        }
    }

    /// One step of a transaction, except its walk. `None`: it waits.
    pub(crate) fn commit(&self, s: &mut State, i: usize, op: Op) -> Option<()> {
        match s.threads[i].pc {
            Pc::Start if s.shared.writer != NONE => return None,
            Pc::RoomMade | Pc::Synchronized if s.threads[i].waits != 0 => return None,
            Pc::Start => {
                s.shared.writer = i as u8;
                s.threads[i].commit.takes = Self::takes(&s.shared, op);
                let waits = s.shared.sets.is_full() && self.bug != Some(Bug::CellsNotWaitedFor);
                s.threads[i].pc = if waits { Pc::MakeRoom } else { self.room_made(s, i, op) };
            }
            Pc::MakeRoom => {
                s.threads[i].waits = s.sections();
                s.threads[i].pc = Pc::RoomMade;
            }
            Pc::RoomMade => {
                s.shared.sets.oldest = s.shared.sets.number;
                s.threads[i].pc = self.room_made(s, i, op);
            }
            Pc::WriteCell => {
                let version = changed(s.shared.memslots, op);
                let sets = &mut s.shared.sets;
                let number = sets.number + 1;
                let cells = sets.cells.as_mut().expect("there are cells");
                cells[(number % 2) as usize] = Cell { number, version };
                s.threads[i].pc = Pc::Publish;
            }
            Pc::Publish => {
                s.shared.memslots = changed(s.shared.memslots, op);
                s.shared.sets.number += u8::from(s.shared.sets.cells.is_some());
                if op == Op::BeginLog {
                    s.shared.log.begins();
                    s.shared.sets.in_progress = s.shared.log.set;
                }
                s.shared.published = s.threads[i].change.number;
                s.threads[i].pc = match self.bug {
                    Some(Bug::PublishedBeforeZap) if !s.threads[i].commit.withdrawn => {
                        s.threads[i].commit.withdrawn = true;
                        Pc::Walk
                    }
                    Some(Bug::LogBeforeGrace) if op == Op::BeginLog => self.first_of_end(s, i),
                    Some(Bug::SlotsEndBeforeGrace) => self.first_of_end(s, i),
                    Some(Bug::ConvertedUncovered) => Pc::Synchronize,
                    _ if s.threads[i].commit.takes => Pc::Synchronize,
                    _ => self.first_of_end(s, i),
                };
            }
            Pc::Synchronize => {
                s.threads[i].waits = s.sections();
                s.threads[i].pc = Pc::Synchronized;
            }
            Pc::Synchronized => {
                s.shared.sets.oldest = s.shared.sets.number;
                s.shared.sets.in_progress = false;
                let bugs = [Bug::SlotsEndBeforeGrace, Bug::SlotsUnannounced, Bug::ConvertedUncovered];
                if self.bug.is_some_and(|bug| bugs.contains(&bug)) {
                    s.done(i);
                } else {
                    s.threads[i].pc = self.first_of_end(s, i);
                }
            }
            _ => unreachable!("{:?} in a transaction", s.threads[i].pc),
        }
        Some(())
    }

    /// Begins the invalidation.
    fn room_made(&self, s: &mut State, i: usize, op: Op) -> Pc {
        if self.bug == Some(Bug::SlotsUnannounced) && matches!(op, Op::Commit { .. }) {
            s.threads[i].change.number = s.shared.numbers.newest;
            return Pc::Walk;
        }
        Pc::BeginSlot
    }

    /// Returns the step after the lost frames are gone from tables and TLBs.
    pub(crate) fn first_of_publication(&self, s: &State, i: usize) -> Pc {
        match self.bug {
            Some(Bug::PublishedBeforeZap) if s.threads[i].commit.withdrawn => Pc::Synchronize,
            Some(Bug::ConvertedUncovered) if !s.threads[i].commit.withdrawn => self.first_of_end(s, i),
            _ if s.shared.sets.cells.is_some() => Pc::WriteCell,
            _ => Pc::Publish,
        }
    }
}

/// Returns the version that the transaction makes.
fn changed(mut version: Version, op: Op) -> Version {
    if let Op::Commit { gfns, hva } = op {
        for gfn in gfns.start..gfns.end {
            version[gfn as usize] = if hva == NONE { NONE } else { hva + (gfn - gfns.start) };
        }
    }
    version
}
