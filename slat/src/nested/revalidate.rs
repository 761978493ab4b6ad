//! A flush by L1: keeps the leaves that T still confirms.
//!
//! ```text
//! the line moves                        faults that have read T before install nothing
//! for each table of the shadow that has leaves, in a section of its own
//!   T's entries for the same addresses  read all at once
//!   leaf by leaf: row = T's frame and type, rights within T's, A, D for stores?     it stays
//!   a large leaf where T has a table now: split, then each part is checked
//!   otherwise                           a hole; a vCPU that caches it finds it among the drops
//!   frozen?                             condemned
//! ```
//! Holes stay as they are. A vCPU flushes its TLB only if anything was dropped since its last flush. A flush by L1 that
//! changes nothing writes only the line. If a table of T cannot be read without sleeping, it confirms nothing.
//!
//! Most entries of a table differ from the entry before only in the frame. The verdict on all other bits is kept.

use super::entry_words::GuestWords;
use super::format::L1Format;
use super::l1_mapping::L1Mapping;
use crate::shadows::{
    CountedWalk, Dropping, LeafRow, Reach, Rows, Shadow, Shadows, SplitPages, edit, is_leaf, maps,
};
use crate::slots::publish::Reading;
use crate::sync::readside::Seat;
use crate::table::{Cache, Cursor, ENTRIES, Entry, Node, Step};
use crate::{Format, Gfn, GuestSpace, Host, Level, MemoryType, Perms, Span, Word};

/// The shadow, the table and the slots that a flush goes over.
pub(super) struct Revalidation<'a, F: Format, H: Host, T> {
    pub(super) slots: GuestSpace<'a, F, H>,
    pub(super) shadows: &'a Shadows<F>,
    pub(super) shadow: &'a Shadow<F>,
    pub(super) table: T,
}

/// The last leaf that stayed, and T's entry: their bits without the frames.
#[derive(Clone, Copy)]
struct Verdict {
    leaf: u64,
    entry: u64,
    memory: MemoryType,
}

impl<F: Format, H: Host, T: L1Format> Revalidation<'_, F, H, T> {
    /// Drops all of `g2s` that T no longer confirms. The caller has moved the line.
    pub(super) fn run(&self, seat: &Seat, inside: &CountedWalk<'_>, g2s: Span<Gfn>) {
        let vm = self.slots.vm;
        self.shadows.count_pass();
        let (taking, mut spare) = (self.shadows.drops.taking(&vm.active), vm.pool.scratch());
        self.over((seat, inside), g2s, &taking, &mut spare);
    }

    fn over(
        &self,
        (seat, inside): (&Seat, &CountedWalk<'_>),
        g2s: Span<Gfn>,
        taking: &Dropping<'_>,
        cache: &mut Cache,
    ) {
        let memory = self.slots.vm.tables();
        // SAFETY: the root stays.
        let root = unsafe { self.shadow.radix.root(memory) };
        let mut cursor = Cursor::<F>::new(root, g2s, Level::M2);
        // SAFETY: in a counted walk.
        while let Some(step) = unsafe { cursor.next(memory) } {
            let Step { mut at, gfns } = step;
            if maps::<F>(&at) {
                // SAFETY: linked.
                let row =
                    unsafe { Rows::of(memory, at.node) }.map(|rows| rows.get(F::index(gfns.start, at.level)));
                let reading = self.read_slots(seat);
                let mapping = self.l1_mapping(&reading, gfns.start);
                if row.is_some_and(|row| self.stays_large(&mapping, (at.word, at.level), row)) {
                    continue;
                }
                let level = mapping.level();
                drop(reading);
                if level < at.level {
                    // A table, and half a page of rows at most.
                    self.slots.vm.pool.top_up_free(cache, 2);
                    let (to, at_entry) = ((self.shadow, inside), (at, gfns.start));
                    let split = self.shadows.split(memory, to, taking, at_entry, &mut SplitPages::of(cache));
                    at.word = split.unwrap_or(at.word);
                    // L1 flushes a page as large as its TLB may hold it.
                    if F::is_table(at.word, at.level) && !g2s.covers(&gfns) {
                        self.over((seat, inside), gfns, taking, cache);
                        continue;
                    }
                }
            }
            if F::is_table(at.word, Level::M2) && at.level == Level::M2 {
                // SAFETY: a link of this table.
                let node = unsafe { Node::follow(memory, F::pfn(at.word)) };
                self.leaf_table(seat, node, gfns.clamp(&g2s), taking);
            } else if maps::<F>(&at) || at.word.is_frozen() {
                edit::<F>(taking, at.entry, at.word, at.level, Reach::Zap);
            }
        }
    }

    /// Begins the section in which T is read.
    fn read_slots<'r>(&'r self, seat: &'r Seat) -> Reading<'r> {
        self.slots.space.memslots.read(&self.slots.vm.reads, seat)
    }

    /// Returns T's translation of the 2 MiB around `g2`.
    fn l1_mapping<'r>(&'r self, reading: &'r Reading<'_>, g2: Gfn) -> L1Mapping<'r, H> {
        let words = GuestWords::new(self.slots.vm.host(), reading.within());
        L1Mapping::look(words, &mut |gfn| reading.version().find(gfn), &self.table, g2)
    }

    fn stays_large(&self, mapping: &L1Mapping<'_, H>, (word, level): (Word, Level), row: LeafRow) -> bool {
        let &L1Mapping::Page(entry, t, g1, upper, of_t) = mapping else { return false };
        of_t >= level
            && row.is(LeafRow::new(g1, entry.memory))
            && within::<F>(word, upper.allows(&self.table, &entry, t))
    }

    fn leaf_table(&self, seat: &Seat, node: Node, g2s: Span<Gfn>, taking: &Dropping<'_>) {
        let (first, count) = (F::index(g2s.start, Level::K4), g2s.len() as usize);
        // SAFETY: a table of the shadow, met in a counted walk.
        let (entries, rows) = unsafe { (node.entries(), Rows::of(self.slots.vm.tables(), node)) };
        let mut words = [Word(0); ENTRIES];
        let words = &mut words[..count];
        let (mut page, mut upper) = (None, None);
        let reading = self.read_slots(seat);
        match self.l1_mapping(&reading, g2s.start) {
            L1Mapping::Table(memory, hva, above) if memory.read_all(&self.table, (hva, first), words) => {
                upper = Some(above);
            }
            L1Mapping::Page(entry, t, g1, above, _) => {
                words.fill(t);
                (page, upper) = (Some((entry, g1)), Some(above));
            }
            _ => {}
        }
        let leaves = Leaves { entries: &entries[first..first + count], words, rows, first };
        let mut verdict = None;
        let mut nth = 0;
        while nth < count {
            if leaves.all_stay::<F, T>(nth, verdict) {
                nth += AT_ONCE;
                continue;
            }
            let end = (nth + AT_ONCE).min(count);
            for (nth, (entry, &t)) in (nth..end).zip(leaves.entries[nth..end].iter().zip(&words[nth..end])) {
                let word = entry.load();
                if word.is_hole() {
                    continue;
                }
                let stays = is_leaf::<F>(word)
                    && rows.zip(upper).is_some_and(|(rows, upper)| {
                        let row = rows.get(first + nth);
                        let (g1, entry) = match page {
                            Some((entry, g1)) => (g1 + (first + nth) as u64, entry),
                            None => match self.table.entry(t, Level::K4) {
                                Ok(entry) => (entry.gfn, entry),
                                Err(_) => return false,
                            },
                        };
                        let stays = row.is(LeafRow::new(g1, entry.memory))
                            && within::<F>(word, upper.allows(&self.table, &entry, t));
                        if stays && page.is_none() && T::LEAF_FRAME != 0 && F::is_present(word) {
                            let entry_but_frame = t.0 & !T::LEAF_FRAME;
                            verdict = Some(Verdict {
                                leaf: plain::<F>(word),
                                entry: entry_but_frame,
                                memory: entry.memory,
                            });
                        }
                        stays
                    });
                if !stays {
                    edit::<F>(taking, entry, word, Level::K4, Reach::Zap);
                }
            }
            nth = end;
        }
    }
}

/// Number of leaves that are compared at once.
const AT_ONCE: usize = 8;

/// Leaves of a table, T's entries for the same addresses, and the rows of the table from `first` on.
struct Leaves<'a> {
    entries: &'a [Entry],
    words: &'a [Word],
    rows: Option<Rows<'a>>,
    first: usize,
}

impl Leaves<'_> {
    /// Whether the verdict on the last leaf covers the next ones, so that they stay.
    #[inline(always)]
    fn all_stay<F: Format, T: L1Format>(&self, from: usize, verdict: Option<Verdict>) -> bool {
        let parts = (self.entries.get(from..from + AT_ONCE), self.words.get(from..from + AT_ONCE));
        let ((Some(entries), Some(words)), Some(rows), Some(verdict)) = (parts, self.rows, verdict) else {
            return false;
        };
        let mut differs = 0;
        for (nth, (entry, t)) in entries.iter().zip(words).enumerate() {
            // The leaf before its row.
            let leaf = plain::<F>(entry.load()) ^ verdict.leaf;
            let row = rows.get(self.first + from + nth).differs(frame::<T>(*t), verdict.memory);
            differs |= leaf | (t.0 & !T::LEAF_FRAME) ^ verdict.entry | row;
        }
        differs == 0
    }
}

/// The frame that an entry of T names.
#[inline(always)]
fn frame<T: L1Format>(entry: Word) -> Gfn {
    Gfn((entry.0 & T::LEAF_FRAME) >> T::LEAF_FRAME.trailing_zeros())
}

/// A leaf without its frame, A and D.
#[inline(always)]
fn plain<F: Format>(word: Word) -> u64 {
    word.0 & !(F::ADDRESS | F::ACCESSED | F::DIRTY)
}

/// Whether a leaf allows no more than `allowed`.
fn within<F: Format>(word: Word, allowed: Perms) -> bool {
    allowed != Perms::NONE && F::decode(word).perms.without(allowed) == Perms::NONE
}
