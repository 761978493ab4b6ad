//! The stable tree: pages that are shared already. No thread writes to them, so each keeps its place in the order.
//!
//! ```text
//! checksum ─▶ chain of frames: duplicates, each shared by as many entries as are allowed,
//!             or (rarely) other contents with the same checksum
//! ```
//! **The tree holds one reference to each of its frames.** So an entry that maps one is never its sole owner, and
//! a thread that writes gets a copy, even through the last entry: while a frame is in the tree its contents never change
//! and it is not used for anything else. The price is that a frame without entries stays until it is
//! [pruned](Stable::prune), once in each full scan. All other references are entries, the entries that forks
//! have made included: how often a page is shared is its reference count, and needs no book.

use crate::arena::Arena;
use slat::{Pfn, Span};
use std::collections::BTreeMap;

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct Stable(BTreeMap<u64, Vec<Pfn>>);

impl Stable {
    /// Frames whose contents have this checksum, and that fewer than `most` entries share. A merge may add one
    /// entry to the frame that it finds.
    pub(super) fn find(&self, arena: &Arena, checksum: u64, most: u32) -> impl Iterator<Item = Pfn> {
        let chain = self.0.get(&checksum).into_iter().flatten();
        chain.copied().filter(move |&pfn| sharers(arena, pfn) < most)
    }

    /// Adds a frame, with a reference to it that is the tree's from now on.
    pub(super) fn insert(&mut self, checksum: u64, pfn: Pfn) {
        self.0.entry(checksum).or_default().push(pfn);
    }

    /// Frees the frames that no entry maps any more.
    pub(super) fn prune(&mut self, arena: &Arena) {
        self.0.retain(|_, chain| {
            chain.retain(|&pfn| {
                let shared = sharers(arena, pfn) > 0;
                if !shared {
                    give_back(arena, pfn);
                }
                shared
            });
            !chain.is_empty()
        });
    }

    /// How many frames are shared, and how many entries share them beyond the first of each.
    pub(super) fn count(&self, arena: &Arena) -> (u64, u64) {
        let sharers = self.0.values().flatten().map(|&pfn| u64::from(sharers(arena, pfn)));
        sharers.filter(|&count| count > 0).fold((0, 0), |(pages, more), count| (pages + 1, more + count - 1))
    }

    /// Gives every frame back. Those that are still shared are ordinary shares from now on, as after a fork.
    pub(super) fn clear(&mut self, arena: &Arena) {
        for pfn in std::mem::take(&mut self.0).into_values().flatten() {
            give_back(arena, pfn);
        }
    }
}

/// Entries that map a frame to which KSM itself holds a reference.
pub(super) fn sharers(arena: &Arena, pfn: Pfn) -> u32 {
    // The swap cache may have one, too: of a page that was on its way to swap when it was merged.
    arena.references(pfn).saturating_sub(1 + u32::from(arena.is_cached(pfn)))
}

/// Gives KSM's own reference to a merged frame back.
pub(super) fn give_back(arena: &Arena, pfn: Pfn) {
    arena.set_merged(pfn, false);
    arena.put(Span::sized(pfn, 1));
}

#[cfg(test)]
mod tests {
    use super::*;
    use slat::Level;

    #[test]
    fn full_pages_are_not_found_and_unshared_ones_are_pruned() {
        let arena = Arena::builder().limit(2 << 20).build().unwrap();
        let mut tree = Stable::default();
        let [one, two] = [7, 7].map(|checksum| {
            let pfn = arena.page(Level::K4).unwrap().keep();
            arena.set_merged(pfn, true);
            tree.insert(checksum, pfn);
            pfn
        });
        let found = |tree: &Stable, most| tree.find(&arena, 7, most).collect::<Vec<_>>();
        assert_eq!((found(&tree, 2), tree.find(&arena, 8, 2).count()), (vec![one, two], 0));
        let entry = Span::sized(one, 1);
        arena.share(entry);
        arena.share(entry);
        assert_eq!((found(&tree, 2), found(&tree, 3)), (vec![two], vec![one, two]));
        assert_eq!(tree.count(&arena), (1, 1));
        tree.prune(&arena);
        assert_eq!((found(&tree, 3), arena.references(two)), (vec![one], 0));
        tree.clear(&arena);
        assert_eq!((arena.references(one), arena.is_merged(one)), (2, false));
        arena.put(entry);
        arena.put(entry);
        assert_eq!(arena.stats().in_use, 0);
    }
}
