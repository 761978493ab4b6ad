//! The memo of a vCPU, `memo`, and the faults that it shortens, `fault::quick`.
//!
//! Only in scenarios that [remember](Scenario::remembers). A memo has the last slot, and its confirmed state: the
//! epoch, the word of the region, the frames for which they were confirmed, and their leaf table. While the region's
//! word and then the epoch are unchanged, a fault in those frames checks nothing else. While the epoch is unchanged,
//! the table above the leaf table stays linked. If no invalidation is active after that, N covers all frames of the
//! slot while N is unchanged, if the slot has whole leaf tables. With another slot the whole memo is replaced.

use crate::active::Look;
use crate::bug::Bug;
use crate::fault::Access;
use crate::scenario::Scenario;
use crate::state::{
    Confirmed, EPOCH, Leaf, Memo, NONE, Page, Pc, Quiet, Shared, Span, State, Word, frame, region,
};

impl Scenario {
    /// `Memo::slot`: notes the slot of `gfn`.
    pub(crate) fn remember(&self, s: &mut State, i: usize, gfn: u8) {
        let Some(old) = s.threads[i].fault.memo else { return };
        if old.slot.has(gfn) && old.published == s.shared.published {
            return;
        }
        let mut memo = Memo::of(gfn, self.remembers, s.shared.memslots, s.shared.published);
        if self.bug == Some(Bug::SlotChangedStampKept) {
            memo.confirmed = old.confirmed.map(|confirmed| Confirmed {
                frames: if Shared::extent(1, gfn).overlaps(confirmed.frames) {
                    memo.slot
                } else {
                    Span::default()
                },
                ..confirmed
            });
            memo.quiet = old.quiet.filter(|_| memo.has_tables()).map(|quiet| Quiet { table: NONE, ..quiet });
        }
        s.threads[i].fault.memo = Some(memo);
    }

    /// One step of the quick path.
    pub(crate) fn quick(&self, s: &mut State, i: usize, Access { gfn, write, .. }: Access) {
        let thread = s.threads[i];
        let memo = thread.fault.memo.expect("a fault without a memo is not quick");
        let next = match thread.pc {
            Pc::QuickNumber | Pc::QuietWalk | Pc::ReadNumber | Pc::ReadEpoch => match self.quiet(s, i, gfn) {
                Some(next) => next,
                None => return Self::in_full(s, i, gfn),
            },
            Pc::QuickRegion | Pc::QuickEpoch => match memo.confirmed {
                Some(confirmed) if confirmed.frames.has(gfn) && self.stands(s, i, gfn, confirmed) => {
                    match thread.pc {
                        Pc::QuickRegion => Pc::QuickEpoch,
                        _ => Self::quick_walk(s, i, confirmed),
                    }
                }
                _ if memo.slot.has(gfn) => Pc::AgainStamp,
                _ => return Self::in_full(s, i, gfn),
            },
            Pc::AgainStamp => {
                s.threads[i].fault.epoch = s.shared.lines[EPOCH].newest;
                (s.threads[i].fault.quick, s.threads[i].fault.large, s.threads[i].fault.part) =
                    (true, true, false);
                Pc::AgainPublished
            }
            Pc::AgainPublished
                if memo.published != s.shared.published && self.bug != Some(Bug::SlotRemembered) =>
            {
                return Self::in_full(s, i, gfn);
            }
            Pc::AgainPublished => {
                s.threads[i].fault.hva = memo.page(gfn);
                self.first_of_look(&s.threads[i])
            }
            Pc::QuickWalk => {
                let level = thread.walk.level;
                let node =
                    if level == s.shared.top() { s.shared.root } else { thread.walk.path[level as usize] };
                let Word::Table(child) = s.shared.load(node, level, gfn) else {
                    return Self::in_full(s, i, gfn);
                };
                s.threads[i].walk.level = level - 1;
                s.threads[i].walk.path[level as usize - 1] = child;
                if level > 1 {
                    Pc::QuickWalk
                } else {
                    let parent = if level == s.shared.top() { NONE } else { node };
                    let confirmed =
                        memo.confirmed.map(|confirmed| Confirmed { table: child, parent, ..confirmed });
                    s.threads[i].fault.memo = Some(Memo { confirmed, ..memo });
                    (s.threads[i].walk.path[0], s.threads[i].walk.path[1]) = (child, node);
                    if memo.has_tables() && memo.quiet.is_none() { Pc::ReadNumber } else { Pc::QuickLoad }
                }
            }
            Pc::QuickLoad => {
                s.threads[i].walk.level = 0;
                let word = s.shared.load(thread.walk.path[0], 0, gfn);
                if !matches!(word, Word::Hole(version) if version <= thread.fault.stamp) {
                    return Self::in_full(s, i, gfn);
                }
                s.threads[i].walk.word = word;
                Pc::QuickLookup
            }
            Pc::QuickLookup => {
                let hva = memo.page(gfn);
                if !s.shared.writable[hva as usize] {
                    return Self::in_full(s, i, gfn);
                }
                let pfn = frame(s.shared.frames[hva as usize], hva);
                s.threads[i].fault.page = Some(Page { pfn, write: true, large: false });
                Pc::QuickInstall
            }
            Pc::QuickInstall => {
                let pfn = thread.fault.page.expect("the host answered").pfn;
                let leaf = Leaf { pfn, write: true, host_write: true, dirty: write };
                if !s.cas(i, thread.walk.word, Word::Leaf(leaf)) {
                    return Self::in_full(s, i, gfn);
                }
                s.shared.book(0, 1);
                return s.done(i);
            }
            pc => unreachable!("{pc:?} on the quick path"),
        };
        s.threads[i].pc = next;
    }

    /// The path by N. `None`: the full pipeline takes over.
    fn quiet(&self, s: &mut State, i: usize, gfn: u8) -> Option<Pc> {
        let thread = s.threads[i];
        let memo = thread.fault.memo.expect("a fault without a memo is not quick");
        Some(match thread.pc {
            Pc::QuickNumber => match memo.quiet {
                Some(quiet)
                    if memo.slot.has(gfn)
                        && (quiet.number == s.shared.numbers.newest
                            || matches!(self.bug, Some(Bug::TableRemembered | Bug::NumberForgotten))) =>
                {
                    s.threads[i].fault.stamp = quiet.number;
                    s.threads[i].walk.path[0] = quiet.table;
                    if quiet.table != NONE && Shared::extent(1, gfn).start == quiet.first {
                        Pc::QuickLoad
                    } else {
                        Pc::QuietWalk
                    }
                }
                _ => {
                    s.threads[i].fault.memo = Some(Memo { quiet: None, ..memo });
                    Pc::QuickRegion
                }
            },
            Pc::QuietWalk => {
                let quiet = memo.quiet.expect("it was looked at");
                let Word::Table(table) = s.shared.load(quiet.parent, 1, gfn) else { return None };
                s.threads[i].walk.path[0] = table;
                let quiet = Quiet { table, first: Shared::extent(1, gfn).start, ..quiet };
                s.threads[i].fault.memo = Some(Memo { quiet: Some(quiet), ..memo });
                Pc::QuickLoad
            }
            Pc::ReadNumber => {
                s.threads[i].change.number = s.shared.numbers.newest;
                let is_quiet = s.shared.numbers.count == 0 || self.bug == Some(Bug::QuietBeside);
                if is_quiet { Pc::ReadEpoch } else { Pc::QuickLoad }
            }
            Pc::ReadEpoch => {
                let confirmed = memo.confirmed.expect("it was confirmed");
                if s.shared.lines[EPOCH].newest == confirmed.epoch || self.bug == Some(Bug::QuietUndated) {
                    let quiet = Quiet {
                        number: thread.change.number,
                        parent: thread.walk.path[1],
                        table: NONE,
                        first: 0,
                    };
                    s.threads[i].fault.memo = Some(Memo { quiet: Some(quiet), ..memo });
                }
                Pc::QuickLoad
            }
            pc => unreachable!("{pc:?} beside N"),
        })
    }

    /// Returns whether the checked word is unchanged.
    fn stands(&self, s: &State, i: usize, gfn: u8, confirmed: Confirmed) -> bool {
        let memo = s.threads[i].fault.memo.expect("a fault without a memo is not quick");
        if s.threads[i].pc == Pc::QuickEpoch {
            return s.shared.lines[EPOCH].newest == confirmed.epoch || self.bug == Some(Bug::TableRemembered);
        }
        let word = s.shared.lines[region(memo.page(gfn))].newest;
        word == confirmed.region || self.bug == Some(Bug::RegionForgotten)
    }

    /// Walks to the leaf table: the remembered one, below the parent, or from the root.
    fn quick_walk(s: &mut State, i: usize, Confirmed { stamp, table, parent, .. }: Confirmed) -> Pc {
        (s.threads[i].walk.level, s.threads[i].fault.stamp, s.threads[i].walk.path[0]) =
            (s.shared.top(), stamp, table);
        if table != NONE {
            return Pc::QuickLoad;
        }
        if parent != NONE {
            (s.threads[i].walk.level, s.threads[i].walk.path[1]) = (1, parent);
        }
        Pc::QuickWalk
    }

    /// [`Scenario::look`] for a memo.
    pub(crate) fn confirmed_again(&self, s: &mut State, i: usize, gfn: u8, look: &Look) {
        let thread = s.threads[i];
        let memo = thread.fault.memo.expect("a fault without a memo is not quick");
        match look {
            Look::Unfinished => {}
            Look::Covered => Self::in_full(s, i, gfn),
            Look::Moved => {
                s.threads[i].fault.hva = NONE;
                s.threads[i].pc = Pc::AgainStamp;
            }
            Look::Confirmed => {
                let alone = thread.fault.part && self.bug != Some(Bug::FrameConfirmedAsTable);
                let frames = if alone { Span::new(gfn, gfn + 1) } else { memo.part(gfn) };
                let stood = memo.confirmed.filter(|old| old.epoch == thread.fault.epoch);
                let confirmed = Confirmed {
                    epoch: thread.fault.epoch,
                    region: thread.fault.region,
                    stamp: thread.fault.stamp,
                    frames,
                    table: NONE,
                    parent: stood.map_or(NONE, |old| old.parent),
                };
                s.again(i);
                s.enter(i, gfn);
                s.threads[i].fault.memo = Some(Memo { confirmed: Some(confirmed), ..memo });
                s.threads[i].pc = Self::quick_walk(s, i, confirmed);
            }
        }
    }

    /// Hands over to the full pipeline, with nothing done.
    fn in_full(s: &mut State, i: usize, gfn: u8) {
        s.again(i);
        s.enter(i, gfn);
        s.threads[i].pc = Pc::Descend;
    }
}
