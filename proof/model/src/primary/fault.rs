//! A vCPU stores or loads: by its translation, by one that it fetches, or after the host has brought the page in. And a
//! store by the host's own thread, which needs no translation.

use super::properties::bit;
use super::shared::Mapped;
use super::{Op, Pc, Primary, State};
use crate::bug::Bug;
use crate::state::Bad;

impl Primary {
    /// One step of thread `i`, which stores to `page`, or loads from it. `None`: it waits.
    pub(super) fn access(&self, s: &mut State, i: usize, op: Op, page: u8) -> Option<()> {
        let (at, stores) = (usize::from(page), !matches!(op, Op::Load(_)));
        match s.threads[i].pc {
            Pc::Start => {
                if op == Op::Write(page) {
                    s.threads[i].pc = Pc::Lock;
                    return Some(());
                }
                if let Some((frame, writable)) = s.shared.tlb[i][at]
                    && (writable || !stores)
                {
                    if stores {
                        s.shared.store(at, frame, bit(i, s.threads[i].op));
                    }
                    s.done(i);
                    return Some(());
                }
                if s.shared.pages[at].active > 0 {
                    return None;
                }
                s.threads[i].begun = s.shared.pages[at].begun;
                s.threads[i].pc = Pc::Ask;
            }
            Pc::Ask => match s.shared.pages[at].entry {
                Some((frame, writable, _)) if (writable || !stores) && !s.shared.pages[at].parked => {
                    s.threads[i].told = Some((frame, writable));
                    s.threads[i].pc = Pc::Install;
                }
                _ if self.makes(Bug::MappingBeforeLock) => s.threads[i].pc = Pc::ReadEarly,
                _ => s.threads[i].pc = Pc::Lock,
            },
            Pc::Install => {
                if s.shared.pages[at].begun == s.threads[i].begun {
                    s.shared.tlb[i][at] = s.threads[i].told;
                }
                s.threads[i].pc = Pc::Start;
            }
            Pc::ReadEarly => {
                s.threads[i].read = Some((s.shared.version, s.shared.pages[at].mapped));
                s.threads[i].pc = Pc::Lock;
            }
            Pc::Lock => {
                if s.shared.pages[at].locked.is_some() {
                    return None;
                }
                s.shared.pages[at].locked = Some(i as u8);
                s.threads[i].pc = if s.threads[i].read.is_some() { Pc::Link } else { Pc::Read };
            }
            Pc::Read => {
                s.threads[i].read = Some((s.shared.version, s.shared.pages[at].mapped));
                s.threads[i].pc = Pc::Link;
            }
            Pc::Link => return self.by_mapping(s, i, at, stores),
            Pc::Fill => {
                let number = match s.threads[i].read {
                    Some((version, Mapped::Here { number, .. })) => {
                        Self::look(s, version);
                        number
                    }
                    _ => 0,
                };
                let frame = s.shared.take_frame();
                s.shared.pages[at].entry = Some((frame, true, number));
                s.threads[i].pc = Pc::Unlock;
            }
            // Inside a notification of its own: the flush comes first.
            Pc::Copy => {
                s.shared.tlb.iter_mut().for_each(|tlb| tlb[at] = None);
                s.shared.pages[at].begun += 1;
                if let Some((old, _, number)) = s.shared.pages[at].entry {
                    let frame = s.shared.take_frame();
                    s.shared.contents[usize::from(frame)] = s.shared.contents[usize::from(old)];
                    s.shared.pages[at].entry = Some((frame, true, number));
                }
                s.threads[i].pc = Pc::Unlock;
            }
            _ => {
                s.shared.pages[at].locked = None;
                s.threads[i].read = None;
                s.threads[i].pc = Pc::Start;
                // The host checks under the lock before it releases it.
                if let (Op::Write(_), Some((frame, true, _))) = (op, s.shared.pages[at].entry) {
                    s.shared.store(at, frame, bit(i, s.threads[i].op));
                    s.done(i);
                }
            }
        }
        Some(())
    }

    /// Continues with the page lock held and the mapping read.
    fn by_mapping(&self, s: &mut State, i: usize, at: usize, stores: bool) -> Option<()> {
        let (version, mapped) = s.threads[i].read?;
        Self::look(s, version);
        let shown = s.shared.forks > 0 && matches!(mapped, Mapped::Here { .. });
        let refused = matches!(mapped, Mapped::Nothing | Mapped::Gone | Mapped::Here { writable: false, .. });
        if shown || refused {
            s.shared.pages[at].locked = None;
            s.threads[i].read = None;
            s.threads[i].pc = Pc::Start;
            if refused {
                s.done(i);
            } else {
                // It releases the lock, and checks again.
                s.threads[i].pc = Pc::Lock;
            }
            return Some(());
        }
        if let Some((copy, number)) = s.shared.pages[at].copy {
            s.shared.bring_back(at, copy, number);
        }
        let page = &mut s.shared.pages[at];
        page.parked = false;
        let cached = page.cached.filter(|_| !self.makes(Bug::ShareOverwritten)).map(|(frame, _)| frame);
        match page.entry {
            Some((_, false, _)) if !stores => s.threads[i].pc = Pc::Unlock,
            None if !page.linked => page.linked = true,
            None => s.threads[i].pc = Pc::Fill,
            Some((_, true, _)) => s.threads[i].pc = Pc::Unlock,
            Some((frame, false, number))
                if page.child == Some(frame)
                    || cached == Some(frame)
                    || s.shared.held[usize::from(frame)] > 0 =>
            {
                debug_assert!(number < 8);
                s.threads[i].pc = Pc::Copy;
            }
            Some((frame, false, number)) => {
                page.entry = Some((frame, true, number));
                s.threads[i].pc = Pc::Unlock;
            }
        }
        Some(())
    }

    /// A thread reads a version.
    fn look(s: &mut State, version: u8) {
        if version < s.shared.freed_versions {
            s.shared.bad = Some(Bad::FreedVersion);
        }
    }
}
