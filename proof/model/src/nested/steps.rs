//! The next step of a thread; and the walk over (shadow, g2) that every invalidation makes.

use super::program::{Nested, Op};
use super::shadow::{Place, Shared, THREADS, TWO, Word, entry, stores};
use crate::bug::Bug;

/// The next step of a thread. F1 to F10 are the steps of `slat/src/nested/protocol.md`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Pc {
    /// The operation begins. Of an access: F1, the walk of the shadow.
    #[default]
    Start,
    /// F2: the epoch, and the shadow's line.
    Stamp,
    /// F3: T, with Accessed and Dirty set in it.
    ReadTables,
    /// F4: the memslot.
    Slot,
    /// F5: the line of the host page's region.
    Region,
    /// F5: what is listed.
    List,
    /// F5: the places that were listed, and the epoch again.
    Confirm,
    /// An invalidation covers what the fault needs.
    Wait,
    /// F6: the host's answer.
    Lookup,
    /// F7: the reverse map. A missing chunk is made first.
    Add,
    /// F8: the lines again.
    Recheck,
    /// F8: a missing leaf table.
    Link,
    /// F8: the entry is frozen.
    Freeze,
    /// F9: the row, as it is.
    RowRead,
    /// F9: whether the entry is frozen still.
    RowOwned,
    /// F9: the row is exchanged.
    Row,
    /// F9: the leaf.
    Thaw,
    /// F10: the log's mark.
    Mark,
    /// F7 when it is too late.
    AddLate,
    /// A leaf is there: T again.
    Compare,
    /// It lacks write: it is frozen, and steps F2 to F6 follow.
    FreezeLeaf,
    /// It gets write.
    ThawLeaf,
    /// It stays as it was.
    ThawBack,
    /// An invalidation by L0: L1's own mappings.
    Canonical,
    /// The head of the next frame of L1; then settling.
    Head,
    /// The walk over (shadow, g2): the entry.
    Load,
    /// The walk: the row.
    ReadRow,
    /// The walk: the edit.
    Edit,
    /// As built: records that a drop is under way.
    Note,
    /// As built: records the end of the drop.
    Noted,
    /// The debt is known.
    Settle,
    /// A vCPU answers the flush.
    Kick(u8),
    /// Entries of the reverse map go.
    Remove,
    /// The host, the memslots, or T's memory changes.
    Change,
    /// The invalidation ends.
    End,
    /// A vCPU is about to enter L2.
    Enter,
    /// As built: the refused leaf is removed once more.
    Comeback,
    /// A flush of the shadow begins.
    Begin,
    /// Nothing is pending for the vCPU any more.
    Entered,
    /// Readers of the memslots that saw no log are waited for.
    Grace,
}

/// The effect of a flush of the shadow on a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Flush {
    /// It stays if T still has it.
    #[default]
    Revalidate,
    /// It is removed.
    Zap,
}

/// A thread's own variables. Unneeded values are forgotten, so that fewer states differ.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Thread {
    pub(super) op: u8,
    pub(super) pc: Pc,
    /// A fault: the tree that it walks, the word that it met, the lines as it read them, T, and what follows from it.
    pub(super) root: u8,
    pub(super) word: Option<Word>,
    pub(super) lines: [u8; 3],
    pub(super) listed: u8,
    pub(super) t: u8,
    pub(super) hva: u8,
    pub(super) pfn: u8,
    pub(super) write: bool,
    pub(super) logs: bool,
    /// It upgrades the leaf in `word`, which is frozen.
    pub(super) upgrades: bool,
    /// It has made the chunk.
    pub(super) made: bool,
    /// It has found no leaf table.
    pub(super) above: bool,
    /// No thread has written the row since it read it.
    pub(super) row_stands: bool,
    /// Stands in a section, or in a walk of the shadow, that a log's begin or a reclaim waits for.
    pub(super) awaited: bool,
    /// An invalidation: the frame of L1 that it visits, the row that it read, what it owes (1: L1's tag, 2: L2's).
    pub(super) g1: u8,
    pub(super) row: u8,
    pub(super) owes: u8,
    /// Heads that no thread has written since this thread read them, and frames whose hole has its number: a bit each.
    pub(super) fresh: u8,
    pub(super) bumped: u8,
    pub(super) flush: Flush,
    /// Marks that a harvest took.
    pub(super) taken: u8,
}

/// The whole state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub(super) shared: Shared,
    pub(super) threads: [Thread; THREADS],
}

/// L1's tag, and L2's.
pub(super) const L1: u8 = 1;
pub(super) const L2: u8 = 2;

impl State {
    /// Ends the operation of thread `i`.
    pub(super) fn done(&mut self, i: usize) {
        self.threads[i] = Thread { op: self.threads[i].op + 1, ..Thread::default() };
    }

    /// Restarts the operation of thread `i`.
    pub(super) fn again(&mut self, i: usize) {
        self.threads[i] = Thread { op: self.threads[i].op, ..Thread::default() };
    }

    /// Writes the head of `g1`, so that no thread's copy matches it any more.
    pub(super) fn head_changes(&mut self, g1: u8, names: bool) {
        self.shared.heads[g1 as usize] = names;
        for thread in &mut self.threads {
            thread.fresh &= !(1 << g1);
        }
    }

    /// Writes the row, so that no thread's copy matches it any more.
    pub(super) fn row_changes(&mut self, root: u8, g1: u8) {
        self.shared.trees[root as usize].row = g1;
        for thread in &mut self.threads {
            thread.row_stands = false;
        }
    }

    fn place(&mut self, i: usize) -> &mut Place {
        &mut self.shared.places[i]
    }

    /// Returns whether another invalidation has visited a shadow and has not flushed yet.
    pub(super) fn others_unflushed(&self, i: usize, bug: Option<Bug>) -> bool {
        let own = |place: &&Place| bug != Some(Bug::DebtsBySpace) || place.shadow;
        let others = (0..THREADS).filter(|&other| other != i).map(|other| &self.shared.places[other]);
        others.filter(own).any(|place| place.listed && place.unflushed && (place.reached || place.shadow))
    }
}

/// The walk over (shadow, g2).
impl Nested {
    /// One step of the walk that any invalidation, flush, or harvest makes of the shadow's entry. It ends at [`Pc::Head`].
    pub(super) fn visit(&self, s: &mut State, i: usize, op: Op) {
        let number = s.shared.places[i].number;
        let harvests = matches!(op, Op::Harvest | Op::BeginLog);
        let flushes = s.shared.places[i].shadow;
        let me = s.threads[i];
        let others = s.others_unflushed(i, self.bug) && !self.has(Bug::ShadowDebtUnadopted);
        if self.fresh {
            return self.visit_built(s, i, harvests, flushes);
        }
        match me.pc {
            Pc::Load => {
                let root = s.shared.root;
                let tree = &mut s.shared.trees[root as usize];
                let linked = tree.upper == Word::Table;
                let spared = self.has(Bug::FlushWithoutBumps) && flushes
                    || self.has(Bug::ChildHoleKept) && !flushes && !linked;
                let word = if linked { &mut tree.leaf } else { &mut tree.upper };
                let seen = *word;
                match seen {
                    // Arming is not numbered.
                    Word::Hole(_) | Word::Frozen(_) if harvests => {}
                    Word::Hole(old) if !spared && old < number => *word = Word::Hole(number),
                    Word::Frozen(_) => *word = Word::Hole(number),
                    _ => {}
                }
                if let Word::Leaf { .. } = seen {
                    (s.threads[i].root, s.threads[i].word, s.threads[i].pc) = (root, Some(seen), Pc::ReadRow);
                    return;
                }
                if !harvests {
                    s.threads[i].bumped |= 1 << me.g1;
                }
                if others || matches!(seen, Word::Frozen(_)) && !harvests {
                    s.threads[i].owes |= L2;
                }
                s.threads[i].pc = Pc::Head;
            }
            Pc::ReadRow => {
                let row = s.shared.trees[me.root as usize].row;
                s.threads[i].row = row;
                if flushes {
                    s.threads[i].g1 = row;
                    if !self.has(Bug::HeadReadLate) {
                        s.threads[i].fresh |= 1 << row;
                    }
                }
                s.threads[i].pc = Pc::Edit;
                return;
            }
            _ => {
                let old = me.word.expect("read before");
                let Word::Leaf { pfn, write, armed, g1 } = old else { unreachable!("a leaf") };
                // A TLB may still have the permission that a log withdrew, and no listed invalidation says so.
                let may_store = write || armed && !self.has(Bug::ArmedPassedBy);
                let (own, new) = if flushes {
                    let zap = me.flush == Flush::Zap || !self.agrees(&s.shared, me.row, may_store);
                    (zap, Word::Hole(number))
                } else {
                    let own = me.row == me.g1 || !self.spares;
                    let reads = |armed| Word::Leaf { pfn, write: false, armed, g1 };
                    match op {
                        Op::Host { protect: true, .. } => (own && may_store, reads(false)),
                        Op::Harvest | Op::BeginLog => (own && write, reads(true)),
                        _ => (own, Word::Hole(number)),
                    }
                };
                if own && !s.shared.swap(me.root, old, new) {
                    s.threads[i].pc = Pc::Load;
                    return;
                }
                if own || others {
                    s.threads[i].owes |= L2;
                }
                if own && matches!(new, Word::Hole(_)) {
                    s.threads[i].bumped |= 1 << s.threads[i].g1;
                }
                s.threads[i].pc = Pc::Head;
            }
        }
        s.threads[i].word = None;
        (s.threads[i].root, s.threads[i].row) = (0, 0);
        if !flushes {
            // The head behind the one that led here.
            s.threads[i].g1 += 1;
        }
    }

    /// Returns whether T still allows the mapping of a leaf with this row.
    pub(super) fn agrees(&self, shared: &Shared, row: u8, write: bool) -> bool {
        let t = shared.t[shared.key as usize];
        let accessed = t & entry::ACCESSED != 0 || self.has(Bug::KeptUnaccessed);
        t & entry::PRESENT != 0 && accessed && t & entry::FRAME == row && (!write || stores(t))
    }

    /// After all edits, pays the debt, one vCPU after the other.
    pub(super) fn settle(&self, s: &mut State, i: usize) {
        let me = &mut s.threads[i];
        if self.has(Bug::HeadReadLate) && s.shared.places[i].shadow {
            me.fresh = me.bumped;
        }
        s.shared.places[i].reached |= s.shared.places[i].listed && me.owes & L2 != 0;
        if self.has(Bug::L1TagOnly) {
            me.owes &= L1;
        }
        if self.has(Bug::HullsMixSpaces) && !s.shared.places[i].shadow && me.g1 != 0 {
            // The range was recorded as frames of L1, which do not name g2.
            me.owes &= L1;
        }
        if me.owes == 0 {
            s.place(i).unflushed = false;
            s.threads[i].pc = Pc::Remove;
        } else {
            me.pc = Pc::Kick(0);
        }
    }

    /// One vCPU answers the flush.
    pub(super) fn kick(&self, s: &mut State, i: usize, vcpu: u8) {
        let owes = s.threads[i].owes;
        let root = s.shared.root;
        let at = &mut s.shared.vcpus[vcpu as usize];
        if owes & L1 != 0 {
            at.l1 = 0;
        }
        if owes & L2 != 0 && (at.in_l2 || !self.has(Bug::OutsideUnflushed)) {
            at.forget_l2();
            at.root = root;
        }
        if usize::from(vcpu) + 1 < s.shared.vcpu_count {
            s.threads[i].pc = Pc::Kick(vcpu + 1);
        } else {
            s.place(i).unflushed = false;
            s.threads[i].owes = 0;
            s.threads[i].pc = Pc::Remove;
        }
    }

    /// Removes entries of the reverse map that lead to a hole of this number, each by a compare-and-swap of the head as
    /// read.
    pub(super) fn remove(&self, s: &mut State, i: usize) {
        if self.fresh {
            // Faults on these frames wait until the invalidation ends. They do not wait for a flush of L1, which
            // removes no entry.
            let parts =
                if s.threads[i].bumped == 0 || s.shared.places[i].shadow { 0 } else { Self::parts(s, i) };
            (0..TWO as u8).filter(|g1| parts >> g1 & 1 != 0).for_each(|g1| s.head_changes(g1, false));
            s.threads[i].bumped = 0;
            return;
        }
        for g1 in 0..TWO as u8 {
            let me = s.threads[i];
            let unchanged = me.fresh >> g1 & 1 != 0 || self.has(Bug::RemovedUncompared);
            if me.bumped >> g1 & 1 != 0 && unchanged && s.shared.heads[g1 as usize] {
                s.head_changes(g1, false);
            }
        }
        (s.threads[i].fresh, s.threads[i].bumped) = (0, 0);
    }
}
