//! The radix table itself: a root, the way down, and the linking of what is missing.
//!
//! One piece of code for both MMUs: the secondary one ([`Vm`](crate::Vm): gfn → frame) and a primary one
//! ([`Map`](super::Map): hva → frame). It is generic in the format and in the memory; the level loop unrolls.

use super::entry::{Entry, Word};
use super::format::Format;
use super::memory::{Node, TableMemory};
use super::pool::{Cache, NoMemory, Pool};
use crate::addr::{Gfn, Level};
use core::marker::PhantomData;

/// A table of format `F`. Its pages are reached through the read side or through an owner; see each method.
#[derive(Debug)]
pub(crate) struct Radix<F> {
    pub(crate) root: Node,
    _format: PhantomData<F>,
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

impl<F: Format> Radix<F> {
    /// An empty table: one root page of holes.
    pub(crate) fn new<M: TableMemory>(memory: &M, pool: &Pool) -> Result<Self, NoMemory> {
        let mut cache = Cache::default();
        pool.top_up(memory, &mut cache, 1)?;
        let root = cache.take().ok_or(NoMemory)?;
        root.fill(Word::hole(super::Version::default()));
        Ok(Self { root, _format: PhantomData })
    }

    /// Down to the lowest entry there is for `gfn`.
    ///
    /// # Safety
    /// For all of `'w` the caller is in a section of the read side, or nothing is unlinked from this table.
    #[inline(always)]
    pub(crate) unsafe fn descend<'w, M: TableMemory>(&self, memory: &M, gfn: Gfn) -> At<'w> {
        let mut node = self.root;
        let mut level = Level(F::LEVELS);
        loop {
            // SAFETY: the root lives as long as the table; lower nodes were linked, see above.
            let entry = unsafe { &node.entries()[F::index(gfn, level)] };
            let word = entry.load();
            if !F::is_table(word, level) {
                return At { node, entry, word, level };
            }
            // SAFETY: a link of this table, read in the section.
            node = unsafe { Node::follow(memory, F::pfn(word)) };
            level = level.down();
        }
    }

    /// The table of `level` that serves `gfn`, if there is one, from `top`, a table of a higher level or the root:
    /// the same way down, for those who want nothing else.
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
            at = at.down();
        }
        Some(node)
    }

    /// Links tables below the hole `at` until `level` is reached. No stamp is asked: a new table is filled with
    /// the very hole that it replaces, so every entry keeps its version (rule 4 of the protocol). Stops early
    /// where another thread changed an entry first; the caller looks at what came back.
    ///
    /// # Safety
    /// As [`descend`](Self::descend).
    pub(crate) unsafe fn link_down<'w, M: TableMemory>(
        memory: &M,
        cache: &mut Cache,
        gfn: Gfn,
        mut at: At<'w>,
        level: Level,
    ) -> Result<At<'w>, NoMemory> {
        while at.level > level && at.word.is_hole() {
            let node = cache.take().ok_or(NoMemory)?;
            node.fill(at.word);
            match at.entry.cas(at.word, F::link(node.pfn(memory), at.level)) {
                Ok(()) => {
                    let level = at.level.down();
                    // SAFETY: just linked; the caller's section began before it can be unlinked.
                    let entry = unsafe { &node.entries()[F::index(gfn, level)] };
                    at = At { node, entry, word: entry.load(), level };
                }
                Err(found) => {
                    cache.put_back(node);
                    at.word = found;
                    if F::is_table(found, at.level) {
                        // SAFETY: a link of this table, read in the section.
                        at = unsafe { Self::step_down(memory, gfn, at) };
                    }
                }
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
        let level = at.level.down();
        // SAFETY: as above.
        let entry = unsafe { &node.entries()[F::index(gfn, level)] };
        At { node, entry, word: entry.load(), level }
    }
}
