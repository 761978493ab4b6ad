//! The steps of a fault, of an invalidation by the host, and of a flush by L1.

use super::{BOTH, Parts, Pc, Small, State, TWO, Word};
use crate::bug::Bug;

impl Parts {
    /// An access of L2.
    pub(super) fn access(&self, s: &mut State, i: usize, part: u8) {
        let (me, p) = (s.threads[i], usize::from(part));
        let t = usize::from(me.t);
        let next = match me.pc {
            Pc::Start => {
                if matches!(s.upper, Word::Frozen(_) | Word::Condemned(_)) {
                    return;
                }
                let thread = &mut s.threads[i];
                (thread.number, thread.line, thread.met) = (s.number, s.line, Some(s.upper));
                Pc::ReadTables
            }
            Pc::ReadTables => {
                let covers =
                    |parts: u8| s.listed.iter().flatten().any(|&(page, of)| page == s.t && of & parts != 0);
                if covers(1 << part) {
                    return s.again(i);
                }
                s.threads[i].is_large = me.met == Some(Word::Hole) && !covers(BOTH);
                (s.threads[i].t, s.threads[i].region) = (s.t, s.lines[usize::from(s.t)][p]);
                Pc::Lookup
            }
            Pc::Lookup => {
                s.threads[i].frame = s.host[t][p];
                s.threads[i].is_large &= s.host[t] == [0, 1];
                Pc::Hint
            }
            Pc::Hint => {
                if me.is_large {
                    s.large_hints[t] = true;
                } else {
                    s.small_hints[t][p] = true;
                }
                match me.met {
                    Some(Word::Leaf { .. }) => Pc::Met,
                    Some(Word::Table) if s.small[p].is_some() => Pc::Met,
                    _ if me.is_large => Pc::Freeze,
                    _ => Pc::Small,
                }
            }
            Pc::Met => {
                let stands = s.lines[t][p] == me.region;
                let (serves, is_there) = match (s.upper, s.small[p]) {
                    (Word::Leaf { .. }, _) => (s.row == me.t && me.frame == part, true),
                    (Word::Table, Some(small)) => (small.row == me.t && small.frame == me.frame, true),
                    _ => (false, false),
                };
                if stands && serves {
                    return s.done(i);
                }
                if stands && is_there {
                    s.noted = true;
                    match s.upper {
                        Word::Table => s.small[p] = None,
                        _ => s.upper = Word::Hole,
                    }
                }
                return s.again(i);
            }
            Pc::Freeze => {
                if s.upper != Word::Hole {
                    return s.again(i);
                }
                s.upper = Word::Frozen(i as u8);
                Pc::Recheck
            }
            Pc::Recheck => {
                let host = if self.has(Bug::WideUnchecked) {
                    s.lines[t][p] == me.region
                } else {
                    s.number == me.number
                };
                if !host || s.line != me.line {
                    s.upper = Word::Hole;
                    return s.again(i);
                }
                Pc::Row
            }
            Pc::Row => {
                s.row = me.t;
                Pc::Thaw
            }
            Pc::Thaw => {
                if s.upper == Word::Frozen(i as u8) {
                    s.upper = Word::Leaf { page: me.t };
                    return s.done(i);
                }
                s.upper = Word::Hole;
                return s.again(i);
            }
            _ => return s.install_small(i, p),
        };
        s.threads[i].pc = next;
    }

    /// The host moves parts of a page.
    pub(super) fn moves(&self, s: &mut State, i: usize, (page, parts): (u8, u8)) {
        let (me, g) = (s.threads[i], usize::from(page));
        let covered = (0..TWO as u8).filter(|part| parts >> part & 1 != 0);
        let notes = !self.has(Bug::SplitUnnoted);
        let next = match me.pc {
            Pc::Start => {
                s.number += 1;
                covered.for_each(|part| s.lines[g][usize::from(part)] = s.number);
                s.listed[i] = Some((page, parts));
                Pc::Head
            }
            Pc::Head => match { covered }.find(|&part| part >= me.part) {
                None => Pc::Kick,
                Some(part) => {
                    s.threads[i].part = part;
                    if s.large_hints[g] || s.small_hints[g][usize::from(part)] {
                        s.threads[i].owes = true;
                        Pc::Load
                    } else {
                        s.threads[i].part += 1;
                        Pc::Head
                    }
                }
            },
            Pc::Load => {
                let part = if self.has(Bug::PartByStart) { 0 } else { usize::from(me.part) };
                match s.upper {
                    Word::Leaf { .. } => {
                        s.threads[i].met = Some(s.upper);
                        s.under_way += u8::from(notes || parts == BOTH);
                        if parts == BOTH { Pc::Zap } else { Pc::SplitFreeze }
                    }
                    found => {
                        if let Word::Frozen(owner) = found {
                            s.upper = Word::Condemned(owner);
                        } else if found == Word::Table && s.small[part].take().is_some() {
                            s.noted = true;
                        }
                        s.threads[i].part += 1;
                        Pc::Head
                    }
                }
            }
            Pc::Zap => {
                if me.met.is_some_and(|met| met.same(s.upper)) {
                    s.upper = Word::Hole;
                }
                s.drops();
                Pc::Load
            }
            Pc::SplitFreeze if self.has(Bug::SplitUnfrozen) => Pc::SplitRow,
            Pc::SplitFreeze => {
                if let Word::Leaf { .. } = s.upper {
                    // The checker keeps its page.
                    (s.threads[i].met, s.upper) = (Some(s.upper), Word::Frozen(i as u8));
                    Pc::SplitRow
                } else {
                    s.under_way -= u8::from(notes);
                    Pc::Load
                }
            }
            Pc::SplitRow => {
                s.threads[i].row = s.row;
                Pc::SplitLink
            }
            Pc::SplitLink => {
                self.link(s, i);
                if notes {
                    s.drops();
                }
                Pc::Load
            }
            Pc::Kick => {
                if me.owes {
                    s.tlb = 0;
                }
                Pc::Forget
            }
            Pc::Forget => {
                covered.for_each(|part| s.small_hints[g][usize::from(part)] = false);
                if parts == BOTH || self.has(Bug::HintGoesWithPart) {
                    s.large_hints[g] = false;
                }
                Pc::Change
            }
            _ => {
                covered.for_each(|part| s.host[g][usize::from(part)] = 2 + 2 * page + part);
                s.listed[i] = None;
                return s.done(i);
            }
        };
        s.threads[i].pc = next;
    }

    /// Replaces the leaf that the thread has frozen by a table, or by a hole if it was condemned.
    fn link(&self, s: &mut State, i: usize) {
        let me = s.threads[i];
        let leaf = match s.upper {
            Word::Frozen(owner) if usize::from(owner) == i => me.met,
            Word::Leaf { .. } if self.has(Bug::SplitUnfrozen) => Some(s.upper),
            _ => None,
        };
        if let Some(Word::Leaf { page }) = leaf {
            let small = |frame| Some(Small { frame, page, row: me.row });
            (s.upper, s.small) = (Word::Table, [small(0), small(1)]);
        } else if s.upper == Word::Condemned(i as u8) {
            s.upper = Word::Hole;
        }
    }
}

impl State {
    /// Installs a small leaf, if the lines are unchanged.
    fn install_small(&mut self, i: usize, part: usize) {
        let me = self.threads[i];
        if self.upper == Word::Hole {
            (self.upper, self.small) = (Word::Table, [None; TWO]);
        }
        let stands = self.lines[usize::from(me.t)][part] == me.region && self.line == me.line;
        if self.upper == Word::Table && self.small[part].is_none() && stands {
            self.small[part] = Some(Small { frame: me.frame, page: me.t, row: me.t });
            self.done(i);
        } else {
            self.again(i);
        }
    }

    /// L1 flushes: leaves that T has stay.
    pub(super) fn flush(&mut self, i: usize) {
        let next = match self.threads[i].pc {
            Pc::Start => {
                self.line += 1;
                Pc::Look
            }
            Pc::Look => match self.upper {
                Word::Leaf { .. } if self.row != self.t => {
                    self.threads[i].met = Some(self.upper);
                    self.under_way += 1;
                    Pc::Take
                }
                found => {
                    if let Word::Frozen(owner) = found {
                        self.upper = Word::Condemned(owner);
                    }
                    if found == Word::Table {
                        for small in &mut self.small {
                            self.noted |= small.take_if(|small| small.row != self.t).is_some();
                        }
                    }
                    Pc::Settle
                }
            },
            Pc::Take => {
                if self.threads[i].met.is_some_and(|met| met.same(self.upper)) {
                    self.upper = Word::Hole;
                }
                self.drops();
                Pc::Look
            }
            _ => {
                if self.noted || self.under_way > 0 {
                    (self.tlb, self.noted) = (0, false);
                }
                self.allowed = 1 << self.t;
                return self.done(i);
            }
        };
        self.threads[i].pc = next;
    }
}
