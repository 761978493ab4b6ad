//! The walk of an invalidation and of a slot transaction: `Invalidation::edit_entry`, the cursor.

use crate::bug::Bug;
use crate::scenario::Scenario;
use crate::state::{
    Change, Leaf, NONE, Op, PAGES, Pc, Range, Shared, Span, State, Thread, Version, WIDE, Walk, Why, Word,
    frame, over_hvas,
};

impl Scenario {
    /// One step of an invalidation or a slot transaction.
    pub(crate) fn invalidate(&self, s: &mut State, i: usize, op: Op) -> Option<()> {
        match s.threads[i].pc {
            Pc::Walk => {
                let behind = matches!(op, Op::Invalidate { range: Range::Hvas(_), .. });
                let known = if behind { Self::read_version(s, i) } else { Some(s.shared.memslots) };
                match known {
                    Some(version) => self.walk(s, i, op, version),
                    None => s.threads[i].pc = Pc::FindParts,
                }
            }
            Pc::FindParts => {
                let version = Self::read_cell(s, i);
                self.walk(s, i, op, version);
            }
            Pc::TakeHeld => {
                self.take_held(s, i, op);
                s.threads[i].pc = Pc::Walk;
            }
            Pc::Flushed if self.awaits_use(s, i) => return None,
            Pc::KeepDirty => {
                let gfn = s.threads[i].gfn;
                self.keep_dirty(s, Span::new(gfn, gfn + 1));
                s.threads[i].pc = Pc::EditKept;
            }
            Pc::EditKept => {
                let Thread { gfn, walk: Walk { level, word, .. }, .. } = s.threads[i];
                if s.shared.load(s.threads[i].node(), level, gfn) == word {
                    self.edit_entry(s, i, op);
                } else {
                    s.threads[i].pc = Pc::EditEntry;
                }
            }
            Pc::Tell => return self.tell_of_a_page(s, i, op),
            Pc::Told => {
                if self.bug == Some(Bug::UnlockedBeforeFlush) {
                    s.shared.locked = NONE;
                }
                s.threads[i].change.telling += 1;
                s.threads[i].change.again = false;
                s.threads[i].pc = Pc::Tell;
            }
            Pc::EditEntry => self.edit_entry(s, i, op),
            Pc::SplitPart => return self.split_part(s, i),
            Pc::EditCas => {
                let Thread { gfn, walk: Walk { level, word, .. }, .. } = s.threads[i];
                let now = s.shared.load(s.threads[i].node(), level, gfn);
                s.threads[i].pc = match now {
                    Word::Table(_) if now != word => Pc::CursorNext,
                    _ => Pc::EditEntry,
                };
                if now == word {
                    self.edit_entry(s, i, op);
                }
            }
            Pc::CursorNext => {
                // A second load of an unchanged link.
                let (gfn, level) = (s.threads[i].gfn, s.threads[i].walk.level);
                match s.shared.load(s.threads[i].node(), level, gfn) {
                    Word::Table(child) => {
                        down(s, i, child);
                        s.threads[i].pc = Pc::EditEntry;
                    }
                    _ => self.next(s, i, op),
                }
            }
            Pc::Rest => {
                let (gfn, span) = (s.threads[i].gfn, s.threads[i].walk.span);
                let here = match op {
                    Op::Invalidate { range: Range::Hvas(hvas), .. }
                        if self.bug != Some(Bug::YieldKeepsSlots) =>
                    {
                        over_hvas(s.shared.memslots, hvas)
                    }
                    _ => span,
                };
                let rest = Span::new(here.start.max(gfn), here.end);
                if rest.is_empty() {
                    self.settle(s, i, op);
                } else {
                    s.enter(i, rest.start);
                    s.threads[i].walk.span = rest;
                    s.threads[i].pc = Pc::EditEntry;
                }
            }
            Pc::Flushed => {
                s.shared.slots[i].unflushed = false;
                let commits = matches!(op, Op::Commit { .. });
                s.threads[i].pc = if commits { self.first_of_publication(s, i) } else { Pc::HostChanges };
            }
            Pc::HostChanges => self.host_changes(s, i, op),
            _ => unreachable!("{:?} in an invalidation", s.threads[i].pc),
        }
        Some(())
    }

    /// Begins the walk at the first frame.
    fn walk(&self, s: &mut State, i: usize, op: Op, version: Version) {
        let span = match op {
            Op::Invalidate { range: Range::Gfns(gfns), .. } => gfns,
            Op::Invalidate { range: Range::Hvas(hvas), .. } => over_hvas(version, hvas),
            Op::Commit { gfns, .. } if s.threads[i].commit.takes => gfns,
            Op::ZapAll => Span::new(0, PAGES),
            _ => Span::default(),
        };
        if span.is_empty() {
            self.settle(s, i, op);
        } else {
            s.enter(i, span.start);
            s.threads[i].walk.span = span;
            s.threads[i].pc = Pc::EditEntry;
        }
    }

    /// `Pages::changed`: under the lock of a page the host replaces the page, if it is still read-only, and reports
    /// that.
    fn tell_of_a_page(&self, s: &mut State, i: usize, op: Op) -> Option<()> {
        let Op::Invalidate { range: Range::Hvas(hvas), .. } = op else { unreachable!() };
        let page = if s.threads[i].change.telling == NONE { hvas.start } else { s.threads[i].change.telling };
        s.threads[i].change.telling = page;
        if page == hvas.end {
            s.threads[i].change.telling = NONE;
            self.settle(s, i, op);
            return Some(());
        }
        if ![i as u8, NONE].contains(&s.shared.locked) {
            return None;
        }
        if s.shared.writable[page as usize] {
            s.threads[i].pc = Pc::Told;
            return Some(());
        }
        s.shared.locked = i as u8;
        s.shared.replace(page);
        s.threads[i].change.replaced[page as usize] = s.shared.frames[page as usize];
        self.take_held(s, i, op);
        let frames = over_hvas(s.shared.memslots, Span::new(page, page + 1));
        if frames.is_empty() {
            s.threads[i].pc = Pc::Told;
        } else {
            s.enter(i, frames.start);
            s.threads[i].walk.span = frames;
            s.threads[i].pc = Pc::EditEntry;
        }
        Some(())
    }

    fn edit_entry(&self, s: &mut State, i: usize, op: Op) {
        let Thread { gfn, walk: Walk { level, span, .. }, change: Change { number, .. }, .. } = s.threads[i];
        let covers = Shared::extent(level, gfn);
        let whole = span.covers(covers);
        let word = s.shared.load(s.threads[i].node(), level, gfn);
        let why = match op {
            Op::Invalidate { why, .. } => why,
            _ => Why::Unmap,
        };
        let hole = Word::Hole(number);
        let changes = match word {
            Word::Leaf(leaf) if why == Why::ChangePte => whole && !leaf.write && !leaf.host_write,
            Word::Leaf(_) => !why.withdraws() || !whole,
            _ => false,
        };
        if changes && s.shared.keeps(word, level) && s.threads[i].pc != Pc::EditKept {
            if self.bug == Some(Bug::KeptLate) {
                s.threads[i].log.late |= 1 << gfn;
            } else {
                s.threads[i].walk.word = word;
                s.threads[i].pc = Pc::KeepDirty;
                return;
            }
        }
        let emptied = s.threads[i].commit.emptied || !s.shared.keeps_tables();
        let unhooks = emptied || self.bug == Some(Bug::UnhookTakesDirty);
        let slow = self.bug == Some(Bug::CursorForgetsLostCas) && s.threads[i].pc == Pc::EditEntry;
        if slow && level > 0 && whole && !why.unhooks() && !matches!(word, Word::Table(_)) {
            // Load and CAS are separate steps.
            s.threads[i].walk.word = word;
            s.threads[i].pc = Pc::EditCas;
            return;
        }
        match word {
            Word::Table(child) if whole && why.unhooks() && unhooks && !s.threads[i].change.again => {
                s.cas(i, word, hole);
                s.threads[i].change.took = true;
                s.threads[i].flush.unlinked |= 1 << child;
                if self.bug != Some(Bug::UnhookWithoutFlush) {
                    s.threads[i].owe(covers);
                }
            }
            Word::Table(_) if whole && self.bug == Some(Bug::CursorLooksAgain) => {
                s.threads[i].pc = Pc::CursorNext;
                return;
            }
            Word::Table(child) => return down(s, i, child),
            Word::Leaf(leaf) if !whole && why.withdraws() && !leaf.write && !leaf.host_write => {
                s.adopt(i, Span::new(gfn, span.end.min(covers.end)));
            }
            Word::Leaf(_) if !whole && self.splits => {
                s.threads[i].walk.word = word;
                s.threads[i].pc = Pc::SplitPart;
                return;
            }
            Word::Leaf(_) | Word::Frozen(_) if !whole && !s.shared.slots[i].gfns.covers(covers) => {
                s.threads[i].pc = Pc::WidenSlot;
                return;
            }
            Word::Leaf(leaf) if whole && why.withdraws() => {
                if leaf.write || leaf.host_write {
                    s.cas(i, word, Word::Leaf(Leaf { write: false, host_write: false, ..leaf }));
                    s.threads[i].owe(covers);
                } else if self.bug != Some(Bug::NoAdoptionAtLeaves) {
                    s.adopt(i, covers);
                }
            }
            Word::Leaf(leaf) if whole && why == Why::ChangePte && !leaf.write && !leaf.host_write => {
                let page = s.threads[i].change.telling;
                let pfn = frame(s.shared.frames[page as usize], page);
                let write = self.bug == Some(Bug::ReplacedWritable);
                s.cas(i, word, Word::Leaf(Leaf { pfn, write, host_write: false, dirty: false }));
                if self.bug != Some(Bug::ReplacedWithoutFlush) {
                    s.threads[i].owe(covers);
                }
            }
            Word::Leaf(leaf) => {
                s.cas(i, word, hole);
                s.threads[i].change.took = true;
                s.shared.book(level, -1);
                s.shared.tell(leaf, level);
                s.threads[i].owe(covers);
            }
            Word::Frozen(_) => {
                s.cas(i, word, hole);
                s.threads[i].change.took = true;
                // The frozen leaf may be dirty, and its owner may report that too late: after this host's change.
                if self.bug != Some(Bug::FrozenTakenAsClean) {
                    s.shared.tell_all(covers);
                }
                if self.bug != Some(Bug::FrozenWithoutFlush) {
                    s.threads[i].owe(covers);
                }
            }
            Word::Hole(version) | Word::Mmio(version) => {
                if self.edit_hole(s, i, why, version) {
                    return;
                }
            }
        }
        self.next(s, i, op);
    }

    /// Numbers a hole. Returns whether to edit the entry once more.
    fn edit_hole(&self, s: &mut State, i: usize, why: Why, version: u8) -> bool {
        let Thread { gfn, walk: Walk { level, span, .. }, change: Change { number, .. }, .. } = s.threads[i];
        if s.unflushed(i, version) && self.bug != Some(Bug::NoAdoption) {
            let covers = Shared::extent(level, gfn);
            s.threads[i].owe(covers);
            let narrow = s.shared.slots[i].lines & WIDE == 0;
            if narrow && !span.covers(covers) && self.bug != Some(Bug::AdoptedNarrowly) {
                s.threads[i].pc = Pc::GoWide;
                return true;
            }
        }
        let skip = match self.bug {
            Some(Bug::HoleNotNumbered) => level == 0,
            Some(Bug::ToldHoleNotNumbered) => why == Why::ChangePte,
            Some(Bug::UpperHoleNotNumbered) => level > 0,
            _ => false,
        };
        if version < number && !skip {
            let word = s.shared.load(s.threads[i].node(), level, gfn);
            s.cas(i, word, Word::Hole(number));
        }
        false
    }

    /// Splits a large leaf of which a part changes; the walk continues in the new table. `None`: no memory for the
    /// table.
    fn split_part(&self, s: &mut State, i: usize) -> Option<()> {
        let (gfn, word) = (s.threads[i].gfn, s.threads[i].walk.word);
        let Word::Leaf(leaf) = word else { unreachable!() };
        let part = usize::from(gfn & 1);
        let mut halves = [0, 1].map(|half| Leaf { pfn: leaf.pfn + half, ..leaf });
        if self.bug == Some(Bug::NeighbourCleaned) {
            halves[1 - part].dirty = false;
        }
        let mut words = halves.map(Word::Leaf);
        if self.bug == Some(Bug::NeighbourLeftOut) {
            words[1 - part] = Word::Hole(0);
        }
        let table = s.shared.new_node(0, words)?;
        if s.cas(i, word, Word::Table(table)) || self.bug == Some(Bug::LostSplitBelieved) {
            down(s, i, table);
        } else {
            s.shared.free_node(table);
        }
        s.threads[i].pc = Pc::EditEntry;
        Some(())
    }

    /// Moves to the next entry, out of every table whose last entry was visited.
    fn next(&self, s: &mut State, i: usize, op: Op) {
        let top = s.shared.top();
        let yields = matches!(op, Op::Invalidate { yields: true, .. });
        let thread = &mut s.threads[i];
        thread.gfn = Shared::extent(thread.walk.level, thread.gfn).end;
        if thread.gfn >= thread.walk.span.end {
            self.settle(s, i, op);
            return;
        }
        if yields {
            s.leave(i);
            s.threads[i].pc = Pc::Rest;
            return;
        }
        while thread.walk.level < top && thread.gfn & ((2 << thread.walk.level) - 1) == 0 {
            thread.walk.path[thread.walk.level as usize] = NONE;
            thread.walk.level += 1;
        }
        thread.pc = Pc::EditEntry;
    }
}

/// Descends through a link to the first page of the range below it.
fn down(s: &mut State, i: usize, child: u8) {
    let thread = &mut s.threads[i];
    thread.walk.level -= 1;
    thread.walk.path[thread.walk.level as usize] = child;
    thread.gfn = thread.gfn.max(thread.walk.span.start);
}
