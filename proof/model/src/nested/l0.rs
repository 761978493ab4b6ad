//! Operations of L0: it takes pages away, moves memslots, logs.

use super::program::{Nested, Op};
use super::shadow::{EPOCH, Place, SHADOW, THREADS, TWO, Word};
use super::steps::{Flush, L1, Pc, State};
use crate::bug::Bug;

impl Nested {
    /// Returns the frames of L1 that thread `i`'s invalidation visits, a bit each.
    pub(super) fn parts(s: &State, i: usize) -> u8 {
        let Place { hvas, g1s, .. } = s.shared.places[i];
        (0..TWO as u8)
            .filter(|&g1| hvas >> s.shared.slots[g1 as usize] & 1 != 0)
            .fold(g1s, |all, g1| all | 1 << g1)
    }

    /// Returns the next frame from `from` on whose head must be read.
    fn next_part(parts: u8, from: u8) -> Option<u8> {
        (from..TWO as u8).find(|g1| parts >> g1 & 1 != 0)
    }

    /// Reads the head of the thread's current frame, and then the next ones.
    fn head(&self, s: &mut State, i: usize, parts: u8) {
        let Some(g1) = Self::next_part(parts, s.threads[i].g1) else {
            s.threads[i].g1 = parts.trailing_zeros() as u8;
            s.threads[i].pc = Pc::Settle;
            return;
        };
        let number = s.shared.places[i].number;
        s.threads[i].g1 = g1;
        s.threads[i].pc = Pc::Load;
        if s.shared.chunk && self.has(Bug::ChunkAnswers) {
            s.shared.chunk_version = s.shared.chunk_version.max(number);
        }
        if s.shared.chunk && s.shared.heads[g1 as usize] {
            s.threads[i].fresh |= 1 << g1;
            // Before the walk, so that threads that come after its edit find the debt.
            s.shared.places[i].reached |= s.shared.places[i].listed && !self.has(Bug::ReachedLate);
        } else {
            s.threads[i].g1 += 1;
            s.threads[i].pc = Pc::Head;
        }
    }

    /// An invalidation by the host, or by a transaction.
    pub(super) fn invalidate(&self, s: &mut State, i: usize, op: Op) {
        match s.threads[i].pc {
            Pc::Start => {
                let mut place = Place { listed: true, unflushed: true, ..Place::default() };
                let lines: &[usize] = match op {
                    Op::Host { hva, .. } => {
                        place.hvas = 1 << hva;
                        &[hva as usize]
                    }
                    Op::Move { g1, .. } => {
                        place.g1s = 1 << g1;
                        &[EPOCH]
                    }
                    _ => {
                        (place.tables, place.shadow) = (true, true);
                        &[EPOCH, SHADOW]
                    }
                };
                place.number = s.shared.announce(lines.iter().copied());
                s.shared.places[i] = place;
                s.threads[i].pc = match op {
                    Op::MoveTables { .. } if self.has(Bug::SlotMovedUnderTables) => Pc::Settle,
                    Op::MoveTables { .. } => Pc::Load,
                    _ => Pc::Canonical,
                };
                s.threads[i].flush = Flush::Zap;
            }
            Pc::Canonical => {
                let number = s.shared.places[i].number;
                let others = (0..THREADS).any(|other| {
                    let place = s.shared.places[other];
                    other != i && place.listed && place.unflushed
                });
                let parts = Self::parts(s, i);
                for g1 in (0..TWO as u8).filter(|g1| parts >> g1 & 1 != 0) {
                    let word = &mut s.shared.canonical[g1 as usize];
                    let leaf = matches!(word, Word::Leaf { .. });
                    // If only stores are forbidden, L1's own read-only mappings stay.
                    if !matches!(op, Op::Host { protect: true, .. }) {
                        s.threads[i].owes |= if leaf { L1 } else { 0 };
                        *word = Word::Hole(number);
                    }
                    s.threads[i].owes |= if others { L1 } else { 0 };
                }
                s.threads[i].pc = Pc::Head;
            }
            Pc::Head if matches!(op, Op::MoveTables { .. }) => s.threads[i].pc = Pc::Settle,
            Pc::Head => self.head(s, i, Self::parts(s, i)),
            Pc::Settle => {
                if self.has(Bug::RemovedBeforeFlush) {
                    self.remove(s, i);
                }
                self.settle(s, i);
            }
            Pc::Kick(vcpu) => self.kick(s, i, vcpu),
            Pc::Remove => {
                self.remove(s, i);
                s.threads[i].pc = Pc::Change;
            }
            Pc::Change => {
                match op {
                    Op::Host { hva, protect: true } => s.shared.writable[hva as usize] = false,
                    Op::Host { hva, .. } => {
                        s.shared.versions[hva as usize] += 1;
                        s.shared.writable[hva as usize] = true;
                    }
                    Op::Move { g1, hva } => s.shared.slots[g1 as usize] = hva,
                    Op::MoveTables { t } => {
                        s.shared.store(0, t);
                        // L0 owes the flush, not L1.
                        (0..TWO).for_each(|vcpu| s.shared.forgets_t(vcpu, 0));
                    }
                    op => unreachable!("{op:?} changes nothing"),
                }
                s.threads[i].pc = Pc::End;
            }
            Pc::End => {
                s.shared.places[i] = Place::default();
                if !matches!(op, Op::Host { .. }) {
                    s.shared.announce([EPOCH]);
                }
                s.done(i);
            }
            _ => self.visit(s, i, op),
        }
    }

    /// Begins or harvests a log, without a number. `None`: it waits.
    pub(super) fn log(&self, s: &mut State, i: usize, op: Op) -> Option<()> {
        let me = s.threads[i];
        match me.pc {
            Pc::Start if op == Op::BeginLog => {
                s.shared.logs = true;
                for (other, thread) in s.threads.iter_mut().enumerate() {
                    let in_section = self.op(thread, other) != Some(Op::Reclaim);
                    thread.awaited = other != i && thread.pc != Pc::Start && in_section;
                }
                (s.threads[i].taken, s.threads[i].pc) = (3, Pc::Grace);
            }
            Pc::Start => {
                (s.threads[i].taken, s.shared.marks) = (s.shared.marks, 0);
                s.threads[i].pc = Pc::Head;
            }
            Pc::Grace
                if s.threads.iter().any(|thread| thread.awaited) && !self.has(Bug::ShadowLogBeforeGrace) =>
            {
                return None;
            }
            Pc::Grace => s.threads[i].pc = Pc::Head,
            Pc::Head if self.has(Bug::ArmForgetsShadows) => s.threads[i].pc = Pc::Settle,
            Pc::Head => self.head(s, i, me.taken),
            Pc::Settle => self.settle(s, i),
            Pc::Kick(vcpu) => self.kick(s, i, vcpu),
            Pc::Remove if op == Op::BeginLog => {
                s.shared.begun = true;
                s.done(i);
            }
            Pc::Remove => {
                s.shared.unsaved &= !me.taken;
                s.done(i);
            }
            _ => self.visit(s, i, op),
        }
        Some(())
    }
}
