//! Changes of the mappings. Each claims its pages, publishes a version, waits for faults with the old version, edits
//! inside a notification, and releases the pages.

use super::shared::Mapped;
use super::{Op, PAGES, Pc, Primary, State};
use crate::bug::Bug;
use crate::state::Bad;

impl Primary {
    /// One step of thread `i`, which changes the mappings. `None`: it waits.
    pub(super) fn change(&self, s: &mut State, i: usize, op: Op) -> Option<()> {
        let at = usize::from(s.threads[i].page);
        let (first, last) = match op {
            Op::Mmap(page) | Op::Munmap(page) | Op::Mprotect(page) => (page, page),
            Op::Store(_) | Op::Load(_) | Op::Write(_) | Op::Evict(_) | Op::EvictChild(_) => return None,
            Op::Fork => (0, PAGES as u8 - 1),
        };
        let all = usize::from(first)..=usize::from(last);
        let unkept = self.makes(Bug::RangeNotKept);
        match s.threads[i].pc {
            Pc::Start => {
                if s.shared.pages[all.clone()].iter().any(|page| page.claimed.is_some()) && !unkept {
                    return None;
                }
                s.shared.pages[all].iter_mut().for_each(|page| page.claimed = Some(i as u8));
                s.threads[i].page = first;
                s.threads[i].pc = Pc::Publish;
            }
            Pc::Publish => self.publish(s, i, op),
            // One page lock after the other.
            Pc::Outlast => {
                if s.shared.pages[at].locked.is_some() && !self.makes(Bug::VersionNotOutlasted) {
                    return None;
                }
                Self::next(s, i, (first, last), Pc::Outlast, Pc::Retire);
            }
            // Replaced parts of a version are freed after every lock was free once. A change of all pages has seen
            // that.
            Pc::Retire => {
                if last > first || self.makes(Bug::VersionFreedEarly) {
                    s.shared.freed_versions = s.threads[i].published;
                }
                s.threads[i].pc = Pc::Begin;
            }
            Pc::Begin => {
                s.shared.pages[at].begun += 1;
                s.shared.pages[at].active += 1;
                let late = match op {
                    Op::Munmap(_) => Bug::FreedBeforeTlb,
                    Op::Mprotect(_) => Bug::ProtectedBeforeTlb,
                    _ => Bug::ForkedBeforeTlb,
                };
                if !self.makes(late) {
                    Self::flush(s, at, matches!(op, Op::Munmap(_)));
                }
                s.threads[i].pc = Pc::Sweep;
            }
            Pc::Sweep => {
                // Without a linked table there is no entry.
                if s.shared.pages[at].linked {
                    if s.shared.pages[at].locked.is_some() {
                        return None;
                    }
                    Self::edit(s, i, op, at);
                }
                s.threads[i].pc = Pc::Flush;
            }
            Pc::Flush => {
                s.shared.pages[at].active -= 1;
                s.threads[i].pc = Pc::Free;
            }
            Pc::Free => {
                if let Some(frame) = s.threads[i].taken.take() {
                    s.shared.freed |= 1 << frame;
                }
                Self::next(s, i, (first, last), Pc::Begin, Pc::PublishEnd);
            }
            Pc::PublishEnd => {
                let page = &mut s.shared.pages[at];
                match op {
                    Op::Munmap(_) if page.mapped == Mapped::Gone => page.mapped = Mapped::Nothing,
                    Op::Mprotect(_) => {
                        page.protected = matches!(page.mapped, Mapped::Here { writable: false, .. });
                    }
                    Op::Fork => {
                        s.shared.forks = s.shared.forks.saturating_sub(1);
                        s.shared.forked = true;
                    }
                    _ => {}
                }
                s.threads[i].pc = Pc::Unclaim;
            }
            _ => {
                let mine = |page: &&mut super::shared::Page| page.claimed == Some(i as u8);
                s.shared.pages.iter_mut().filter(mine).for_each(|page| page.claimed = None);
                s.done(i);
            }
        }
        Some(())
    }

    /// Continues with the next page at `again`; after the last one with `then`.
    fn next(s: &mut State, i: usize, (first, last): (u8, u8), again: Pc, then: Pc) {
        let thread = &mut s.threads[i];
        (thread.page, thread.pc) = if thread.page < last { (thread.page + 1, again) } else { (first, then) };
    }

    fn publish(&self, s: &mut State, i: usize, op: Op) {
        let at = usize::from(s.threads[i].page);
        let number = s.shared.mappings;
        let page = &mut s.shared.pages[at];
        let there = matches!(page.mapped, Mapped::Here { .. });
        let mut pc = Pc::Outlast;
        match op {
            Op::Munmap(_) if there => {
                page.mapped = if self.makes(Bug::RangeNotKept) { Mapped::Nothing } else { Mapped::Gone };
            }
            Op::Mmap(_) if page.mapped == Mapped::Nothing => {
                page.mapped = Mapped::Here { number, writable: true };
                page.protected = false;
                s.shared.mappings += 1;
                pc = Pc::Unclaim;
            }
            Op::Mprotect(_) if there => {
                if let Mapped::Here { number, .. } = page.mapped {
                    page.mapped = Mapped::Here { number, writable: false };
                }
            }
            Op::Fork => s.shared.forks += u8::from(!self.makes(Bug::ForkUnshown)),
            _ => pc = Pc::Unclaim,
        }
        s.shared.version += 1;
        s.threads[i].published = s.shared.version;
        s.threads[i].pc = pc;
    }

    /// Removes translations of the page, or their write permission.
    fn flush(s: &mut State, at: usize, gone: bool) {
        for tlb in &mut s.shared.tlb {
            tlb[at] = tlb[at].filter(|_| !gone).map(|(frame, _)| (frame, false));
        }
    }

    /// Edits the entry, under its page lock.
    fn edit(s: &mut State, i: usize, op: Op, at: usize) {
        let page = &mut s.shared.pages[at];
        if op == Op::Fork {
            page.child_copy = page.copy.map(|(copy, _)| copy);
            page.forked = page.child_copy.unwrap_or(0);
        }
        let Some((frame, _, number)) = page.entry else { return };
        match op {
            Op::Munmap(_) => {
                page.entry = None;
                // A newer mapping than the one that is removed.
                if matches!(page.mapped, Mapped::Here { .. }) {
                    s.shared.bad = Some(Bad::StoreLost);
                }
                s.threads[i].taken = Some(frame).filter(|_| page.child != Some(frame));
            }
            Op::Fork => {
                page.entry = Some((frame, false, number));
                page.child = Some(frame);
                page.forked = s.shared.contents[usize::from(frame)];
            }
            _ => page.entry = Some((frame, false, number)),
        }
    }
}
