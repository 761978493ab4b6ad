//! A thread: its operation, its next step, and the shared parts of all operations: settling, sections and grace
//! periods.

use crate::bug::Bug;
use crate::follow::Follows;
use crate::memo::Memo;
pub use crate::op::{Op, Range, Why};
pub use crate::pc::Pc;
use crate::scenario::Scenario;
use crate::shared::{NONE, PAGES, Shared, Span, Word};
use crate::slots::over_hvas;

/// The host's answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Page {
    pub(crate) pfn: u8,
    pub(crate) write: bool,
    pub(crate) large: bool,
}

/// A thread's own variables.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Thread {
    pub(crate) op: u8,
    pub(crate) pc: Pc,
    /// In a section of the read side.
    pub(crate) inside: bool,
    /// Threads whose sections it waits for.
    pub(crate) waits: u8,
    pub(crate) level: u8,
    pub(crate) gfn: u8,
    pub(crate) path: [u8; 3],
    pub(crate) word: Word,
    /// The epoch and the region's word that a fault read; and its stamp.
    pub(crate) epoch: u8,
    pub(crate) region: u8,
    pub(crate) stamp: u8,
    /// The hole that was newer than its last stamp.
    pub(crate) met: u8,
    /// Places that are still to check; whether it may map the whole region; whether a part of that is covered.
    pub(crate) places: u8,
    pub(crate) large: bool,
    pub(crate) part: bool,
    pub(crate) hva: u8,
    pub(crate) page: Option<Page>,
    /// The number of its invalidation.
    pub(crate) number: u8,
    /// Lines on which it is still to be listed, or announced.
    pub(crate) lines: u8,
    /// It repeats its range.
    pub(crate) again: bool,
    /// It has put a hole in place of something since it last looked for a newer invalidation.
    pub(crate) took: bool,
    /// The range that it walks.
    pub(crate) span: Span,
    /// The page that it reports.
    pub(crate) telling: u8,
    /// The new generations of replaced pages.
    pub(crate) replaced: [u8; PAGES as usize],
    pub(crate) owed: Span,
    pub(crate) unlinked: u8,
    /// It has taken the held frame back.
    pub(crate) took_held: bool,
    /// The region's word and the epoch before the host answered that a page may be stored to. An upgrade may use the
    /// answer while both are unchanged.
    pub(crate) offered: Option<[u8; 2]>,
    /// It is asking the host outside a section.
    pub(crate) asking: bool,
    /// It has frozen an entry, and will thaw it to this.
    pub(crate) thawed: Option<Word>,
    /// The number of its flush; the vCPUs that it has kicked.
    pub(crate) generation: u8,
    pub(crate) kicked: u8,
    /// The version of the slots that it is about to read.
    pub(crate) version: u8,
    /// Its transaction takes something from readers; and it has published before the zap, by a seeded mistake.
    pub(crate) takes: bool,
    pub(crate) withdrawn: bool,
    /// It found its frame tracked before its stamp, by a seeded mistake.
    pub(crate) watched: bool,
    /// Its slot logs.
    pub(crate) logged: bool,
    /// It has read the version in which it will mark; and whether its frame has the slot that logs there.
    pub(crate) known: Option<bool>,
    /// Its tables have no leaves any more.
    pub(crate) emptied: bool,
    /// Pages that had been written when its harvest began; pages taken from the log; pages to arm yet; pages to mark when it is too late.
    pub(crate) before: u8,
    pub(crate) taken: u8,
    pub(crate) arms: u8,
    pub(crate) late: u8,
    /// Its memo, if it has one.
    pub(crate) memo: Option<Memo>,
    /// It is on the quick path of its memo.
    pub(crate) quick: bool,
}

impl Thread {
    pub(crate) fn at(op: u8) -> Self {
        Self {
            op,
            pc: Pc::Start,
            inside: false,
            waits: 0,
            level: 0,
            gfn: 0,
            path: [NONE; 3],
            word: Word::Hole(0),
            epoch: 0,
            region: 0,
            stamp: 0,
            met: 0,
            places: 0,
            large: false,
            part: false,
            hva: NONE,
            page: None,
            number: 0,
            lines: 0,
            again: false,
            took: false,
            span: Span::default(),
            telling: NONE,
            replaced: [0; PAGES as usize],
            owed: Span::default(),
            unlinked: 0,
            took_held: false,
            offered: None,
            asking: false,
            thawed: None,
            generation: 0,
            kicked: 0,
            version: 0,
            takes: false,
            withdrawn: false,
            watched: false,
            logged: false,
            known: None,
            emptied: false,
            before: 0,
            taken: 0,
            arms: 0,
            late: 0,
            memo: None,
            quick: false,
        }
    }

    /// The table that it stands in.
    pub(crate) fn node(&self) -> u8 {
        self.path[self.level as usize]
    }

    pub(crate) fn owe(&mut self, gfns: Span) {
        self.owed = self.owed.hull(gfns);
    }
}

/// The whole state.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// The shared state.
    pub shared: Shared,
    /// The threads.
    pub threads: Vec<Thread>,
}

impl State {
    /// Thread `i` enters a section at the root.
    pub(crate) fn enter(&mut self, i: usize, gfn: u8) {
        let thread = &mut self.threads[i];
        thread.inside = true;
        thread.level = self.shared.top();
        thread.path = [NONE; 3];
        thread.path[thread.level as usize] = self.shared.root;
        thread.gfn = gfn;
    }

    pub(crate) fn leave(&mut self, i: usize) {
        self.threads[i].inside = false;
        self.threads[i].path = [NONE; 3];
        self.shared.grace.sections &= !(1 << i);
        for thread in &mut self.threads {
            thread.waits &= !(1 << i);
        }
    }

    /// Returns the threads in sections.
    pub(crate) fn sections(&self) -> u8 {
        (0..self.threads.len()).filter(|&i| self.threads[i].inside).fold(0, |set, i| set | 1 << i)
    }

    /// Ends the operation.
    pub(crate) fn done(&mut self, i: usize) {
        self.leave(i);
        if self.shared.writer == i as u8 {
            self.shared.writer = NONE;
        }
        self.restart(i, self.threads[i].op + 1);
    }

    /// Restarts the operation.
    pub(crate) fn again(&mut self, i: usize) {
        self.leave(i);
        self.restart(i, self.threads[i].op);
    }

    fn restart(&mut self, i: usize, op: u8) {
        self.threads[i] = Thread { memo: self.threads[i].memo, ..Thread::at(op) };
    }

    /// `entry.cas(old, new)` where thread `i` stands.
    pub(crate) fn cas(&mut self, i: usize, old: Word, new: Word) -> bool {
        let Thread { level, gfn, .. } = self.threads[i];
        let node = self.threads[i].node();
        let won = self.shared.load(node, level, gfn) == old;
        if won {
            self.shared.set(node, level, gfn, new);
        }
        won
    }
}

/// The parts of an invalidation that every kind has: its number, its flush, its end.
impl Scenario {
    /// Ends the walk: pays the debt next.
    pub(crate) fn settle(&self, s: &mut State, i: usize, op: Op) {
        s.leave(i);
        let thread = &mut s.threads[i];
        (thread.level, thread.gfn, thread.word, thread.span) = (0, 0, Word::Hole(0), Span::default());
        (thread.epoch, thread.hva, thread.page, thread.thawed) = (0, NONE, None, None);
        let told = thread.pc != Pc::Tell && matches!(op, Op::Invalidate { why: Why::ChangePte, .. });
        let pages = if told { Span::new(thread.telling, thread.telling + 1) } else { Span::default() };
        if matches!(op, Op::Invalidate { .. }) && thread.pc != Pc::Tell {
            match self.follows(s, i) {
                Follows::No => {}
                Follows::Repeat => {
                    s.threads[i].pc = Pc::Walk;
                    let frames = over_hvas(s.shared.memslots, pages);
                    if !frames.is_empty() {
                        s.enter(i, frames.start);
                        (s.threads[i].span, s.threads[i].pc) = (frames, Pc::EditEntry);
                    }
                    return;
                }
                Follows::Widen => {
                    s.threads[i].pc = Pc::GoWide;
                    return;
                }
            }
        }
        let thread = &mut s.threads[i];
        if told {
            thread.pc = Pc::Told;
            return;
        }
        if op == Op::ZapAll && thread.pc != Pc::Flip {
            thread.pc = Pc::Flip;
            return;
        }
        let unhooks = matches!(op, Op::Invalidate { why, .. } if why.unhooks());
        if unhooks && !thread.emptied && !thread.again && s.shared.keeps_tables() {
            // Once more, for the tables on the path.
            (thread.emptied, thread.pc) = (true, Pc::Walk);
            return;
        }
        match op {
            Op::Invalidate { range: Range::Gfns(pages) | Range::Hvas(pages), why: Why::Leaked, .. } => {
                self.leak(s, i, pages);
            }
            Op::Invalidate { range: Range::Hvas(pages), why: Why::Park, .. } => Self::park(s, pages),
            _ => {}
        }
        s.shared.log.marks |= std::mem::take(&mut s.threads[i].late);
        if self.bug == Some(Bug::FreedBeforeFlush) {
            s.shared.grace.queue |= std::mem::take(&mut s.threads[i].unlinked);
        }
        if self.bug == Some(Bug::DirtyReadBeforeFlush) {
            self.tell(s, i);
        }
        let invalidates = matches!(op, Op::Invalidate { .. });
        s.threads[i].pc = match self.bug {
            Some(Bug::HostBeforeFlush) if invalidates => Pc::HostChanges,
            Some(Bug::EndBeforeFlush) if invalidates => self.first_of_end(s, i),
            _ => self.first_of_flush(&s.shared),
        };
        if s.threads[i].pc == self.first_of_flush(&s.shared) && s.threads[i].owed.is_empty() {
            self.flushed(s, i, op);
        }
    }

    /// Leaks the debt: the host continues and changes its entries. The end of the invalidation pays the debt.
    fn leak(&self, s: &mut State, i: usize, pages: Span) {
        for page in pages.start..pages.end {
            if !s.shared.writable[page as usize] {
                s.shared.replace(page);
                s.threads[i].replaced[page as usize] = s.shared.frames[page as usize];
            }
        }
        if self.bug == Some(Bug::LeakedUnpaid) {
            s.threads[i].owed = Span::default();
        }
    }

    /// After the flush: the hardware has no link to the unhooked tables.
    pub(crate) fn flushed(&self, s: &mut State, i: usize, op: Op) {
        if !matches!(self.bug, Some(Bug::DirtyReadBeforeFlush | Bug::DirtyToldAfterHost)) {
            self.tell(s, i);
        }
        s.shared.grace.queue |= s.threads[i].unlinked;
        (s.threads[i].unlinked, s.threads[i].owed) = (0, Span::default());
        if s.shared.locked == i as u8 {
            s.shared.locked = NONE;
        }
        let late = matches!(op, Op::Invalidate { .. })
            && matches!(self.bug, Some(Bug::HostBeforeFlush | Bug::EndBeforeFlush));
        match self.bug {
            Some(Bug::EndBeforeFlush) if late => s.threads[i].pc = Pc::HostChanges,
            Some(Bug::HostBeforeFlush) if late => s.threads[i].pc = self.first_of_end(s, i),
            Some(Bug::FlipWithoutTicket) if op == Op::ZapAll => s.done(i),
            _ => s.threads[i].pc = Pc::Flushed,
        }
    }

    /// Reports dirty pages of dead tables to the host.
    #[allow(clippy::unused_self, reason = "a step like the others")]
    fn tell(&self, s: &mut State, i: usize) {
        for node in crate::shared::bits(s.threads[i].unlinked) {
            for (leaf, level) in s.shared.below(node).0 {
                s.shared.tell(leaf, level);
            }
        }
    }

    pub(crate) fn host_changes(&self, s: &mut State, i: usize, op: Op) {
        if let Op::Invalidate { range: Range::Gfns(pages) | Range::Hvas(pages), why, .. } = op {
            for page in pages.start..pages.end {
                if why == Why::Track {
                    s.shared.tracked |= 1 << page;
                } else if why == Why::Park {
                    // Its entries have changed page by page.
                } else if why == Why::Protect {
                    s.shared.writable[page as usize] = false;
                } else if matches!(why, Why::ChangePte | Why::Leaked) {
                    let kept = &mut s.shared.kept[page as usize];
                    *kept = s.threads[i].replaced[page as usize].max(*kept);
                } else {
                    s.shared.take_back(page);
                }
            }
        }
        s.threads[i].pc = match self.bug {
            Some(Bug::HostBeforeFlush) if s.threads[i].owed.is_empty() => self.first_of_end(s, i),
            Some(Bug::HostBeforeFlush) => self.first_of_flush(&s.shared),
            Some(Bug::EndBeforeFlush) => {
                s.done(i);
                return;
            }
            _ => self.first_of_end(s, i),
        };
    }
}
