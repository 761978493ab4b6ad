//! The radix table: a root, the descent, and the linking of missing tables.
//!
//! Both MMUs use it: the secondary one ([`Vm`](crate::Vm): gfn → frame) and a primary one ([`Map`](crate::map::Map): hva →
//! frame). It is generic over format and memory. The compiler unrolls the loop over levels.

use super::{Cache, Entry, Format, Kind, Leaf, NoMemory, Node, Pool, TableMemory, Word};
use crate::addr::{Gfn, Level, Pfn};
use crate::sync::prim::AtomicU64;
use core::marker::PhantomData;

/// A table of format `F`. Threads reach its pages through the read side, or through an owner; see each method.
///
/// The root is one more entry, above all others. It can be replaced, and the old tables then die like any subtree.
#[derive(Debug)]
pub(crate) struct Radix<F> {
    root: RootWord,
    _format: PhantomData<F>,
}

/// The frame of a root's page, for walks and for the hardware.
#[derive(Debug)]
pub(crate) struct RootWord(AtomicU64);

impl RootWord {
    /// Returns the current frame.
    pub(crate) fn pfn(&self) -> Pfn {
        // Pairs with the Release of `replace`, as in `Entry::load`. A vCPU's check of its flushes stays before it.
        Pfn(self.0.load(order!(link.root, Acquire)))
    }

    /// Replaces the root by a table that is filled. Returns the old one.
    pub(super) fn replace(&self, fresh: Pfn) -> Pfn {
        // Release publishes the filled page; Acquire, as in `Entry::cas`.
        let old = self.0.swap(fresh.0, order!(link.replace_root, AcqRel));
        #[cfg(test)]
        super::history::wrote();
        Pfn(old)
    }
}

/// An entry that a walk reached, and its word at that moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'w> {
    /// The table that contains the entry.
    pub(crate) node: Node,
    pub(crate) entry: &'w Entry,
    /// The snapshot for decisions. Every CAS starts from it.
    pub(crate) word: Word,
    pub(crate) level: Level,
}

impl At<'_> {
    /// Whether nothing below a link was accessed since the last call. Clears the link's Accessed bit.
    pub(crate) fn is_cold<F: Format>(self) -> bool {
        let accessed = F::touch_link(self.level);
        if accessed == 0 && self.level > Level::M2 {
            return false;
        }
        let is_cold = self.word.0 & accessed == 0;
        if !is_cold {
            // If this fails, the table was accessed or removed.
            let _ = self.entry.cas(self.word, Word(self.word.0 & !accessed));
        }
        is_cold
    }
}

/// Where a descent to a wanted level ended.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) enum Reached<'w> {
    /// An entry of that level. It may be a lower one if the descent began below a table that was linked already.
    Level(At<'w>),
    /// At an entry above it, in which another thread has put a leaf or a mark meanwhile. The caller begins again.
    Changed,
}

/// Work that accompanies the linking of a table.
pub(crate) trait Beside {
    /// Called when a table of this level is about to be linked.
    fn hang(&mut self, node: Node, level: Level);
    /// Called when the link lost a race.
    fn reclaim(&mut self, node: Node);
}

impl Beside for () {
    fn hang(&mut self, _: Node, _: Level) {}
    fn reclaim(&mut self, _: Node) {}
}

impl<F: Format> Radix<F> {
    /// Creates an empty table: a root of holes.
    pub(crate) fn new<M: TableMemory>(memory: &M, pool: &Pool) -> Result<Self, NoMemory> {
        let mut spare = pool.scratch();
        pool.top_up(memory, &mut spare, F::ROOT_PAGES, || false)?;
        let root = pool.root(memory, &mut spare)?;
        pool.fill_root(root, Word::hole(super::Version::default()));
        Ok(Self { root: RootWord(AtomicU64::new(root.pfn(memory).0)), _format: PhantomData })
    }

    /// Returns the root to the pool.
    ///
    /// # Safety
    /// No other thread has ever reached the root, and nothing is linked below it.
    pub(crate) unsafe fn give_back<M: TableMemory>(self, memory: &M, pool: &Pool) {
        // SAFETY: only the caller reaches it.
        pool.give_root_back(unsafe { self.root(memory) });
    }

    /// The word of the root that hardware must load.
    pub(crate) fn root_word(&self) -> &RootWord {
        &self.root
    }

    /// Returns the root's page, the first of several.
    ///
    /// # Safety
    /// As [`descend`](Self::descend).
    #[inline(always)]
    pub(crate) unsafe fn root<M: TableMemory>(&self, memory: &M) -> Node {
        // SAFETY: the root is linked while it is in this word, and stays allocated for the section.
        unsafe { Node::follow(memory, self.root.pfn()) }
    }

    /// Returns the root's page for `gfn`.
    ///
    /// # Safety
    /// As [`descend`](Self::descend).
    #[inline(always)]
    pub(crate) unsafe fn top<M: TableMemory>(&self, memory: &M, gfn: Gfn) -> Node {
        // SAFETY: the caller guarantees it.
        unsafe { self.root(memory) }.beside(F::root_page(gfn))
    }

    /// Replaces the root by `fresh`, which is filled. Returns the old root, which the caller must flush, wait for and
    /// take apart.
    pub(crate) fn replace_root<M: TableMemory>(&self, memory: &M, fresh: Node) -> Node {
        let old = self.root.replace(fresh.pfn(memory));
        // SAFETY: the frame of a page of this memory, which only the caller takes apart.
        unsafe { Node::follow(memory, old) }
    }

    /// Descends to the lowest entry of `gfn`.
    ///
    /// # Safety
    /// For all of `'w` the caller is in a section of the read side, or nothing is unlinked from this table.
    #[inline(always)]
    pub(crate) unsafe fn descend<'w, M: TableMemory>(&self, memory: &M, gfn: Gfn) -> At<'w> {
        // SAFETY: the caller guarantees it.
        let mut node = unsafe { self.top(memory, gfn) };
        let mut level = F::ROOT_LEVEL;
        loop {
            // SAFETY: linked when it was read, as above.
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

    /// Returns the table of `level` for `gfn`, if there is one, starting at `top`, a table of a higher level or the
    /// root.
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

    /// Returns `gfn`'s entry of `level`, or a lower one if a table is linked there. Links the missing tables.
    ///
    /// # Safety
    /// As [`descend`](Self::descend).
    pub(crate) unsafe fn reach<'w, M: TableMemory>(
        &self,
        memory: &M,
        cache: &mut Cache,
        gfn: Gfn,
        level: Level,
    ) -> Result<Reached<'w>, NoMemory> {
        // SAFETY: required of the caller.
        unsafe { Self::link_down(memory, cache, &mut (), gfn, self.descend(memory, gfn), level) }
    }

    /// Links tables below the hole `at` until `level` is reached, and calls `beside` for each. Needs no stamp: a new table
    /// is filled with the hole that it replaces, so every entry keeps its version (rule 4 of [`crate::notify`]). Goes on
    /// through tables that other threads link meanwhile, however many.
    ///
    /// # Safety
    /// As [`descend`](Self::descend).
    pub(crate) unsafe fn link_down<'w, M: TableMemory>(
        memory: &M,
        cache: &mut Cache,
        beside: &mut impl Beside,
        gfn: Gfn,
        mut at: At<'w>,
        level: Level,
    ) -> Result<Reached<'w>, NoMemory> {
        while at.level > level {
            match at.word.kind::<F>(at.level) {
                Kind::Table(_) => {
                    // SAFETY: a link of this table, made or read in the section.
                    at = unsafe { Self::step_down(memory, gfn, at) };
                    continue;
                }
                Kind::Hole(_) => {}
                _ => return Ok(Reached::Changed),
            }
            let node = cache.take().ok_or(NoMemory)?;
            node.fill(at.word);
            beside.hang(node, below(at.level));
            let link = F::link(node.pfn(memory), at.level);
            at.word = match at.entry.cas(at.word, link) {
                Ok(()) => link,
                Err(found) => {
                    beside.reclaim(node);
                    cache.put_back(node);
                    found
                }
            };
        }
        Ok(Reached::Level(at))
    }

    /// Descends from an entry that links a table to `gfn`'s entry in it.
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

/// Returns the level of the table below a link at `level`.
#[inline(always)]
pub(super) const fn below(level: Level) -> Level {
    // SAFETY: no format treats a word at level 1 as a link (`Format::is_table`).
    unsafe { level.down_unchecked() }
}

/// Fills `node` with smaller leaves that together equal `large`, and replaces the entry `at` by a link to it. Returns
/// the link. `word` encodes the large leaf; it is in the entry, or was before the caller froze it.
pub(crate) fn link_parts<F: Format, M: TableMemory>(
    memory: &M,
    node: Node,
    at: At<'_>,
    (word, large): (Word, Leaf),
) -> Result<Word, Word> {
    // Aging passes read the link to learn whether anything below it was accessed.
    let young = if large.accessed { F::touch_link(at.level) } else { 0 };
    let link = Word(F::link(node.pfn(memory), at.level).0 | young);
    // SAFETY: the page is in no table yet.
    fill_parts::<F>(unsafe { node.entries() }, word, large, at.level.down());
    at.entry.cas(at.word, link)?;
    Ok(link)
}

/// Writes the small leaves, of `level`, of a large leaf encoded as `word`.
pub(crate) fn fill_parts<F: Format>(entries: &[Entry], word: Word, large: Leaf, level: Level) {
    for (index, entry) in entries.iter().enumerate() {
        let small = Leaf { pfn: large.pfn + index as u64 * level.pages(), ..large };
        // A withdrawn leaf is split into withdrawn leaves.
        entry.fill(if word.is_withdrawn() { Word::withdrawn(&small) } else { F::leaf(&small, level) });
    }
}

#[cfg(all(test, feature = "std", not(shuttle)))]
mod loom_tests;
