//! The stable tree: shared pages. No thread writes to them, so their order is stable.
//!
//! ```text
//! checksum ─▶ chain of frames: duplicates, each shared by as many entries as allowed,
//!             or (rarely) other contents with the same checksum
//! ```
//! **The tree holds a reference to each of its frames.** So an entry that maps such a frame is never its sole
//! owner. A thread that writes gets a copy, even through the last entry. A frame in the tree never changes, and
//! is not reused. In return, a frame without entries stays until it is [pruned](Stable::prune), once per full
//! scan. All other references are entries, including those made by forks. The number of sharers is therefore
//! the reference count minus one.

use crate::arena::Arena;
use slat::{Pfn, Span};
use std::collections::BTreeMap;

/// Frames by checksum of their contents.
#[derive(Debug, Default)]
pub(super) struct Stable(BTreeMap<u64, Vec<Pfn>>);

impl Stable {
    /// Returns frames with this checksum that fewer than `most` entries share. A merge may add one entry to the
    /// frame that it finds.
    pub(super) fn find(&self, arena: &Arena, checksum: u64, most: u32) -> impl Iterator<Item = Pfn> {
        let chain = self.0.get(&checksum).into_iter().flatten();
        chain.copied().filter(move |&pfn| sharers(arena, pfn) < most)
    }

    /// Adds a frame, and takes over a reference to it.
    pub(super) fn insert(&mut self, checksum: u64, pfn: Pfn) {
        self.0.entry(checksum).or_default().push(pfn);
    }

    /// Frees frames that no entry maps.
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

    /// Returns the number of shared frames, and of entries beyond the first of each.
    pub(super) fn count(&self, arena: &Arena) -> (u64, u64) {
        let sharers = self.0.values().flatten().map(|&pfn| u64::from(sharers(arena, pfn)));
        sharers.filter(|&count| count > 0).fold((0, 0), |(pages, more), count| (pages + 1, more + count - 1))
    }

    /// Drops all frames. Those still shared become ordinary shares, as after a fork.
    pub(super) fn clear(&mut self, arena: &Arena) {
        for pfn in std::mem::take(&mut self.0).into_values().flatten() {
            give_back(arena, pfn);
        }
    }
}

/// Returns the number of entries that map a frame that KSM holds.
pub(super) fn sharers(arena: &Arena, pfn: Pfn) -> u32 {
    // The swap cache may also hold a reference, if the page was being swapped out when it was merged.
    arena.references(pfn).saturating_sub(1 + u32::from(arena.is_cached(pfn)))
}

/// Drops KSM's own reference to a merged frame.
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
