//! A cursor visits every entry of a range of frames in pre-order, each with a snapshot. It holds only its position: no
//! lock, no section, no mode. [`Walk::steps`](crate::walk::Walk) adds the open walk.
//!
//! A parent comes before its children. Tables that extend beyond the range are entered without a visit, because the
//! visitor could not edit them. The cursor reloads an entry before it descends through it, so an edit by the visitor
//! (unhook, zap, split) takes effect at once. An entry that was a link at its visit and no longer is one is visited
//! again, because the thread that removed the link may owe a flush that concerns the visitor. [`Cursor::restart`] sends
//! the cursor back to the root at any time; it continues at its **goal**, the first frame that has not been visited
//! yet.

use super::radix::below;
use super::{At, ENTRIES, Entry, Format, Node, TableMemory, Word};
use crate::addr::{Gfn, Level, Span};
use core::marker::PhantomData;

/// The position of a cursor; see the module's header.
pub(crate) struct Cursor<F> {
    span: Span<Gfn>,
    /// The lowest level of visited entries.
    lowest: Level,
    /// The tables on the way down: `path[level]` is the table of that level, `path[0]` the first page of the root.
    path: [Node; 6],
    level: Level,
    /// The first frame of the entry to visit next.
    next: Gfn,
    /// Whether the entry before `next` was a link, if it was visited and the cursor has not yet descended past it.
    visited: Option<bool>,
    _format: PhantomData<F>,
}

/// One entry in the range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'w> {
    pub(crate) at: At<'w>,
    /// The frames of the entry. Above the lowest level they may extend beyond the cursor's range.
    pub(crate) gfns: Span<Gfn>,
}

impl<F: Format> Cursor<F> {
    /// A cursor from `root` over `span`, limited to what the format maps, down to entries of level `lowest`.
    pub(crate) fn new(root: Node, span: Span<Gfn>, lowest: Level) -> Self {
        let top = F::ROOT_LEVEL;
        let span = span.clamp(&Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)));
        // An inverted span, or one beyond the format, has no entry, not even the one around its start.
        let (span, next) = if span.is_empty() {
            (Span::new(span.start, span.start), span.start)
        } else {
            (span, span.start.base(top))
        };
        Self { span, lowest, path: [root; 6], level: top, next, visited: None, _format: PhantomData }
    }

    /// Returns to `root` and continues at the goal.
    pub(crate) fn restart(&mut self, root: Node) {
        let span = Span::new(self.goal(), self.span.end);
        *self = Self::new(root, span, self.lowest);
    }

    /// Returns the next entry, or `None` after the end of the range.
    ///
    /// # Safety
    /// From the cursor's creation or restart until the end of `'w`, the caller is in one section of the read side; or
    /// nothing is unlinked from this table.
    #[inline]
    pub(crate) unsafe fn next<'w, M: TableMemory>(&mut self, memory: &M) -> Option<Step<'w>> {
        #[cfg(test)]
        crate::sync::longest::visits(1);
        if let Some(was_link) = self.visited.take() {
            let first = Gfn(self.next.0 - self.level.pages());
            // No table is below the lowest level, so the entry need not be reloaded.
            let link = (self.level > self.lowest).then(|| self.entry(first).load());
            match link.filter(|&word| F::is_table(word, self.level)) {
                Some(word) => self.enter(memory, word, first),
                None if was_link => self.next = first,
                None => self.rise(),
            }
        }
        while self.next < self.span.end {
            let entry = self.entry(self.next);
            let word = entry.load();
            let gfns = Span::sized(self.next, self.level.pages());
            let link = self.level > self.lowest && F::is_table(word, self.level);
            if link && !self.span.covers(&gfns) {
                self.enter(memory, word, gfns.start);
                continue;
            }
            (self.next, self.visited) = (gfns.end, Some(link));
            let node = self.table(gfns.start);
            return Some(Step { at: At { node, entry, word, level: self.level }, gfns });
        }
        None
    }

    /// Returns the entries after the last visited one, in the same table and in the range, and the frame of the first.
    /// None above level 1.
    ///
    /// # Safety
    /// As [`next`](Self::next).
    pub(crate) unsafe fn ahead<'w>(&self) -> (&'w [Entry], Gfn) {
        let from = F::index(self.next, Level::K4);
        if self.visited.is_none() || self.level > Level::K4 || from == 0 {
            return (&[], self.next);
        }
        let len = self.span.end.0.saturating_sub(self.next.0).min((ENTRIES - from) as u64);
        // SAFETY: on the path of this walk.
        let entries = unsafe { &self.path[Level::K4.number() as usize].entries()[from..from + len as usize] };
        (entries, self.next)
    }

    /// The first frame that has not been visited yet, or the end of the range.
    pub(crate) fn goal(&self) -> Gfn {
        // Frames below an entry above the lowest level have not been visited.
        let inside = self.visited.is_some() && self.level > self.lowest;
        let goal = if inside { Gfn(self.next.0 - self.level.pages()) } else { self.next };
        goal.clamp(self.span.start, self.span.end)
    }

    /// Reports the visitor's last look at the last visited entry, if it was later than the cursor's. A link that the
    /// visitor found by losing a race counts as a visited link.
    pub(crate) fn saw(&mut self, word: Word) {
        if let Some(was_link) = &mut self.visited {
            *was_link |= self.level > self.lowest && F::is_table(word, self.level);
        }
    }

    /// Skips the next `entries` of those [`ahead`](Self::ahead), which have been visited.
    pub(crate) fn advance(&mut self, entries: u64) {
        #[cfg(test)]
        crate::sync::longest::visits(entries);
        self.next = self.next + entries;
    }

    /// Returns the page with `gfn`'s entry, in the current table.
    fn table(&self, gfn: Gfn) -> Node {
        if F::ROOT_PAGES > 1 && self.level.number() == F::LEVELS {
            return self.path[0].beside(F::root_page(gfn));
        }
        self.path[self.level.number() as usize]
    }

    /// Returns `gfn`'s entry in the current table.
    fn entry<'w>(&self, gfn: Gfn) -> &'w Entry {
        // SAFETY: on the path of this walk, which `next` requires.
        unsafe { &self.table(gfn).entries()[F::index(gfn, self.level)] }
    }

    /// Descends through `link`, read from an entry of this level that covers the frames from `first` on.
    #[inline(always)]
    fn enter<M: TableMemory>(&mut self, memory: &M, link: Word, first: Gfn) {
        // SAFETY: a link of this table, read in the section that `next` requires.
        let node = unsafe { Node::follow(memory, F::pfn(link)) };
        self.level = below(self.level);
        self.path[self.level.number() as usize] = node;
        self.next = first.max(self.span.start.base(self.level));
    }

    /// Ascends out of every table whose last entry has been visited.
    fn rise(&mut self) {
        while self.level.number() < F::LEVELS && self.next.0 & (self.level.pages() * ENTRIES as u64 - 1) == 0
        {
            self.level = self.level.up();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::map::Map;
    use crate::table::Version;
    use crate::table::formats::Npt4;
    use crate::table::memory::Heap;
    use alloc::vec::Vec;

    /// A table of the first GiB, with leaf tables below its first and third 2 MiB.
    fn map() -> Map<Npt4, Heap> {
        let map = Map::new(Heap).unwrap();
        for page in [0, 1024] {
            map.reach(Gfn(page), Level::K4).unwrap();
        }
        map
    }

    /// Returns the levels and first frames that a cursor over 2 MiB tables visits. Calls `meddle` after each visit.
    fn visits(span: Span<Gfn>, mut meddle: impl FnMut(&mut Cursor<Npt4>, &Step<'_>, Node)) -> Vec<(u8, u64)> {
        let map = map();
        // SAFETY: nothing is freed while the map lives.
        let root = unsafe { map.radix().root(&Heap) };
        let mut cursor = Cursor::<Npt4>::new(root, span, Level::M2);
        let mut seen = Vec::new();
        // SAFETY: as above.
        while let Some(step) = unsafe { cursor.next(&Heap) } {
            seen.push((step.at.level.number(), step.gfns.start.0));
            meddle(&mut cursor, &step, root);
        }
        seen
    }

    const SPAN: Span<Gfn> = Span::new(Gfn(0), Gfn(2048));

    #[test]
    fn every_entry_is_visited_once_in_order() {
        assert_eq!(visits(SPAN, |_, _, _| {}), [(2, 0), (2, 512), (2, 1024), (2, 1536)]);
        assert_eq!(visits(Span::new(Gfn(600), Gfn(601)), |_, _, _| {}), [(2, 512)]);
    }

    #[test]
    fn a_restarted_cursor_continues_at_its_goal() {
        let sent_back = visits(SPAN, |cursor, _, root| cursor.restart(root));
        assert_eq!(sent_back, visits(SPAN, |_, _, _| {}));
    }

    #[test]
    fn a_link_that_is_removed_after_its_visit_is_visited_again() {
        // At level 1 GiB: the link to the table below is removed after its visit.
        let all = Span::new(Gfn(0), Gfn(Level::G1.pages()));
        let mut taken = false;
        let seen = visits(all, |_, step, _| {
            if step.at.level == Level::G1 && !core::mem::replace(&mut taken, true) {
                step.at.entry.cas(step.at.word, Word::hole(Version::default())).unwrap();
            }
        });
        assert_eq!(
            seen,
            [(3, 0), (3, 0)],
            "once as a link, once as the hole of a thread that may owe a flush"
        );
    }

    #[test]
    fn a_link_that_the_visitor_found_by_losing_a_race_is_visited_again() {
        let pages = Level::G1.pages();
        let mut met = false;
        let seen = visits(Span::new(Gfn(pages), Gfn(2 * pages)), |cursor, step, root| {
            assert!(step.at.word.is_hole(), "nothing is linked there, before and after");
            if !core::mem::replace(&mut met, true) {
                cursor.saw(Npt4::link(root.pfn(&Heap), Level::G1));
            }
        });
        assert_eq!(seen, [(3, pages), (3, pages)]);
    }
}
