//! Reclaim of table memory from shadows: all of a shadow that no vCPU holds, the longest unused first; or cold tables
//! of a shadow that vCPUs run on.
//!
//! ```text
//! unlinked     a link becomes a hole; a drop, from before it until after it
//! the line     moves: a fault that remembers a table reads the line first, and had read it before it walked to the table
//! flush        of L2's tag: no processor has a link to the tables any more
//! grace        faults that were in a section, and walks that were in a counted walk, have ended
//! freed
//! ```
//! A fault that is in an unlinked table may install a leaf there, which is harmless. The leaf has its hint, so a later
//! invalidation flushes L2's tag, and with it the cached links to that table. A flush by L1 finds the drop.
//!
//! Reclaim loses nothing, and costs faults of L2. Shadows that no vCPU holds therefore go before the tables of L1's own
//! memory, and the others last, by a clock over their links ([`crate::budget`]). The reverse map stays: 8 bytes for
//! each L1 frame that L2 has ever used, and blocks of 64 bytes for those that it used at several places at once.

use super::leaf_rows::Half;
use super::{Dropping, HOLE, Shadow, Shadows};
use crate::active::Active;
use crate::callbacks::Finally;
use crate::sync::prim::Relaxed;
use crate::table::memory::NodeList;
use crate::table::retire::for_tables;
use crate::table::{Cursor, Entry, Node, Pool};
use crate::{Format, Gfn, Level, Span, TableMemory, Word};
use alloc::vec::Vec;

/// Maximum number of subtrees reclaimed at once from a shadow that vCPUs run on.
const AT_ONCE: usize = 16;

/// The root of an unlinked subtree, and its level.
type Top = (Node, Level);

impl<F: Format> Shadows<F> {
    /// Reclaims tables of one shadow: all of one that no vCPU holds; or, of one that is `held`, some cold ones. `flush`
    /// flushes L2's tag in all TLBs, `grace` waits for faults under way. Returns the number of subtrees.
    pub(crate) fn reclaim<M: TableMemory>(
        &self,
        (memory, pool, active): (&M, &Pool, &Active),
        held: bool,
        flush: impl FnOnce(),
        grace: impl FnMut(),
    ) -> u64 {
        // Locked to the end: one reclaim at a time, and no vCPU gets an unheld shadow meanwhile.
        let directory = self.directory.lock();
        let which = directory.iter().enumerate().filter(|(_, named)| (named.pins > 0) == held);
        let mut which: Vec<_> = which.map(|(index, named)| (named.used, index)).collect();
        which.sort_unstable();
        let found = which.into_iter().find_map(|(_, index)| {
            let shadow = self.shadow(index)?;
            let tops = shadow.unlink(memory, &self.drops.taking(active), held);
            (!tops.is_empty()).then_some((shadow, tops))
        });
        let Some((shadow, tops)) = found else { return 0 };
        shadow.line.announce();
        // Also if a kick panics, which `flush` lets out when it is over. Otherwise the tables would be lost.
        let freed = Finally::with((tops, grace), |(tops, grace)| {
            grace();
            shadow.walks.outlast();
            self.free(memory, pool, tops);
        });
        flush();
        freed.0.len() as u64
    }

    /// Frees unlinked subtrees. No TLB, section or walk that has met them is left.
    fn free<M: TableMemory>(&self, memory: &M, pool: &Pool, tops: &[Top]) {
        let (mut back, mut halves) = (NodeList::default(), self.halves.lock());
        for &(top, level) in tops {
            for_tables::<F, M>(memory, top, level, &mut |node| {
                halves.extend(Half::reclaim(memory, node));
                back.push(node);
            });
        }
        self.pair(&mut halves, &mut back);
        pool.give_back(back);
    }

    /// Frees pages of rows of which no table has either half.
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
    /// Unlinks all tables below the root; or some cold ones, from the clock's hand on.
    fn unlink<M: TableMemory>(&self, memory: &M, taking: &Dropping<'_>, only_cold: bool) -> Vec<Top> {
        let mut tops = Vec::new();
        let from = Gfn(self.hand.load(Relaxed));
        // The first round may only clear bits. The last one ends where the first began.
        let rounds: &[Gfn] = if only_cold { &[from, Gfn(0), Gfn(0)] } else { &[Gfn(0)] };
        for &start in rounds {
            // SAFETY: the root stays.
            let root = unsafe { self.radix.root(memory) };
            let all = Span::new(start, Gfn(1 << F::FRAME_BITS));
            let mut cursor = Cursor::<F>::new(root, all, Level::M2);
            // SAFETY: only this function unlinks tables, by one thread at a time.
            while let Some(step) = unsafe { cursor.next(memory) } {
                let at = step.at;
                if F::is_table(at.word, at.level) && (!only_cold || at.is_cold::<F>()) {
                    // SAFETY: as above.
                    let node = unsafe { Node::follow(memory, F::pfn(at.word)) };
                    if unlink::<F>(taking, at.entry, at.word, at.level) {
                        tops.push((node, at.level.down()));
                        self.hand.store(step.gfns.end.0, Relaxed);
                    }
                }
                if only_cold && tops.len() == AT_ONCE {
                    return tops;
                }
            }
            if !tops.is_empty() {
                break;
            }
        }
        tops
    }
}

/// Makes a link a hole, even if hardware sets bits in it meanwhile: only unlinking changes the linked table.
pub(crate) fn unlink<F: Format>(taking: &Dropping<'_>, entry: &Entry, mut word: Word, level: Level) -> bool {
    taking.begin();
    while F::is_table(word, level) {
        match entry.cas(word, HOLE) {
            Ok(()) => return true,
            Err(found) => word = found,
        }
    }
    false
}
