//! Table memory of shadows that goes back: all of a shadow that no vCPU holds, the one that has not been used for longest first; or of the
//! one that a vCPU alone holds, by that vCPU.
//!
//! Refilling it costs faults of L2, and nothing is lost: so shadows go before the tables of L1's own memory. The reverse map stays; it has
//! 8 bytes for each L1 frame that L2 has ever used, whatever the number of shadows.

use super::door::Closed;
use super::rows::Half;
use super::{HOLE, Shadow, Shadows};
use crate::addr::Level;
use crate::sync::prim::Relaxed;
use crate::table::format::Format;
use crate::table::memory::{Node, NodeList, TableMemory};
use crate::table::pool::Pool;
use alloc::vec::Vec;

impl<F: Format> Shadows<F> {
    /// Takes one shadow's tables: `own`, or one that no vCPU holds. `flush` makes all TLBs forget L2's tag, before any page is free. Returns
    /// how many pages are.
    pub(crate) fn reclaim<M: TableMemory>(
        &self,
        (memory, pool): (&M, &Pool),
        own: Option<usize>,
        flush: impl FnOnce(),
    ) -> u64 {
        // Kept to the end: no vCPU gets a shadow meanwhile.
        let mut directory = self.directory.lock();
        let holders = u32::from(own.is_some());
        let free = directory
            .iter_mut()
            .enumerate()
            .filter(|(index, named)| named.holders == holders && own.is_none_or(|own| own == *index));
        let mut free: Vec<_> = free.map(|(index, named)| (named.used, index)).collect();
        free.sort_unstable();
        let found = free.into_iter().find_map(|(_, index)| {
            let shadow = self.shadow(index).filter(|shadow| shadow.has_tables(memory))?;
            Some((shadow, shadow.door.close()?))
        });
        let Some((shadow, closed)) = found else { return 0 };
        flush();
        let mut back = NodeList::default();
        let mut halves = self.halves.lock();
        shadow.take_apart(memory, pool, &closed, &mut back, &mut halves);
        self.pair(&mut halves, &mut back);
        let pages = back.len() as u64;
        pool.give_back(back);
        pages
    }

    /// Pages of rows both of whose halves no table has.
    fn pair(&self, halves: &mut Vec<Half>, back: &mut NodeList) {
        halves.sort_unstable_by_key(Half::address);
        let mut kept = Vec::with_capacity(halves.len());
        for half in halves.drain(..) {
            match kept.pop() {
                Some(before) if half.completes(&before) => {
                    back.push(before.page());
                    self.row_pages.fetch_sub(1, Relaxed);
                }
                before => kept.extend(before.into_iter().chain([half])),
            }
        }
        *halves = kept;
    }
}

impl<F: Format> Shadow<F> {
    /// Whether any table hangs below the root.
    fn has_tables<M: TableMemory>(&self, memory: &M) -> bool {
        // SAFETY: a root stays.
        let root = unsafe { self.radix.root(memory) };
        let has = |page| {
            // SAFETY: as above.
            let entries = unsafe { root.beside(page).entries() };
            entries.iter().any(|entry| F::is_table(entry.peek(), F::ROOT_LEVEL))
        };
        (0..F::ROOT_PAGES).any(has)
    }

    /// The root becomes what it was at first; all tables below go to `back`, their rows to `halves`.
    fn take_apart<M: TableMemory>(
        &self,
        memory: &M,
        pool: &Pool,
        _closed: &Closed<'_>,
        back: &mut NodeList,
        halves: &mut Vec<Half>,
    ) {
        // SAFETY: a root stays.
        let root = unsafe { self.radix.root(memory) };
        for page in 0..F::ROOT_PAGES {
            below::<F, M>(memory, root.beside(page), F::ROOT_LEVEL, &mut |node| {
                halves.extend(Half::take_back::<M>(node));
                back.push(node);
            });
        }
        pool.fill_root(root, HOLE);
    }
}

/// Calls `gone` with each table below `node`, children first.
fn below<F: Format, M: TableMemory>(memory: &M, node: Node, level: Level, gone: &mut impl FnMut(Node)) {
    // SAFETY: no other thread reaches it: the door is closed, and TLBs have been flushed.
    for entry in unsafe { node.entries() } {
        let word = entry.peek();
        if F::is_table(word, level) {
            // SAFETY: a link of this table.
            let child = unsafe { Node::follow(memory, F::pfn(word)) };
            below::<F, M>(memory, child, level.down(), gone);
            gone(child);
        }
    }
}
