//! What a vCPU remembers of its last fault: `fault::memo`, and the faults that it shortens: `fault::quick`.
//!
//! In scenarios that [remember](Scenario::remembers). A memo is the slot that was found last, and what was confirmed of it
//! since: a stamp, the frames for which it was confirmed, and the leaf table of those. While W stands, a fault in those
//! frames looks at nothing else. With another slot the whole memo is replaced.

use crate::bug::Bug;
use crate::fault::Access;
use crate::scenario::Scenario;
use crate::slots::Version;
use crate::thread::{Page, Pc, State};
use crate::world::{Leaf, NONE, Span, W, Word, World, frame};

/// `Memo`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Memo {
    /// The frames of the slot, and the host page of the first.
    slot: Span,
    hva: u8,
    /// The number under which the slots were published in which it was found.
    published: u8,
    confirmed: Option<Confirmed>,
}

/// `Confirmed`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Confirmed {
    stamp: W,
    frames: Span,
    /// The leaf table, or [`NONE`] yet.
    table: u8,
}

impl Memo {
    /// The memo of a vCPU that has looked up `gfn` in slots of `frames` frames each.
    pub(crate) fn of(gfn: u8, frames: u8, version: Version, published: u8) -> Self {
        let start = gfn & !(frames - 1);
        Self {
            slot: Span::new(start, start + frames),
            hva: version[start as usize],
            published,
            confirmed: None,
        }
    }
}

impl Scenario {
    /// `Memo::slot`: the slot of `gfn` was looked up.
    pub(crate) fn remember(&self, s: &mut State, i: usize, gfn: u8) {
        let Some(old) = s.threads[i].memo else { return };
        if old.slot.has(gfn) && old.published == s.world.published {
            return;
        }
        let mut memo = Memo::of(gfn, self.remembers, s.world.memslots, s.world.published);
        if self.bug == Some(Bug::SlotChangedStampKept) {
            memo.confirmed = old.confirmed.map(|confirmed| Confirmed {
                frames: if World::extent(1, gfn).overlaps(confirmed.frames) {
                    memo.slot
                } else {
                    Span::default()
                },
                ..confirmed
            });
        }
        s.threads[i].memo = Some(memo);
    }

    /// One step of the quick path.
    pub(crate) fn quick(&self, s: &mut State, i: usize, Access { gfn, write, .. }: Access) {
        let thread = s.threads[i];
        let memo = thread.memo.expect("a fault without a memo is not quick");
        let next = match thread.pc {
            Pc::QuickUnmoved => match memo.confirmed {
                Some(Confirmed { stamp, frames, table })
                    if frames.has(gfn) && (stamp == s.world.w || self.bug == Some(Bug::TableRemembered)) =>
                {
                    s.threads[i].level = World::top(&s.world);
                    if table == NONE { Pc::QuickWalk } else { Pc::QuickLoad }
                }
                _ if memo.slot.has(gfn) => Pc::AgainStamp,
                _ => return Self::in_full(s, i, gfn),
            },
            Pc::AgainStamp => {
                s.threads[i].stamp = s.world.w;
                Pc::AgainPublished
            }
            Pc::AgainPublished
                if memo.published != s.world.published && self.bug != Some(Bug::SlotRemembered) =>
            {
                return Self::in_full(s, i, gfn);
            }
            Pc::AgainPublished if thread.stamp.count == 0 => {
                s.threads[i].span = memo.slot;
                Pc::AgainUnmoved
            }
            Pc::AgainPublished => Pc::AgainCovered,
            Pc::AgainCovered => {
                // The slot's part of the table, else the frame alone.
                let region = World::extent(1, gfn);
                let part = Span::new(memo.slot.start.max(region.start), memo.slot.end.min(region.end));
                let alone = Span::new(gfn, gfn + 1);
                let free = |gfns: &Span| {
                    let first = memo.hva + (gfns.start - memo.slot.start);
                    !s.covered(i, *gfns, Span::new(first, first + (gfns.end - gfns.start)))
                };
                let Some(frames) = [part, alone].into_iter().find(free) else {
                    return Self::in_full(s, i, gfn);
                };
                let whole = self.bug == Some(Bug::FrameConfirmedAsTable);
                s.threads[i].span = if whole { part } else { frames };
                Pc::AgainUnmoved
            }
            Pc::AgainUnmoved if s.world.w == thread.stamp => {
                let confirmed = Confirmed { stamp: thread.stamp, frames: thread.span, table: NONE };
                s.threads[i].memo = Some(Memo { confirmed: Some(confirmed), ..memo });
                (s.threads[i].stamp, s.threads[i].span) = (W::default(), Span::default());
                Pc::QuickUnmoved
            }
            Pc::AgainUnmoved => Pc::AgainStamp,
            Pc::QuickWalk => {
                let level = thread.level;
                let node = if level == s.world.top() { s.world.root } else { thread.path[level as usize] };
                let Word::Table(child) = s.world.load(node, level, gfn) else {
                    return Self::in_full(s, i, gfn);
                };
                s.threads[i].level = level - 1;
                s.threads[i].path[level as usize - 1] = child;
                if level > 1 {
                    Pc::QuickWalk
                } else {
                    let confirmed = memo.confirmed.map(|confirmed| Confirmed { table: child, ..confirmed });
                    s.threads[i].memo = Some(Memo { confirmed, ..memo });
                    Pc::QuickLoad
                }
            }
            Pc::QuickLoad => {
                let Confirmed { stamp, table, .. } = memo.confirmed.expect("it was looked at");
                (s.threads[i].level, s.threads[i].path[0]) = (0, table);
                let word = s.world.load(table, 0, gfn);
                if !matches!(word, Word::Hole(version) if version <= stamp.newest) {
                    return Self::in_full(s, i, gfn);
                }
                s.threads[i].word = word;
                Pc::QuickLookup
            }
            Pc::QuickLookup => {
                let hva = memo.hva + (gfn - memo.slot.start);
                if !s.world.writable[hva as usize] {
                    return Self::in_full(s, i, gfn);
                }
                let pfn = frame(s.world.frames[hva as usize], hva);
                s.threads[i].page = Some(Page { pfn, write: true, large: false });
                Pc::QuickInstall
            }
            Pc::QuickInstall => {
                let pfn = thread.page.expect("the host answered").pfn;
                let leaf = Leaf { pfn, write: true, host_write: true, dirty: write };
                if !s.cas(i, thread.word, Word::Leaf(leaf)) {
                    return Self::in_full(s, i, gfn);
                }
                s.world.book(0, 1);
                return s.done(i);
            }
            pc => unreachable!("{pc:?} on the quick path"),
        };
        s.threads[i].pc = next;
    }

    /// Nothing was done: the full pipeline takes over.
    fn in_full(s: &mut State, i: usize, gfn: u8) {
        s.again(i);
        s.enter(i, gfn);
        s.threads[i].pc = Pc::Descend;
    }
}
