//! Dirty logging: a harvest, the marks of faults and edits, and the begin of a log. One slot logs: region 0.
//!
//! ```text
//! by W            take the marks; arm those pages (W goes); flush; copy
//! by D            the tables: clear each D; take the marks; arm those pages; a grace period; flush; copy
//! first of all    where the log has just begun, all marked: a grace period, for faults that do not know of it
//! a fault         the permission, then the mark
//! an edit, by D   the mark, then the leaf goes; tables are emptied before they go
//! the slot moves  a mark goes to the log of the version that was read before the permission, or before the leaf goes
//! ```
//! A slot that logs moves away by a [`Op::Commit`] of its frames without a slot, and back by one of its own pages. Its
//! log moves with it. A mark needs the slot: a version in which the frame has another slot, or none, leads to no log.
//!
//! Properties: with D bits, this harvest or a concurrent one reports a page that had been stored to when the harvest
//! began. And when all threads have ended, every page stored to since its copy is in the marks, or in a leaf with D
//! set. Stores that no entry shows happen in every state in which they can ([`crate::hardware`]).

use crate::bug::Bug;
use crate::scenario::Scenario;
use crate::state::{
    Bad, LOGGED, Leaf, Logging, Op, Pc, Shared, Span, State, Thread, Track, Walk, Word, bits,
};

/// Slots that log, and move.
impl Scenario {
    /// Returns whether the slot that logs may move.
    fn moves_the_log(&self, s: &State) -> bool {
        let moves = |op: &Op| matches!(op, Op::Commit { gfns, .. } if gfns.overlaps(LOGGED));
        s.shared.log.track != Track::Nothing && self.programs.iter().flatten().any(moves)
    }

    /// Returns whether the published version has the slot at this frame: its pages have the numbers of its frames.
    fn has_the_log(s: &State, gfn: u8) -> bool {
        s.shared.memslots[gfn as usize] == gfn
    }

    /// The first step of `Walk::allow_stores`: reads a version. Returns whether this was that step.
    pub(crate) fn knows_logs(&self, s: &mut State, i: usize) -> bool {
        if s.threads[i].log.known.is_some() || !self.moves_the_log(s) {
            return false;
        }
        s.threads[i].log.known = Some(Self::has_the_log(s, s.threads[i].gfn));
        true
    }

    /// `KnownLogs::mark`, by the version that the thread has read.
    pub(crate) fn mark_stores(&self, s: &mut State, i: usize, gfns: Span) {
        let late = self.bug == Some(Bug::MarkLookedUpLate) && self.moves_the_log(s);
        let known = if late { None } else { s.threads[i].log.known };
        if known.unwrap_or_else(|| !late || Self::has_the_log(s, s.threads[i].gfn)) {
            s.shared.log.log_writes(gfns);
        }
    }

    /// `Walk::keep_dirty`: reads a version and marks.
    pub(crate) fn keep_dirty(&self, s: &mut State, gfns: Span) {
        if !self.moves_the_log(s) || Self::has_the_log(s, gfns.start) {
            s.shared.log.log_writes(gfns);
        }
    }
}

impl Shared {
    /// `Walk::keeps_tables`.
    pub(crate) fn keeps_tables(&self) -> bool {
        self.log.track == Track::DirtyBits && self.log.logs
    }

    /// `Walk::keep_dirty` has something to do.
    pub(crate) fn keeps(&self, old: Word, level: u8) -> bool {
        self.keeps_tables() && level == 0 && matches!(old, Word::Leaf(Leaf { dirty: true, .. }))
    }

    /// Returns whether a page was stored to that no harvest will find.
    pub(crate) fn store_lost(&self) -> bool {
        let mut found = self.log.marks;
        if self.log.track == Track::DirtyBits {
            for (leaf, level) in self.below(self.root).0 {
                // A large leaf is armed, or its pages are marked, so its D has no meaning.
                found |= u8::from(level == 0 && leaf.dirty) << (leaf.pfn % crate::state::PAGES);
            }
        }
        self.log.unsaved & !found != 0
    }

    /// `arm_entry`, as one step: it is a load, and a CAS from what was loaded.
    fn arm_entry(&mut self, node: u8, level: u8, gfn: u8) -> Armed {
        let by_bits = self.log.track == Track::DirtyBits;
        match self.load(node, level, gfn) {
            Word::Frozen(_) => Armed::Wait,
            Word::Leaf(leaf) => {
                let write = leaf.write && by_bits && level == 0;
                let dirty = leaf.dirty && !by_bits;
                self.set(node, level, gfn, Word::Leaf(Leaf { write, dirty, ..leaf }));
                Armed::Done
            }
            Word::Table(child) => Armed::Below(child),
            Word::Hole(_) | Word::Mmio(_) => Armed::Done,
        }
    }
}

/// The result of [`Shared::arm_entry`].
enum Armed {
    /// The entry is frozen: check it after the thaw.
    Wait,
    Done,
    Below(u8),
}

impl Scenario {
    /// One step of a harvest, or of arming a log that begins. `None`: it waits for a thaw.
    pub(crate) fn harvest(&self, s: &mut State, i: usize, op: Op) -> Option<()> {
        let by_bits = s.shared.log.track == Track::DirtyBits;
        let Thread { gfn, walk: Walk { level, word, .. }, log: Logging { taken, .. }, .. } = s.threads[i];
        match s.threads[i].pc {
            // Without a log there is nothing to harvest.
            Pc::Start if !s.shared.log.logs => return None,
            Pc::Start if s.shared.sets.in_progress && self.bug != Some(Bug::HarvestBeforeGrace) => {
                s.threads[i].waits = s.sections();
                s.threads[i].pc = Pc::Settled;
            }
            Pc::Settled | Pc::Synchronized if s.threads[i].waits != 0 => return None,
            Pc::Start | Pc::Settled => {
                s.enter(i, LOGGED.start);
                // By W, another thread may have stored through a permission whose fault has not marked it yet.
                s.threads[i].log.before = if by_bits { s.shared.log.unsaved } else { 0 };
                s.threads[i].pc = match self.bug {
                    Some(Bug::ArmBeforeTake) => {
                        (s.threads[i].log.taken, s.threads[i].log.arms) =
                            (s.shared.log.marks, s.shared.log.marks);
                        self.arm_next(s, i, op)
                    }
                    Some(Bug::MarksBeforeTables) => Pc::TakeMarks,
                    _ if by_bits => Pc::Tables,
                    _ => Pc::TakeMarks,
                };
            }
            Pc::Tables => match s.shared.load(s.threads[i].node(), level, gfn) {
                Word::Table(child) => go_down(&mut s.threads[i], child),
                Word::Leaf(leaf) if leaf.dirty && level == 0 => {
                    s.threads[i].walk.word = Word::Leaf(leaf);
                    s.threads[i].pc = Pc::ClearDirty;
                }
                _ => self.next_page(s, i),
            },
            Pc::ClearDirty => {
                let Word::Leaf(leaf) = word else { unreachable!("only leaves are cleared") };
                let clean = Word::Leaf(Leaf { dirty: false, ..leaf });
                let by_store = self.bug == Some(Bug::HarvestByStore);
                if by_store {
                    s.shared.set(s.threads[i].node(), level, gfn, clean);
                }
                if by_store || s.cas(i, word, clean) {
                    s.threads[i].log.taken |= 1 << gfn;
                    self.next_page(s, i);
                } else {
                    s.threads[i].pc = Pc::Tables;
                }
            }
            Pc::TakeMarks if self.bug == Some(Bug::ArmBeforeTake) => {
                s.shared.log.marks &= !taken;
                s.threads[i].pc = self.armed(s, i, op);
            }
            Pc::TakeMarks => {
                let marks = std::mem::take(&mut s.shared.log.marks);
                s.threads[i].log.taken |= marks;
                s.threads[i].log.arms = marks;
                s.threads[i].pc = match self.bug {
                    Some(Bug::MarksBeforeTables) if by_bits => Pc::Tables,
                    _ => self.arm_next(s, i, op),
                };
            }
            Pc::ArmEntry => match s.shared.arm_entry(s.threads[i].node(), level, gfn) {
                Armed::Wait => return None,
                Armed::Below(child) => go_down(&mut s.threads[i], child),
                Armed::Done => s.threads[i].pc = self.arm_next(s, i, op),
            },
            Pc::Synchronize => {
                s.threads[i].waits = s.sections();
                s.threads[i].pc = Pc::Synchronized;
            }
            Pc::Synchronized if self.bug == Some(Bug::HarvestFlushesFirst) => s.threads[i].pc = Pc::Copy,
            Pc::Synchronized => s.threads[i].pc = self.flush_armed(s, i, op, taken),
            Pc::Flushed if self.bug == Some(Bug::HarvestFlushesFirst) => s.threads[i].pc = Pc::Synchronize,
            Pc::Flushed => {
                let begins = op == Op::BeginLog;
                if begins {
                    // All pages are copied after that, so only later stores count.
                    (s.shared.log.begun, s.shared.log.unsaved) = (true, 0);
                }
                if begins || self.bug == Some(Bug::CopyBeforeFlush) {
                    s.done(i);
                } else {
                    s.threads[i].pc = Pc::Copy;
                }
            }
            Pc::Copy => {
                if Self::untold(s, i) {
                    s.shared.bad = Some(Bad::StoreUntold);
                }
                s.shared.log.unsaved &= !taken;
                s.threads.iter_mut().for_each(|thread| thread.log.before &= !taken);
                if self.bug == Some(Bug::CopyBeforeFlush) {
                    s.threads[i].pc = self.first_of_flush(&s.shared);
                } else {
                    s.done(i);
                }
            }
            pc => unreachable!("{pc:?} in a harvest"),
        }
        Some(())
    }

    /// Moves to the next page of the log whose D bit to check.
    fn next_page(&self, s: &mut State, i: usize) {
        let next = s.threads[i].gfn + 1;
        if next < LOGGED.end {
            s.enter(i, next);
            s.threads[i].pc = Pc::Tables;
        } else if self.bug == Some(Bug::MarksBeforeTables) {
            s.threads[i].pc = self.arm_next(s, i, Op::Harvest);
        } else {
            s.threads[i].pc = Pc::TakeMarks;
        }
    }

    /// Moves to the next page to arm, from the root, because a split or recovery may have moved its entry.
    fn arm_next(&self, s: &mut State, i: usize, op: Op) -> Pc {
        let early = self.bug == Some(Bug::ArmBeforeTake) && op == Op::Harvest;
        let thread = &mut s.threads[i];
        let Some(gfn) = bits(thread.log.arms).next() else {
            return if early { Pc::TakeMarks } else { self.armed(s, i, op) };
        };
        thread.log.arms &= !(1 << gfn);
        s.enter(i, gfn);
        Pc::ArmEntry
    }

    /// Ends the arming: flushes the taken pages, if there are any.
    fn armed(&self, s: &mut State, i: usize, op: Op) -> Pc {
        s.leave(i);
        let thread = &mut s.threads[i];
        (thread.walk.level, thread.gfn, thread.walk.word) = (0, 0, Word::Hole(0));
        let pages = if op == Op::BeginLog { 3 } else { thread.log.taken };
        for gfn in bits(pages) {
            thread.owe(Span::new(gfn, gfn + 1));
        }
        if op == Op::Harvest
            && pages != 0
            && s.shared.log.track == Track::DirtyBits
            && !matches!(self.bug, Some(Bug::HarvestWithoutGrace | Bug::HarvestFlushesFirst))
        {
            return Pc::Synchronize;
        }
        self.flush_armed(s, i, op, pages)
    }

    /// `Vm::flush_armed`, after its grace period.
    fn flush_armed(&self, s: &mut State, i: usize, op: Op, pages: u8) -> Pc {
        let thread = &mut s.threads[i];
        match self.bug {
            Some(Bug::CopyBeforeFlush) if op == Op::Harvest && pages != 0 => Pc::Copy,
            Some(Bug::ArmWithoutFlush) if op == Op::Harvest => {
                thread.flush.owed = Span::default();
                Pc::Copy
            }
            Some(Bug::LogWithoutFlush) if op == Op::BeginLog => {
                thread.flush.owed = Span::default();
                Pc::Flushed
            }
            _ if pages == 0 => Pc::Flushed,
            _ => self.first_of_flush(&s.shared),
        }
    }

    /// `Vm::begin_logs`, after the slot began to log.
    pub(crate) fn arm_all(&self, s: &mut State, i: usize) {
        s.threads[i].log.arms = 3;
        s.threads[i].pc = self.arm_next(s, i, Op::BeginLog);
    }

    /// By D bits: returns whether a page had been written when the harvest began, and no harvest reports it.
    fn untold(s: &State, i: usize) -> bool {
        let told = s.threads.iter().fold(0, |set, thread| set | thread.log.taken);
        s.threads[i].log.before & s.shared.log.unsaved & !told != 0
    }

    /// Checks the properties of the header at the end.
    pub(crate) fn audit_log(s: &mut State) {
        if s.shared.log.begun && s.shared.store_lost() {
            s.shared.bad = Some(Bad::StoreLost);
        }
    }
}

fn go_down(thread: &mut Thread, child: u8) {
    thread.walk.level -= 1;
    thread.walk.path[thread.walk.level as usize] = child;
}
