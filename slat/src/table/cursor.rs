//! A cursor: every entry of a range of frames, in pre-order, each with a snapshot.
//!
//! A parent comes before its children and is not visited again. Tables that reach out of the range are passed
//! through without a visit: there is nothing that could be done to them. The cursor re-reads an entry before it goes
//! down through it, so an edit by the visitor (unhook, zap) takes effect at once. When the visitor meets a
//! retired entry it calls [`Cursor::restart`]: the walk goes back to the root and continues at the frame that
//! it had reached, never behind it.

use super::entry::{Entry, Word};
use super::format::Format;
use super::memory::{ENTRIES, Node, TableMemory};
use super::radix::{At, Radix};
use crate::addr::{Gfn, Level, Span};

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Cursor<'w, F, M> {
    radix: &'w Radix<F>,
    memory: &'w M,
    span: Span<Gfn>,
    /// Tables on the way down; `path[level]` is the table of that level.
    path: [Node; 6],
    level: Level,
    /// The first frame of the entry to visit next.
    next: Gfn,
    /// The entry visited last, to go down through.
    last: Option<At<'w>>,
}

/// One entry in the range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'w> {
    pub(crate) at: At<'w>,
    /// The frames that the entry covers; may reach out of the cursor's range above the lowest level.
    pub(crate) gfns: Span<Gfn>,
}

impl<'w, F: Format, M: TableMemory> Cursor<'w, F, M> {
    /// Over `span`, cut to what the format can map.
    ///
    /// # Safety
    /// For all of `'w` the caller is in a section of the read side, or nothing is unlinked from this table.
    pub(crate) unsafe fn new(radix: &'w Radix<F>, memory: &'w M, span: Span<Gfn>) -> Self {
        let span = span.clamp(&Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)));
        let top = Level(F::LEVELS);
        Self {
            radix,
            memory,
            span,
            path: [radix.root; 6],
            level: top,
            next: span.start.base(top),
            last: None,
        }
    }

    /// Back to the root, to go on at the entry visited last.
    pub(crate) fn restart(&mut self) {
        let here = self.last.take().map_or(self.next, |_| self.visited());
        self.level = Level(F::LEVELS);
        self.span.start = self.span.start.max(here);
        self.next = self.span.start.base(self.level);
    }

    /// The first frame of the entry visited last.
    fn visited(&self) -> Gfn {
        Gfn(self.next.0 - self.level.pages())
    }

    /// The next entry, or `None` past the end of the range.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Step<'w>> {
        if let Some(last) = self.last.take() {
            // Nothing lies below the lowest level: no second look there.
            let link = (last.level > Level::K4).then(|| last.entry.load());
            match link.filter(|&word| F::is_table(word, last.level)) {
                Some(word) => self.enter(word, last.level, self.visited()),
                None => self.rise(),
            }
        }
        while self.next < self.span.end {
            let node =
                if self.level.0 == F::LEVELS { self.radix.root } else { self.path[self.level.0 as usize] };
            // SAFETY: on the path of this walk.
            let entry = unsafe { &node.entries()[F::index(self.next, self.level)] };
            let at = At { node, entry, word: entry.load(), level: self.level };
            let gfns = Span::sized(self.next, self.level.pages());
            if F::is_table(at.word, at.level) && !self.span.covers(&gfns) {
                self.enter(at.word, at.level, gfns.start);
                continue;
            }
            self.next = gfns.end;
            self.last = Some(at);
            return Some(Step { at, gfns });
        }
        None
    }

    /// The entries after the one visited last, in the same table and in the range; none above the lowest level.
    pub(crate) fn ahead(&self) -> &'w [Entry] {
        let from = F::index(self.next, Level::K4);
        match self.last {
            Some(last) if last.level == Level::K4 && from != 0 => {
                let len = self.span.end.0.saturating_sub(self.next.0).min((ENTRIES - from) as u64);
                // SAFETY: on the path of this walk.
                unsafe { &last.node.entries()[from..from + len as usize] }
            }
            _ => &[],
        }
    }

    /// Leaves out the next `entries` of those [`ahead`](Self::ahead): they have been visited.
    pub(crate) fn advance(&mut self, entries: u64) {
        self.next = self.next + entries;
    }

    /// Down through `link`, read from an entry of `level` that covers the frames from `first` on.
    #[inline(always)]
    fn enter(&mut self, link: Word, level: Level, first: Gfn) {
        // SAFETY: a link of this table, read in the section that `new` asks for.
        let node = unsafe { Node::follow(self.memory, F::pfn(link)) };
        self.level = level.down();
        self.path[self.level.0 as usize] = node;
        self.next = first.max(self.span.start.base(self.level));
    }

    /// Up through every table whose last entry has been visited.
    fn rise(&mut self) {
        while self.level.0 < F::LEVELS && self.next.0 & (self.level.pages() * ENTRIES as u64 - 1) == 0 {
            self.level = self.level.up();
        }
    }
}
