//! The radix table itself: a root, the way down, and the linking of what is missing.
//!
//! One piece of code for both MMUs: the secondary one ([`Vm`](crate::Vm): gfn → frame) and a primary one
//! ([`Map`](super::Map): hva → frame). It is generic in the format and in the memory; the level loop unrolls.

use super::entry::{Entry, Word};
use super::format::{Format, Leaf};
use super::memory::{Node, NodeList, TableMemory};
use super::pool::{Cache, NoMemory, Pool};
use crate::addr::{Gfn, Level, Pfn};
use crate::sync::prim::{AcqRel, Acquire, AtomicU64};
use core::marker::PhantomData;

/// A table of format `F`. Its pages are reached through the read side or through an owner; see each method.
///
/// The root is one more entry, above all others: it can be replaced, and what hung there dies like any subtree.
#[derive(Debug)]
pub(crate) struct Radix<F> {
    root: RootWord,
    _format: PhantomData<F>,
}

/// The frame of a root's page: for walks and for the hardware.
#[derive(Debug)]
pub(crate) struct RootWord(AtomicU64);

impl RootWord {
    /// At this moment.
    pub(crate) fn pfn(&self) -> Pfn {
        // ORDER(link): Acquire pairs with the Release of `replace_root`, as in `Entry::load`; a vCPU's look at its
        // flushes stays before it.
        Pfn(self.0.load(Acquire))
    }
}

/// An entry that a walk reached, and what it held at that moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'w> {
    /// The table that the entry stands in.
    pub(crate) node: Node,
    pub(crate) entry: &'w Entry,
    /// The snapshot that decisions are made on, and that every CAS starts from.
    pub(crate) word: Word,
    pub(crate) level: Level,
}

impl At<'_> {
    /// Whether nothing has been used below a link since the last look; clears its Accessed bit.
    pub(crate) fn is_cold<F: Format>(self) -> bool {
        let accessed = F::touch_link(self.level);
        if accessed == 0 && self.level > Level::M2 {
            return false;
        }
        let is_cold = self.word.0 & accessed == 0;
        if !is_cold {
            // Where that fails it was used, or is gone.
            let _ = self.entry.cas(self.word, Word(self.word.0 & !accessed));
        }
        is_cold
    }
}

/// What a table gets beside it before it is linked.
pub(crate) trait Beside {
    /// A table of this level is about to be linked.
    fn hang(&mut self, node: Node, level: Level);
    /// It was not.
    fn take_back(&mut self, node: Node);
}

impl Beside for () {
    fn hang(&mut self, _: Node, _: Level) {}
    fn take_back(&mut self, _: Node) {}
}

impl<F: Format> Radix<F> {
    /// An empty table: a root of holes.
    pub(crate) fn new<M: TableMemory>(memory: &M, pool: &Pool) -> Result<Self, NoMemory> {
        let mut cache = Cache::default();
        pool.top_up(memory, &mut cache, F::ROOT_PAGES, || false)?;
        let root = pool.root(memory, &mut cache).inspect_err(|_| pool.give_back(cache.drain()))?;
        pool.fill_root(root, Word::hole(super::Version::default()));
        Ok(Self { root: RootWord(AtomicU64::new(root.pfn(memory).0)), _format: PhantomData })
    }

    /// The root goes back to the pool.
    ///
    /// # Safety
    /// No thread but this one has ever reached it, and nothing is linked below it.
    pub(crate) unsafe fn give_back<M: TableMemory>(self, memory: &M, pool: &Pool) {
        let mut roots = NodeList::default();
        // SAFETY: the caller has it alone.
        roots.push(unsafe { self.root(memory) });
        if F::ROOT_PAGES == 1 { pool.give_back(roots) } else { pool.give_back_roots(roots) }
    }

    /// What the hardware is to load, at this moment and later.
    pub(crate) fn root_word(&self) -> &RootWord {
        &self.root
    }

    /// The root's page, the first where it has several.
    ///
    /// # Safety
    /// As [`descend`](Self::descend).
    #[inline(always)]
    pub(crate) unsafe fn root<M: TableMemory>(&self, memory: &M) -> Node {
        // SAFETY: the root is linked as long as it is here, and stays for the section.
        unsafe { Node::follow(memory, self.root.pfn()) }
    }

    /// The root's page that serves `gfn`.
    ///
    /// # Safety
    /// As [`descend`](Self::descend).
    #[inline(always)]
    pub(crate) unsafe fn top<M: TableMemory>(&self, memory: &M, gfn: Gfn) -> Node {
        // SAFETY: the caller's word.
        unsafe { self.root(memory) }.beside(F::root_page(gfn))
    }

    /// Puts `fresh`, filled, in the root's place, and returns the old root: to be flushed, waited for and taken
    /// apart.
    pub(crate) fn replace_root<M: TableMemory>(&self, memory: &M, fresh: Node) -> Node {
        // ORDER(link): Release publishes the filled page; Acquire, as in `Entry::cas`.
        let old = self.root.0.swap(fresh.pfn(memory).0, unless_seeded!(RootRelaxed, AcqRel));
        #[cfg(test)]
        super::history::wrote();
        // SAFETY: the frame of a page of this memory, that only the caller takes apart.
        unsafe { Node::follow(memory, Pfn(old)) }
    }

    /// Down to the lowest entry there is for `gfn`.
    ///
    /// # Safety
    /// For all of `'w` the caller is in a section of the read side, or nothing is unlinked from this table.
    #[inline(always)]
    pub(crate) unsafe fn descend<'w, M: TableMemory>(&self, memory: &M, gfn: Gfn) -> At<'w> {
        // SAFETY: the caller's word.
        let mut node = unsafe { self.top(memory, gfn) };
        let mut level = F::ROOT_LEVEL;
        loop {
            // SAFETY: linked when it was read, see above.
            let entry = unsafe { &node.entries()[F::index(gfn, level)] };
            let word = entry.load();
            if !F::is_table(word, level) {
                return At { node, entry, word, level };
            }
            // SAFETY: a link of this table, read in the section.
            node = unsafe { Node::follow(memory, F::pfn(word)) };
            level = below(level);
        }
    }

    /// The table of `level` that serves `gfn`, if there is one, from `top`, a table of a higher level or the root:
    /// the same way down, for callers that want nothing else.
    ///
    /// # Safety
    /// As [`descend`](Self::descend); `top` serves `gfn` and is linked.
    #[inline(always)]
    pub(crate) unsafe fn table<M: TableMemory>(
        memory: &M,
        (top, top_level): (Node, Level),
        gfn: Gfn,
        level: Level,
    ) -> Option<Node> {
        let (mut node, mut at) = (top, top_level);
        while at > level {
            // SAFETY: as in `descend`.
            let word = unsafe { &node.entries()[F::index(gfn, at)] }.load();
            if !F::is_table(word, at) {
                return None;
            }
            // SAFETY: a link of this table, read in the section.
            node = unsafe { Node::follow(memory, F::pfn(word)) };
            at = below(at);
        }
        Some(node)
    }

    /// Links tables below the hole `at` until `level` is reached. No stamp is asked: a new table is filled with
    /// the very hole that it replaces, so every entry keeps its version (rule 4 of [`crate::notify`]). Stops early
    /// where another thread changed an entry first; the caller looks at what came back.
    ///
    /// # Safety
    /// As [`descend`](Self::descend).
    pub(crate) unsafe fn link_down<'w, M: TableMemory>(
        memory: &M,
        cache: &mut Cache,
        gfn: Gfn,
        at: At<'w>,
        level: Level,
    ) -> Result<At<'w>, NoMemory> {
        // SAFETY: the caller's word.
        unsafe { Self::link_down_beside(memory, cache, &mut (), gfn, at, level) }
    }

    /// The same, with something beside each table.
    ///
    /// # Safety
    /// As [`descend`](Self::descend).
    pub(crate) unsafe fn link_down_beside<'w, M: TableMemory>(
        memory: &M,
        cache: &mut Cache,
        beside: &mut impl Beside,
        gfn: Gfn,
        mut at: At<'w>,
        level: Level,
    ) -> Result<At<'w>, NoMemory> {
        while at.level > level && at.word.is_hole() {
            let node = cache.take().ok_or(NoMemory)?;
            node.fill(if seeded!(LinkForgetsNumber) {
                Word::hole(super::Version::default())
            } else {
                at.word
            });
            beside.hang(node, below(at.level));
            let link = F::link(node.pfn(memory), at.level);
            at.word = match at.entry.cas(at.word, link) {
                Err(found) if !seeded!(LostLinkBelieved) => {
                    beside.take_back(node);
                    cache.put_back(node);
                    found
                }
                _ => link,
            };
            if F::is_table(at.word, at.level) {
                // SAFETY: a link of this table, made or read in the section.
                at = unsafe { Self::step_down(memory, gfn, at) };
            }
        }
        Ok(at)
    }

    /// From an entry that links a table to `gfn`'s entry in it.
    ///
    /// # Safety
    /// As [`descend`](Self::descend).
    pub(crate) unsafe fn step_down<'w, M: TableMemory>(memory: &M, gfn: Gfn, at: At<'w>) -> At<'w> {
        // SAFETY: a link of this table, read in the section.
        let node = unsafe { Node::follow(memory, F::pfn(at.word)) };
        let level = below(at.level);
        // SAFETY: as above.
        let entry = unsafe { &node.entries()[F::index(gfn, level)] };
        At { node, entry, word: entry.load(), level }
    }
}

/// The level of the table that a link at `level` leads to.
#[inline(always)]
pub(super) const fn below(level: Level) -> Level {
    // SAFETY: no format takes a word at level 1 for a link (`Format::is_table`).
    unsafe { level.down_unchecked() }
}

/// Fills `node` with smaller leaves that say together what `large` does, and puts it in its place, which is `at`: returns the link. The large
/// leaf stands in its entry as `word`, or did before the caller froze that.
pub(crate) fn link_parts<F: Format, M: TableMemory>(
    memory: &M,
    node: Node,
    at: At<'_>,
    (word, large): (Word, Leaf),
) -> Result<Word, Word> {
    // An aging pass asks the link whether anything below was accessed.
    let young = if large.accessed { F::touch_link(at.level) } else { 0 };
    let link = Word(F::link(node.pfn(memory), at.level).0 | young);
    let linked = seeded!(SplitLinksFirst) && {
        node.fill(Word(0));
        at.entry.cas(at.word, link).is_ok()
    };
    // SAFETY: the page is in no table yet.
    fill_parts::<F>(unsafe { node.entries() }, word, large, at.level.down());
    if seeded!(SplitByStore) {
        at.entry.store(link);
    }
    if !linked && !seeded!(SplitByStore) {
        at.entry.cas(at.word, link)?;
    }
    Ok(link)
}

/// Writes the small leaves, of `level`, of a large one that stands in its entry as `word`.
pub(crate) fn fill_parts<F: Format>(entries: &[Entry], word: Word, large: Leaf, level: Level) {
    for (index, entry) in entries.iter().enumerate() {
        let small = Leaf { pfn: large.pfn + index as u64 * level.pages(), ..large };
        // Of a leaf withdrawn from the hardware come leaves withdrawn.
        entry.fill(if word.is_tracked() { Word::tracked(&small) } else { F::leaf(&small, level) });
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
