//! One pass along a table: down to the links of leaf tables, over those that were accessed, resting where it is due.
//!
//! Leaf tables are where the entries are, so it is their links that are asked what to pass over, 64 at a time. The order
//! matters in one place: a link's bit is cleared *before* its table is looked at. Whoever goes through the link
//! afterwards sets it again, and the next pass looks again; the other way round, that access could be lost for good.

use super::accessed::{AccessedPages, ones};
use super::scan::{GROUP, Scan, fetch_ahead, is_young};
use crate::addr::{Gfn, Level, Span};
use crate::table::entry::{Entry, Word};
use crate::table::format::Format;
use crate::table::memory::{ENTRIES, Node, TableMemory};
use core::marker::PhantomData;
use core::ops::Range;

/// Work done in one go, before a rest is due: some ten microseconds.
const STRETCH: u64 = 4096;
/// What looking at a group of entries counts, where an edited entry counts 1.
const LOOK: u64 = 8;

/// What becomes of the bits that are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// They stay.
    Kept,
    /// They are cleared.
    Cleared,
}

/// See the module's header. `seen` says whether to go on.
pub(crate) struct Pass<'p, F, M, S> {
    memory: &'p M,
    found: Found,
    scan: Scan,
    /// Whether links say what is worth a look: where a walker sets their bits.
    by_links: bool,
    /// Work left until the rest.
    left: u64,
    stopped: bool,
    seen: S,
    _format: PhantomData<F>,
}

impl<'p, F: Format, M: TableMemory, S: FnMut(AccessedPages<Gfn>) -> bool> Pass<'p, F, M, S> {
    pub(crate) fn new(memory: &'p M, found: Found, by_links: bool, seen: S) -> Self {
        let scan = Scan::detect();
        Self { memory, found, scan, by_links, left: STRETCH, stopped: false, seen, _format: PhantomData }
    }

    /// Goes along `gfns` from the table's `root` until a rest is due, and returns where it is to go on: the end of the
    /// range where all of it is done, or `seen` has had enough.
    ///
    /// # Safety
    /// During the call the caller is in a section of the read side, in which `root` was read; or nothing is unlinked
    /// from this table.
    pub(crate) unsafe fn stretch(&mut self, root: Node, gfns: Span<Gfn>) -> Gfn {
        self.left = STRETCH;
        let gfns = gfns.clamp(&Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)));
        if gfns.is_empty() {
            return gfns.end;
        }
        // SAFETY: the caller's word.
        let goal = unsafe { self.table(root, Level(F::LEVELS), gfns) };
        if self.stopped { gfns.end } else { goal }
    }

    /// Along the part `gfns`, which is not empty, of a table above those that link leaf tables. All of its links are
    /// followed: a bit that is cleared here would hide what is left to do after a rest.
    ///
    /// # Safety
    /// As [`stretch`](Self::stretch).
    unsafe fn table(&mut self, node: Node, level: Level, gfns: Span<Gfn>) -> Gfn {
        if level == Level::M2 {
            // SAFETY: the caller's word.
            return unsafe { self.links(node, gfns) };
        }
        // SAFETY: linked when it was read, in the caller's section.
        let entries = unsafe { node.entries() };
        let mut at = gfns.start;
        while at < gfns.end && !self.is_over() {
            let entry = &entries[F::index(at, level)];
            let word = entry.load();
            let part = Span::sized(at.base(level), level.pages()).clamp(&gfns);
            self.left -= 1;
            at = part.end;
            if F::is_table(word, level) {
                // SAFETY: a link of this table, read in the section.
                let below = unsafe { Node::follow(self.memory, F::pfn(word)) };
                // SAFETY: the caller's word.
                let goal = unsafe { self.table(below, level.down(), part) };
                if goal < part.end {
                    return goal;
                }
            } else if is_young::<F>(word) {
                self.clear(entry, word);
                self.tell_all(part);
            }
        }
        at
    }

    /// Along the part `gfns` of a table that links leaf tables, or maps pages of 2 MiB: 64 of them at a time.
    ///
    /// # Safety
    /// As [`stretch`](Self::stretch).
    unsafe fn links(&mut self, node: Node, gfns: Span<Gfn>) -> Gfn {
        const LEVEL: Level = Level::M2;
        // SAFETY: linked when it was read, in the caller's section.
        let entries = unsafe { node.entries() };
        let first = gfns.start.base(LEVEL);
        let from = F::index(first, LEVEL);
        let to = from + ((gfns.end.0 - first.0).div_ceil(LEVEL.pages())) as usize;
        for (index, group) in groups(entries, from..to) {
            let worth = if self.by_links { self.scan.group::<F>(group) } else { u64::MAX };
            let mut left = worth & within(index, from..to);
            while left != 0 {
                let offset = left.trailing_zeros() as usize % GROUP;
                left &= left - 1;
                let covers = Span::sized(
                    first + (index * GROUP + offset - from) as u64 * LEVEL.pages(),
                    LEVEL.pages(),
                );
                let part = covers.clamp(&gfns);
                if self.is_over() {
                    return part.start;
                }
                let next = (left != 0).then(|| &group[left.trailing_zeros() as usize % GROUP]);
                // SAFETY: the caller's word.
                unsafe { self.link(&group[offset], part, part == covers, next) };
            }
            self.left = self.left.saturating_sub(1);
        }
        gfns.end
    }

    /// One that was accessed, and whose pages are asked about: some, or the `whole` of them.
    ///
    /// # Safety
    /// As [`stretch`](Self::stretch).
    #[inline(always)]
    unsafe fn link(&mut self, entry: &Entry, part: Span<Gfn>, whole: bool, next: Option<&Entry>) {
        let word = entry.load();
        if !F::is_table(word, Level::M2) {
            if is_young::<F>(word) {
                self.clear(entry, word);
                self.tell_all(part);
            }
            return;
        }
        let bit = F::touch_link(Level::M2);
        if self.by_links && whole && self.found == Found::Cleared && bit != 0 {
            // Whoever replaced the link meanwhile has put a fresh one there: that is looked at next time.
            let _ = entry.cas(word, Word(word.0 & !bit));
        }
        let next = next.map(Entry::peek).filter(|&next| F::is_table(next, Level::M2));
        // SAFETY: links of this table, read in the section; the second page is not read, only fetched.
        let (table, ahead) = unsafe {
            let follow = |word| Node::follow(self.memory, F::pfn(word));
            (follow(word), next.map(|next| follow(next).entries().as_ptr()))
        };
        // SAFETY: the caller's word.
        unsafe { self.leaves(table, part, ahead) };
    }

    fn is_over(&self) -> bool {
        self.left == 0 || self.stopped
    }

    /// Over the part `gfns` of a leaf table.
    ///
    /// # Safety
    /// As [`stretch`](Self::stretch).
    unsafe fn leaves(&mut self, node: Node, gfns: Span<Gfn>, ahead: Option<*const Entry>) {
        // SAFETY: linked when it was read, in the caller's section.
        let entries = unsafe { node.entries() };
        let first = F::index(gfns.start, Level::K4);
        let pages = first..first + gfns.len() as usize;
        let mut bits = [0; ENTRIES / GROUP];
        let mut any = 0;
        for (index, group) in groups(entries, pages.clone()) {
            if let Some(ahead) = ahead {
                // The same lines of the next table: it is read a table's time from now.
                for line in (0..GROUP).step_by(64 / size_of::<Entry>()) {
                    fetch_ahead(ahead.wrapping_add(index * GROUP + line));
                }
            }
            let young = self.scan.group::<F>(group) & within(index, pages.clone());
            self.left = self.left.saturating_sub(LOOK);
            if young != 0 {
                if self.found == Found::Cleared {
                    self.clear_group(group, young);
                }
                bits[index] = young;
                any |= young;
            }
        }
        if any != 0 {
            let shifted = if first == 0 { bits } else { shifted_down(&bits, first) };
            self.tell(AccessedPages::new(gfns.start, gfns.len() as u32, shifted));
        }
    }

    #[inline]
    fn clear_group(&mut self, group: &[Entry; GROUP], young: u64) {
        self.left = self.left.saturating_sub(u64::from(young.count_ones()));
        let mut left = young;
        while left != 0 {
            let entry = &group[left.trailing_zeros() as usize % GROUP];
            left &= left - 1;
            let word = entry.peek();
            // Since it was found young it may have become anything, a hole too.
            if is_young::<F>(word) {
                self.clear(entry, word);
            }
        }
    }

    /// Makes a young leaf one that nobody has accessed. Gives up where it has changed.
    #[inline(always)]
    fn clear(&self, entry: &Entry, word: Word) {
        if self.found == Found::Cleared {
            let aged =
                if F::HARDWARE_AD { Word(word.0 & !F::ACCESSED) } else { Word::tracked(&F::read_leaf(word)) };
            let _ = entry.cas(word, aged);
        }
    }

    /// A large leaf, or as much of it as was asked about.
    #[cold]
    fn tell_all(&mut self, gfns: Span<Gfn>) {
        let mut at = gfns.start;
        while at < gfns.end && !self.stopped {
            let part = Span::new(at, gfns.end.min(at.base(Level::M2) + AccessedPages::<Gfn>::MOST));
            self.tell(AccessedPages::all(part));
            at = part.end;
        }
    }

    fn tell(&mut self, accessed: AccessedPages<Gfn>) {
        self.stopped |= !(self.seen)(accessed);
    }
}

/// The groups that have any of the entries `range`, by number.
#[inline(always)]
fn groups(entries: &[Entry; ENTRIES], range: Range<usize>) -> impl Iterator<Item = (usize, &[Entry; GROUP])> {
    let (groups, _) = entries.as_chunks::<GROUP>();
    let first = range.start / GROUP;
    (first..).zip(&groups[first..range.end.div_ceil(GROUP)])
}

/// Which of a group's entries are in `range`.
#[inline(always)]
fn within(group: usize, range: Range<usize>) -> u64 {
    let from = range.start.saturating_sub(group * GROUP).min(GROUP);
    let to = (range.end - group * GROUP).min(GROUP);
    ones(to as u32) & !ones(from as u32)
}

/// `bits` with the lowest `by` left out.
#[cold]
fn shifted_down(bits: &[u64; 8], by: usize) -> [u64; 8] {
    let word = |index: usize| bits.get(index).copied().unwrap_or(0);
    let (words, rest) = (by / 64, by % 64);
    core::array::from_fn(|to| {
        let low = word(to + words) >> rest;
        let high = if rest == 0 { 0 } else { word(to + words + 1) << (64 - rest) };
        low | high
    })
}
