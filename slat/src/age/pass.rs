//! One aging pass along a table: it descends to the links of leaf tables, enters those that were accessed, and yields
//! when due.
//!
//! Most entries are in leaf tables, so their links decide what to skip, 64 at a time. One order matters: a pass clears
//! a link's bit *before* it reads the link's table. A processor that walks through the link afterwards sets the bit
//! again, and the next pass reads the table again. In the other order, that access could be lost for good.

use super::accessed::AccessedPages;
use super::leaves::{LeafTable, TOGETHER, YoungBits, groups, scan_together, within};
use super::scan::{Bit, GROUP, Scan, is_young};
use crate::table::{ENTRIES, Entry, Node};
use crate::{Format, Gfn, Level, Span, TableMemory, Word};
use core::marker::PhantomData;

/// Amount of work before a yield is due: about ten microseconds.
const WORK_A_SECTION: u64 = 4096;
/// Work of scanning a leaf table, where an edited entry counts 1.
const LOOK: u64 = 64;
/// The level whose entries link leaf tables, or map pages of 2 MiB.
const LINKS: Level = Level::M2;

/// The action of a pass on the bits that it finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// The pass keeps them.
    Kept,
    /// The pass clears them.
    Cleared,
}

/// How a pass works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct How {
    pub(super) found: Found,
    /// Whether links decide which tables are scanned. Only if a walker sets their bits.
    pub(super) by_links: bool,
    pub(super) scan: Scan,
}

impl How {
    /// Clears what it finds, and skips tables that no walker used.
    pub(crate) fn by_links() -> Self {
        Self { by_links: true, ..Self::every_leaf(Found::Cleared) }
    }

    /// Scans every leaf, whatever the links say.
    pub(crate) fn every_leaf(found: Found) -> Self {
        Self { found, by_links: false, scan: Scan::detect() }
    }

    /// Whether the pass clears what it finds.
    pub(crate) fn clears(self) -> bool {
        self.found == Found::Cleared
    }

    /// The same with this scan.
    pub(crate) fn by(self, scan: Scan) -> Self {
        Self { scan, ..self }
    }
}

/// A pass; see the module's header. `seen` returns whether to continue.
pub(crate) struct Pass<'p, F, B, M, S> {
    memory: &'p M,
    how: How,
    /// Work left until the rest.
    left: u64,
    stopped: bool,
    /// The indices of the young entries of a table.
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

    /// Works along `gfns` from the table's `root` until a yield is due. Returns the frame at which to continue: the end
    /// of the range if all of it is done, or if `seen` has stopped the pass.
    ///
    /// # Safety
    /// During the call the caller is in a section of the read side, in which it read `root`; or nothing is unlinked
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
            // SAFETY: the caller guarantees it.
            at = unsafe { self.table(root.beside(F::root_page(at)), F::ROOT_LEVEL, page) };
            if at < page.end {
                break;
            }
        }
        if self.stopped { gfns.end } else { at }
    }

    /// Works along the non-empty part `gfns` of a table above those that link leaf tables. Follows all of its links: a
    /// bit cleared here would hide the work that is left after a yield.
    ///
    /// # Safety
    /// As [`stretch`](Self::stretch).
    unsafe fn table(&mut self, node: Node, level: Level, gfns: Span<Gfn>) -> Gfn {
        if level == Level::M2 {
            // SAFETY: the caller guarantees it.
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
                // SAFETY: the caller guarantees it.
                let goal = unsafe { self.table(below, level.down(), part) };
                if goal < part.end {
                    return goal;
                }
            } else if B::LARGE && is_young::<F, B>(word) {
                self.clear(entry, word);
                self.report_all(part);
            }
        }
        at
    }

    /// Works along the part `gfns` of a table that links leaf tables or maps pages of 2 MiB: 64 entries at a time, and
    /// of those, the selected ones [together](TOGETHER).
    ///
    /// # Safety
    /// As [`stretch`](Self::stretch).
    unsafe fn links(&mut self, node: Node, gfns: Span<Gfn>) -> Gfn {
        // SAFETY: linked when it was read, in the caller's section.
        let entries = unsafe { node.entries() };
        let first = gfns.start.base(LINKS);
        let from = F::index(first, LINKS);
        let asked = from..from + ((gfns.end.0 - first.0).div_ceil(LINKS.pages())) as usize;
        // If leaves have an Accessed bit and links have none, links say nothing.
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
                // SAFETY: the caller guarantees it.
                unsafe { self.some((entries, group), &mut left, part_of) };
            }
            self.left = self.left.saturating_sub(1);
        }
        gfns.end
    }

    /// Works on the next of those `left` in a group of links of the table `all`.
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
        // A filler for unused places.
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
                // In order: first the tables before it.
                self.leaves(&tables[..core::mem::take(&mut len)], &[]);
                self.report_all(gfns);
            }
        }
        let (mut ahead, mut coming) = ([core::ptr::null(); TOGETHER], *left);
        let mut known = 0;
        for offset in bits(&mut coming).take(TOGETHER) {
            let word = group[offset].peek();
            if F::is_table(word, LINKS) {
                // SAFETY: a link of this table, read in the section; the page is only prefetched.
                ahead[known] = unsafe { Node::follow(self.memory, F::pfn(word)).entries() }.as_ptr();
                known += 1;
            }
        }
        self.leaves(&tables[..len], &ahead[..known]);
    }

    /// Clears the bit of a link that is followed, if `gfns` are all pages of its table.
    #[inline(always)]
    fn pass_through(&self, entry: &Entry, word: Word, gfns: Span<Gfn>) {
        let bit = F::touch_link(LINKS);
        if self.how.by_links && self.how.found == Found::Cleared && bit != 0 && gfns.len() == LINKS.pages() {
            // If another thread has replaced the link meanwhile, the new link is read in the next pass.
            let _ = entry.cas(word, Word(word.0 & !bit));
        }
    }

    fn is_over(&self) -> bool {
        self.left == 0 || self.stopped
    }

    /// Scans leaf tables.
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
        self.report(AccessedPages::new(table.gfns.start, (table.gfns.len() as u32, count), bits));
    }

    /// Clears the young entries of a table, and returns their number. It first lists them, and then clears one after
    /// the other, so that a mispredicted end of a group delays no locked instruction. A group of only young entries
    /// needs no list.
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

    /// Clears an entry that was found young. It may be anything by now, even a hole.
    #[inline(always)]
    fn clear_young(&self, entry: &Entry) {
        let word = entry.peek();
        if is_young::<F, B>(word) {
            self.clear(entry, word);
        }
    }

    /// Clears the bit of a young leaf. If the leaf has changed, tries again if the bit must be exact, and otherwise
    /// gives up.
    #[inline(always)]
    fn clear(&self, entry: &Entry, mut word: Word) {
        if self.how.found == Found::Kept {
            return;
        }
        loop {
            let bit = B::of::<F>();
            let aged =
                if F::HARDWARE_AD { Word(word.0 & !bit) } else { Word::withdrawn(&F::read_leaf(word)) };
            match entry.cas(word, aged) {
                Err(found) if B::EXACT && is_young::<F, B>(found) => word = found,
                _ => break,
            }
        }
    }

    /// Reports a large leaf, as far as it is in `gfns`.
    #[cold]
    fn report_all(&mut self, gfns: Span<Gfn>) {
        let mut at = gfns.start;
        while at < gfns.end && !self.stopped {
            let part = Span::new(at, gfns.end.min(at.base(Level::M2) + AccessedPages::<Gfn>::MAX_PAGES));
            self.report(AccessedPages::all(part));
            at = part.end;
        }
    }

    fn report(&mut self, accessed: AccessedPages<Gfn>) {
        self.stopped |= !(self.seen)(accessed);
    }
}

/// Returns the numbers of the set bits, lowest first, and clears each.
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

/// Returns `bits` without the lowest `by`, shifted down.
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

#[cfg(all(test, feature = "std", not(shuttle)))]
mod loom_tests;
