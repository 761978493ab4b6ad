//! The parts that every invalidation has: it settles, it flushes, the host changes.

use crate::bug::Bug;
use crate::follow::Follows;
use crate::scenario::Scenario;
use crate::state::{NONE, Op, Pc, Range, Span, State, Why, Word, bits, over_hvas};

/// The parts of an invalidation that every kind has: its number, its flush, its end.
impl Scenario {
    /// Ends the walk: pays the debt next.
    pub(crate) fn settle(&self, s: &mut State, i: usize, op: Op) {
        s.leave(i);
        let thread = &mut s.threads[i];
        (thread.walk.level, thread.gfn, thread.walk.word, thread.walk.span) =
            (0, 0, Word::Hole(0), Span::default());
        (thread.fault.epoch, thread.fault.hva, thread.fault.page, thread.walk.thawed) = (0, NONE, None, None);
        let told = thread.pc != Pc::Tell && matches!(op, Op::Invalidate { why: Why::ChangePte, .. });
        let pages =
            if told { Span::new(thread.change.telling, thread.change.telling + 1) } else { Span::default() };
        if matches!(op, Op::Invalidate { .. }) && thread.pc != Pc::Tell {
            match self.follows(s, i) {
                Follows::No => {}
                Follows::Repeat => {
                    s.threads[i].pc = Pc::Walk;
                    let frames = over_hvas(s.shared.memslots, pages);
                    if !frames.is_empty() {
                        s.enter(i, frames.start);
                        (s.threads[i].walk.span, s.threads[i].pc) = (frames, Pc::EditEntry);
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
        if unhooks && !thread.commit.emptied && !thread.change.again && s.shared.keeps_tables() {
            // Once more, for the tables on the path.
            (thread.commit.emptied, thread.pc) = (true, Pc::Walk);
            return;
        }
        match op {
            Op::Invalidate { range: Range::Gfns(pages) | Range::Hvas(pages), why: Why::Leaked, .. } => {
                self.leak(s, i, pages);
            }
            Op::Invalidate { range: Range::Hvas(pages), why: Why::Park, .. } => Self::park(s, pages),
            _ => {}
        }
        s.shared.log.marks |= std::mem::take(&mut s.threads[i].log.late);
        if self.bug == Some(Bug::FreedBeforeFlush) {
            s.shared.grace.queue |= std::mem::take(&mut s.threads[i].flush.unlinked);
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
        if s.threads[i].pc == self.first_of_flush(&s.shared) && s.threads[i].flush.owed.is_empty() {
            self.flushed(s, i, op);
        }
    }

    /// Leaks the debt: the host continues and changes its entries. The end of the invalidation pays the debt.
    fn leak(&self, s: &mut State, i: usize, pages: Span) {
        for page in pages.start..pages.end {
            if !s.shared.writable[page as usize] {
                s.shared.replace(page);
                s.threads[i].change.replaced[page as usize] = s.shared.frames[page as usize];
            }
        }
        if self.bug == Some(Bug::LeakedUnpaid) {
            s.threads[i].flush.owed = Span::default();
        }
    }

    /// After the flush: the hardware has no link to the unhooked tables.
    pub(crate) fn flushed(&self, s: &mut State, i: usize, op: Op) {
        if !matches!(self.bug, Some(Bug::DirtyReadBeforeFlush | Bug::DirtyToldAfterHost)) {
            self.tell(s, i);
        }
        s.shared.grace.queue |= s.threads[i].flush.unlinked;
        (s.threads[i].flush.unlinked, s.threads[i].flush.owed) = (0, Span::default());
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
        for node in bits(s.threads[i].flush.unlinked) {
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
                    *kept = s.threads[i].change.replaced[page as usize].max(*kept);
                } else {
                    s.shared.take_back(page);
                }
            }
        }
        s.threads[i].pc = match self.bug {
            Some(Bug::HostBeforeFlush) if s.threads[i].flush.owed.is_empty() => self.first_of_end(s, i),
            Some(Bug::HostBeforeFlush) => self.first_of_flush(&s.shared),
            Some(Bug::EndBeforeFlush) => {
                s.done(i);
                return;
            }
            _ => self.first_of_end(s, i),
        };
    }
}
