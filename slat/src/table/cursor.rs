//! A cursor: every entry of a range of frames, in pre-order, each with a snapshot. It knows where it is and nothing
//! else: no lock, no section, no mode. [`super::steps`] is the cursor with an open walk under it.
//!
//! A parent comes before its children and is not visited again. Tables that reach out of the range are passed
//! through without a visit: there is nothing that could be done to them. The cursor re-reads an entry before it goes
//! down through it, so an edit by the visitor (unhook, zap, split) takes effect at once. It can be sent back to the root
//! at any time ([`Cursor::restart`]) and goes on at its **goal**, the first frame that has not been visited yet.

use super::entry::{Entry, Word};
use super::format::Format;
use super::memory::{ENTRIES, Node, TableMemory};
use super::radix::At;
use crate::addr::{Gfn, Level, Span};
use core::marker::PhantomData;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Cursor<F> {
    span: Span<Gfn>,
    /// No entry below this level is visited.
    lowest: Level,
    /// Tables on the way down; `path[level]` is the table of that level.
    path: [Node; 6],
    level: Level,
    /// The first frame of the entry to visit next.
    next: Gfn,
    /// Whether there is an entry visited last, to go down through: the one before `next`.
    visited: bool,
    _format: PhantomData<F>,
}

/// One entry in the range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'w> {
    pub(crate) at: At<'w>,
    /// The frames that the entry covers; may reach out of the cursor's range above the lowest level.
    pub(crate) gfns: Span<Gfn>,
}

impl<F: Format> Cursor<F> {
    /// From `root` over `span`, cut to what the format can map, down to entries of level `lowest`.
    pub(crate) fn new(root: Node, span: Span<Gfn>, lowest: Level) -> Self {
        let top = Level(F::LEVELS);
        let span = span.clamp(&Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)));
        let next = span.start.base(top);
        Self { span, lowest, path: [root; 6], level: top, next, visited: false, _format: PhantomData }
    }

    /// Back to `root`, to go on at the goal.
    pub(crate) fn restart(&mut self, root: Node) {
        // What hangs below an entry above the lowest level has not been visited.
        let inside = self.visited && self.level > self.lowest;
        let goal = if inside { Gfn(self.next.0 - self.level.pages()) } else { self.next };
        let span = Span::new(self.span.start.max(goal).min(self.span.end), self.span.end);
        *self = Self::new(root, span, self.lowest);
    }

    /// The next entry, or `None` past the end of the range.
    ///
    /// # Safety
    /// Since the cursor was made or restarted the caller has been in one section of the read side, and stays in
    /// it for all of `'w`; or nothing is unlinked from this table.
    #[inline]
    pub(crate) unsafe fn next<'w, M: TableMemory>(&mut self, memory: &M) -> Option<Step<'w>> {
        if core::mem::take(&mut self.visited) {
            let first = Gfn(self.next.0 - self.level.pages());
            // Nothing lies below the lowest level: no second look there.
            let link = (self.level > self.lowest).then(|| self.entry(first).load());
            match link.filter(|&word| F::is_table(word, self.level)) {
                Some(word) => self.enter(memory, word, first),
                None => self.rise(),
            }
        }
        while self.next < self.span.end {
            let entry = self.entry(self.next);
            let word = entry.load();
            let gfns = Span::sized(self.next, self.level.pages());
            if self.level > self.lowest && F::is_table(word, self.level) && !self.span.covers(&gfns) {
                self.enter(memory, word, gfns.start);
                continue;
            }
            (self.next, self.visited) = (gfns.end, true);
            let node = self.path[self.level.0 as usize];
            return Some(Step { at: At { node, entry, word, level: self.level }, gfns });
        }
        None
    }

    /// The entries after the one visited last, in the same table and in the range; none above the level of pages.
    ///
    /// # Safety
    /// As [`next`](Self::next).
    pub(crate) unsafe fn ahead<'w>(&self) -> &'w [Entry] {
        let from = F::index(self.next, Level::K4);
        if !self.visited || self.level > Level::K4 || from == 0 {
            return &[];
        }
        let len = self.span.end.0.saturating_sub(self.next.0).min((ENTRIES - from) as u64);
        // SAFETY: on the path of this walk.
        unsafe { &self.path[Level::K4.0 as usize].entries()[from..from + len as usize] }
    }

    /// Leaves out the next `entries` of those [`ahead`](Self::ahead): they have been visited.
    pub(crate) fn advance(&mut self, entries: u64) {
        self.next = self.next + entries;
    }

    /// The entry that `gfn` has in the table where the cursor stands.
    fn entry<'w>(&self, gfn: Gfn) -> &'w Entry {
        // SAFETY: on the path of this walk: `next` asks for it.
        unsafe { &self.path[self.level.0 as usize].entries()[F::index(gfn, self.level)] }
    }

    /// Down through `link`, read from an entry of this level that covers the frames from `first` on.
    #[inline(always)]
    fn enter<M: TableMemory>(&mut self, memory: &M, link: Word, first: Gfn) {
        // SAFETY: a link of this table, read in the section that `next` asks for.
        let node = unsafe { Node::follow(memory, F::pfn(link)) };
        self.level = self.level.down();
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
