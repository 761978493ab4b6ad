//! One pass along a table: down to the links of leaf tables, over those that were accessed, resting where it is due.
//!
//! Leaf tables are where the entries are, so it is their links that are asked what to pass over, 64 at a time. The order
//! matters in one place: a link's bit is cleared *before* its table is looked at. A processor that goes through the link
//! afterwards sets it again, and the next pass looks again; the other way round, that access could be lost for good.

use super::accessed::AccessedPages;
use super::leaves::{LeafTable, TOGETHER, YoungBits, groups, scan_together, within};
use super::scan::{Bit, GROUP, Scan, is_young};
use crate::addr::{Gfn, Level, Span};
use crate::table::entry::{Entry, Word};
use crate::table::format::Format;
use crate::table::memory::{ENTRIES, Node, TableMemory};
use core::marker::PhantomData;

/// Work done in one go, before a rest is due: some ten microseconds.
const WORK_A_SECTION: u64 = 4096;
/// What looking at a leaf table counts, where an edited entry counts 1.
const LOOK: u64 = 64;
/// The level whose entries link leaf tables, or map pages of 2 MiB.
const LINKS: Level = Level::M2;

/// What becomes of the bits that are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// They stay.
    Kept,
    /// They are cleared.
    Cleared,
}

/// How to go along.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct How {
    pub(super) found: Found,
    /// Whether links say what is worth a look: where a walker sets their bits.
    pub(super) by_links: bool,
    pub(super) scan: Scan,
}

impl How {
    /// Clears what it finds, and passes over what no walk came through.
    pub(crate) fn by_links() -> Self {
        Self { by_links: true, ..Self::every_leaf(Found::Cleared) }
    }

    /// Looks at every leaf, whatever the links say.
    pub(crate) fn every_leaf(found: Found) -> Self {
        Self { found, by_links: false, scan: Scan::detect() }
    }

    /// Whether it clears what it finds.
    pub(crate) fn clears(self) -> bool {
        self.found == Found::Cleared
    }

    /// The same by this scan.
    pub(crate) fn by(self, scan: Scan) -> Self {
        Self { scan, ..self }
    }
}

/// See the module's header. `seen` says whether to go on.
pub(crate) struct Pass<'p, F, B, M, S> {
    memory: &'p M,
    how: How,
    /// Work left until the rest.
    left: u64,
    stopped: bool,
    /// Where the young entries of a table are.
    at: [u16; ENTRIES],
    seen: S,
    _format: PhantomData<(F, B)>,
}

impl<'p, F: Format, B: Bit, M: TableMemory, S: FnMut(AccessedPages<Gfn>) -> bool> Pass<'p, F, B, M, S> {
    pub(crate) fn new(memory: &'p M, how: How, seen: S) -> Self {
        Self {
            memory,
            how,
            left: WORK_A_SECTION,
            stopped: false,
            at: [0; ENTRIES],
            seen,
            _format: PhantomData,
        }
    }

    /// Goes along `gfns` from the table's `root` until a rest is due, and returns where it is to go on: the end of the
    /// range where all of it is done, or `seen` has had enough.
    ///
    /// # Safety
    /// During the call the caller is in a section of the read side, in which `root` was read; or nothing is unlinked
    /// from this table.
    pub(crate) unsafe fn stretch(&mut self, root: Node, gfns: Span<Gfn>) -> Gfn {
        self.left = WORK_A_SECTION;
        let gfns = gfns.clamp(&Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)));
        if gfns.is_empty() {
            return gfns.end;
        }
        let above = F::ROOT_LEVEL.up();
        let mut at = gfns.start;
        while at < gfns.end && !self.is_over() {
            let page = Span::sized(at.base(above), above.pages()).clamp(&gfns);
            // SAFETY: the caller's word.
            at = unsafe { self.table(root.beside(F::root_page(at)), F::ROOT_LEVEL, page) };
            if at < page.end {
                break;
            }
        }
        if self.stopped { gfns.end } else { at }
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
            } else if B::LARGE && is_young::<F, B>(word) {
                self.clear(entry, word);
                self.tell_all(part);
            }
        }
        at
    }

    /// Along the part `gfns` of a table that links leaf tables, or maps pages of 2 MiB: 64 entries at a time, those of them
    /// that are worth it [together](TOGETHER).
    ///
    /// # Safety
    /// As [`stretch`](Self::stretch).
    unsafe fn links(&mut self, node: Node, gfns: Span<Gfn>) -> Gfn {
        // SAFETY: linked when it was read, in the caller's section.
        let entries = unsafe { node.entries() };
        let first = gfns.start.base(LINKS);
        let from = F::index(first, LINKS);
        let asked = from..from + ((gfns.end.0 - first.0).div_ceil(LINKS.pages())) as usize;
        // Where leaves have an Accessed bit and links have none, links say nothing.
        let by_links = self.how.by_links && F::touch_link(LINKS) == F::ACCESSED;
        for index in groups(asked.clone()) {
            let group = &entries.as_chunks::<GROUP>().0[index];
            let worth = if by_links { self.how.scan.group::<F, B>(group) } else { u64::MAX };
            let mut left = worth & within(index, asked.clone());
            while left != 0 {
                let part_of = |offset: usize| {
                    let covers = first + (index * GROUP + offset - from) as u64 * LINKS.pages();
                    Span::sized(covers, LINKS.pages()).clamp(&gfns)
                };
                if self.is_over() {
                    return part_of(left.trailing_zeros() as usize).start;
                }
                // SAFETY: the caller's word.
                unsafe { self.some((entries, group), &mut left, part_of) };
            }
            self.left = self.left.saturating_sub(1);
        }
        gfns.end
    }

    /// The next of those `left` in a group of links of the table `all`.
    ///
    /// # Safety
    /// As [`stretch`](Self::stretch).
    #[inline(always)]
    unsafe fn some(
        &mut self,
        (all, group): (&[Entry; ENTRIES], &[Entry; GROUP]),
        left: &mut u64,
        part_of: impl Fn(usize) -> Span<Gfn>,
    ) {
        // What stands in the places that are not used does not matter.
        let none = LeafTable { entries: all, gfns: Span::default() };
        let (mut tables, mut len) = ([none; TOGETHER], 0);
        for offset in bits(left).take(TOGETHER) {
            let (entry, gfns) = (&group[offset], part_of(offset));
            let word = entry.load();
            if F::is_table(word, LINKS) {
                self.pass_through(entry, word, gfns);
                // SAFETY: a link of this table, read in the section.
                let entries = unsafe { Node::follow(self.memory, F::pfn(word)).entries() };
                tables[len] = LeafTable { entries, gfns };
                len += 1;
            } else if B::LARGE && is_young::<F, B>(word) {
                self.clear(entry, word);
                // In order: what comes before it first.
                self.leaves(&tables[..core::mem::take(&mut len)], &[]);
                self.tell_all(gfns);
            }
        }
        let (mut ahead, mut coming) = ([core::ptr::null(); TOGETHER], *left);
        let mut known = 0;
        for offset in bits(&mut coming).take(TOGETHER) {
            let word = group[offset].peek();
            if F::is_table(word, LINKS) {
                // SAFETY: a link of this table, read in the section; and the page is not read, only fetched.
                ahead[known] = unsafe { Node::follow(self.memory, F::pfn(word)).entries() }.as_ptr();
                known += 1;
            }
        }
        self.leaves(&tables[..len], &ahead[..known]);
    }

    /// A link that is followed, to the pages `gfns` of its table, loses its bit where those are all of them.
    #[inline(always)]
    fn pass_through(&self, entry: &Entry, word: Word, gfns: Span<Gfn>) {
        let bit = F::touch_link(LINKS);
        if self.how.by_links && self.how.found == Found::Cleared && bit != 0 && gfns.len() == LINKS.pages() {
            // The thread that replaced the link meanwhile has put a fresh one there: that is looked at next time.
            let _ = entry.cas(word, Word(word.0 & !bit));
        }
    }

    fn is_over(&self) -> bool {
        self.left == 0 || self.stopped
    }

    /// Over leaf tables.
    #[inline(always)]
    fn leaves(&mut self, tables: &[LeafTable<'_>], ahead: &[*const Entry]) {
        if tables.is_empty() || self.stopped {
            return;
        }
        let mut young = [[0; 8]; TOGETHER];
        let any = scan_together::<F, B>(self.how.scan, tables, ahead, &mut young);
        for (nth, table) in tables.iter().enumerate() {
            self.left = self.left.saturating_sub(LOOK);
            if any[nth] && !self.stopped {
                self.young(table, &young[nth]);
            }
        }
    }

    #[inline(always)]
    fn young(&mut self, table: &LeafTable<'_>, young: &YoungBits) {
        let count = if self.how.found == Found::Cleared {
            self.clear_all(table.entries, young)
        } else {
            young.iter().map(|group| group.count_ones()).sum()
        };
        self.left = self.left.saturating_sub(count.into());
        let first = F::index(table.gfns.start, Level::K4);
        let bits = if first == 0 { *young } else { shifted_down(young, first) };
        self.tell(AccessedPages::new(table.gfns.start, (table.gfns.len() as u32, count), bits));
    }

    /// Those of a table; how many there are. First where they are, then one after the other: a processor that guesses
    /// wrong where a group ends has no locked instruction to wait for. Where all of a group are young there is nothing
    /// to find out.
    #[inline]
    fn clear_all(&mut self, entries: &[Entry; ENTRIES], young: &YoungBits) -> u32 {
        let (mut len, mut whole) = (0, 0);
        for (group, &young) in young.iter().enumerate() {
            if young == u64::MAX {
                entries[group * GROUP..][..GROUP].iter().for_each(|entry| self.clear_young(entry));
                whole += GROUP;
                continue;
            }
            let mut left = young;
            for offset in bits(&mut left) {
                self.at[len % ENTRIES] = (group * GROUP + offset) as u16;
                len += 1;
            }
        }
        for &at in &self.at[..len] {
            self.clear_young(&entries[usize::from(at) % ENTRIES]);
        }
        (len + whole) as u32
    }

    /// Since it was found young it may have become anything, a hole too.
    #[inline(always)]
    fn clear_young(&self, entry: &Entry) {
        let word = entry.peek();
        if is_young::<F, B>(word) {
            self.clear(entry, word);
        }
    }

    /// Makes a young leaf one that is not. Where it has changed it is looked at again if the bit must be exact; else that
    /// is given up.
    #[inline(always)]
    fn clear(&self, entry: &Entry, mut word: Word) {
        if self.how.found == Found::Kept {
            return;
        }
        loop {
            let bit = B::of::<F>();
            let aged = if F::HARDWARE_AD { Word(word.0 & !bit) } else { Word::tracked(&F::read_leaf(word)) };
            if seeded!(AgedByStore) {
                entry.store(aged);
                break;
            }
            match entry.cas(word, aged) {
                Err(found) if B::EXACT && is_young::<F, B>(found) => word = found,
                _ => break,
            }
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

/// The numbers of the bits that are set, lowest first; each is taken out as it comes.
#[inline(always)]
fn bits(left: &mut u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(|| {
        let bit = left.trailing_zeros() as usize % GROUP;
        (*left != 0).then(|| {
            *left &= *left - 1;
            bit
        })
    })
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

#[cfg(all(test, loom))]
mod loom_tests;
