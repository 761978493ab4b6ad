//! Operations that change the shape of the tables: recover (a table becomes a large leaf), split (a large leaf becomes
//! a table), `zap_all` (a new root); and aging of a leaf.
//!
//! ```text
//! recover   begin over the region; CAS link → frozen; the epoch; the slot; no other place covers it; the epoch once more;
//!           ask the host without sleeping; CAS frozen → large leaf, or back; flush; end; the dead table goes to its grace
//! split     CAS leaf → link to a table of its small leaves: no stamp, no ticket, no flush
//! zap_all   begin over everything; a new root of hole(k); flush; end; the dead tree goes to its grace
//! ```

use crate::active::Look;
use crate::bug::Bug;
use crate::fault::pair;
use crate::scenario::Scenario;
use crate::state::{EPOCH, Leaf, NONE, Op, PAGES, Pc, Shared, Span, State, Thread, Walk, Word, frame};

impl Scenario {
    /// One step of a recovery.
    pub(crate) fn recover(&self, s: &mut State, i: usize, op: Op) {
        let thread = s.threads[i];
        let first = self.bug == Some(Bug::RecoverStampsFirst);
        match thread.pc {
            Pc::Descend => {
                let word = s.shared.load(thread.node(), thread.walk.level, thread.gfn);
                s.threads[i].walk.word = word;
                match word {
                    Word::Table(child) if thread.walk.level > 1 => {
                        s.threads[i].walk.level -= 1;
                        s.threads[i].walk.path[1] = child;
                    }
                    Word::Table(_) => s.threads[i].pc = if first { Pc::Stamp } else { Pc::Freeze },
                    _ => self.settle(s, i, op),
                }
            }
            Pc::Freeze => {
                let skip = self.bug == Some(Bug::RecoverWithoutFreeze);
                if skip || s.cas(i, thread.walk.word, self.frozen_table(i)) {
                    s.threads[i].walk.thawed = Some(thread.walk.thawed.unwrap_or(thread.walk.word));
                    s.threads[i].pc = if first { Pc::Thaw } else { Pc::Stamp };
                } else {
                    self.settle(s, i, op);
                }
            }
            Pc::Stamp => {
                s.threads[i].fault.epoch = s.shared.lines[EPOCH].newest;
                s.threads[i].fault.hva = s.shared.memslots[thread.gfn as usize];
                s.threads[i].pc = if s.threads[i].fault.hva == NONE { Pc::Thaw } else { Pc::ScanAll };
            }
            Pc::ScanAll => match self.look(s, i, thread.gfn) {
                Look::Unfinished => {}
                Look::Covered | Look::Moved => s.threads[i].pc = Pc::Thaw,
                Look::Confirmed => s.threads[i].pc = Pc::Lookup,
            },
            Pc::Lookup => {
                s.threads[i].walk.thawed = Some(self.large_leaf(&s.shared, thread));
                s.threads[i].pc = if first { Pc::Freeze } else { Pc::Thaw };
            }
            Pc::Thaw => self.thaw(s, i, op),
            Pc::Flushed => {
                s.shared.slots[i].unflushed = false;
                s.threads[i].pc = self.first_of_end(s, i);
            }
            _ => unreachable!("{:?} in a recovery", thread.pc),
        }
    }

    /// Returns the large leaf for the region, if the host's pages allow one; otherwise the old word.
    fn large_leaf(&self, shared: &Shared, thread: Thread) -> Word {
        let Word::Table(table) = thread.walk.word else { unreachable!() };
        let hva = thread.fault.hva & !1;
        let watched =
            shared.watches(Shared::extent(1, thread.gfn)) && self.bug != Some(Bug::RecoverUnwatched);
        if watched || !pair(shared, thread.gfn, thread.fault.hva) {
            return thread.walk.word;
        }
        let write = shared.writable[hva as usize];
        // Until the flush, small translations may set Dirty in the dead table, so every writable page counts as dirty.
        let dirty = if self.bug == Some(Bug::RecoverTakesDirtyAtThaw) {
            shared.below(table).0.iter().any(|(leaf, _)| leaf.dirty)
        } else {
            write
        };
        Word::Leaf(Leaf { pfn: frame(shared.frames[hva as usize], hva), write, host_write: write, dirty })
    }

    /// Returns the word of a frozen link, which differs between threads.
    fn frozen_table(&self, i: usize) -> Word {
        Word::Frozen(if self.bug == Some(Bug::RecoveriesShareAMark) { NONE } else { i as u8 })
    }

    fn thaw(&self, s: &mut State, i: usize, op: Op) {
        let Thread { gfn, walk: Walk { word, thawed, .. }, .. } = s.threads[i];
        let Word::Table(table) = word else { unreachable!() };
        let mine = if self.bug == Some(Bug::RecoverWithoutFreeze) { word } else { self.frozen_table(i) };
        let Some(thawed) = thawed else {
            // Nothing was frozen yet: the path of a seeded mistake.
            self.settle(s, i, op);
            return;
        };
        let won = s.cas(i, mine, thawed);
        // The table is dead if a leaf replaced it, or if an invalidation replaced the frozen entry.
        let dead = won && thawed != word || !won && self.bug != Some(Bug::RecoverWithoutFreeze);
        if won && thawed != word {
            s.shared.book(1, 1);
        }
        if dead && (won || self.bug != Some(Bug::RecoverForgetsTable)) {
            s.threads[i].flush.unlinked |= 1 << table;
        }
        if dead && self.bug != Some(Bug::RecoverWithoutFlush) {
            s.threads[i].owe(Shared::extent(1, gfn));
        }
        self.settle(s, i, op);
    }

    /// One step of a split. `None`: no memory for the table.
    pub(crate) fn split(&self, s: &mut State, i: usize, gfn: u8) -> Option<()> {
        match s.threads[i].pc {
            Pc::Start => {
                s.enter(i, gfn);
                s.threads[i].pc = Pc::Descend;
            }
            Pc::Descend => {
                let level = s.threads[i].walk.level;
                let word = s.shared.load(s.threads[i].node(), level, gfn);
                s.threads[i].walk.word = word;
                match word {
                    Word::Table(child) if level > 1 => {
                        s.threads[i].walk.level -= 1;
                        s.threads[i].walk.path[1] = child;
                    }
                    Word::Leaf(_) => s.threads[i].pc = Pc::SplitLink,
                    _ => s.done(i),
                }
            }
            _ => {
                let word = s.threads[i].walk.word;
                let Word::Leaf(leaf) = word else { unreachable!() };
                let halves = [0, 1].map(|half| Word::Leaf(Leaf { pfn: leaf.pfn + half, ..leaf }));
                let table = s.shared.new_node(0, halves)?;
                if self.bug == Some(Bug::SplitByStore) {
                    let (gfn, level) = (s.threads[i].gfn, s.threads[i].walk.level);
                    s.shared.set(s.threads[i].node(), level, gfn, Word::Table(table));
                    s.done(i);
                } else if s.cas(i, word, Word::Table(table)) {
                    s.done(i);
                } else {
                    s.shared.free_node(table);
                    s.again(i);
                }
            }
        }
        Some(())
    }

    /// One step of `zap_all`. `None`: no memory for the root.
    pub(crate) fn zap_all(&self, s: &mut State, i: usize, op: Op) -> Option<()> {
        match s.threads[i].pc {
            Pc::Flushed => {
                s.shared.slots[i].unflushed = false;
                s.shared.tlb.flips -= 1;
                s.threads[i].pc = self.first_of_end(s, i);
                return Some(());
            }
            Pc::Flip => {}
            // Written pages are marked first.
            _ => return self.invalidate(s, i, op),
        }
        let number = match self.bug {
            Some(Bug::FlipFillsZero) => 0,
            Some(Bug::FlipWithoutTicket) => s.shared.numbers.newest,
            _ => s.threads[i].change.number,
        };
        let root = s.shared.new_node(s.shared.top(), [Word::Hole(number); 2])?;
        s.threads[i].flush.unlinked |= 1 << s.shared.root;
        s.shared.root = root;
        s.shared.tlb.flips += 1;
        s.threads[i].owe(Span::new(0, PAGES));
        self.settle(s, i, op);
        Some(())
    }

    /// One step of clearing Accessed. The model has no Accessed; it checks that Dirty stays.
    pub(crate) fn age(&self, s: &mut State, i: usize, gfn: u8) {
        match s.threads[i].pc {
            Pc::Start => {
                s.enter(i, gfn);
                s.threads[i].pc = Pc::Descend;
            }
            Pc::Descend => {
                let level = s.threads[i].walk.level;
                let word = s.shared.load(s.threads[i].node(), level, gfn);
                s.threads[i].walk.word = word;
                match word {
                    Word::Table(child) => {
                        s.threads[i].walk.level -= 1;
                        s.threads[i].walk.path[level as usize - 1] = child;
                    }
                    Word::Leaf(_) => s.threads[i].pc = Pc::AgeStore,
                    _ => s.done(i),
                }
            }
            _ => {
                let Walk { word, level, .. } = s.threads[i].walk;
                if self.bug == Some(Bug::AgeByStore) {
                    s.shared.set(s.threads[i].node(), level, gfn, word);
                } else {
                    s.cas(i, word, word);
                }
                s.done(i);
            }
        }
    }
}
