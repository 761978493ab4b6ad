//! The reader's side: a version by its root, look-ups on one path, and ordered walks that skip subtrees.

use super::node::{End, Key, Link, Node};
use crate::prim::{self, word};
use core::ops::{Range, RangeFrom};
use core::ptr::NonNull;

/// More levels than needed: an eleventh level needs 2 · 10^10 entries, and ids have 32 bits.
const MAX_HEIGHT: usize = 10;

/// One version of a tree for publication, in one word.
#[derive(Clone, Copy)]
pub(crate) struct Root<K: Key, V: Copy, E: End = ()>(pub(super) Option<Link<K, V, E>>);

/// One version of a tree, protected during `'g`.
#[derive(Clone, Copy)]
pub(crate) struct View<'g, K: Key, V: Copy, E: End = ()> {
    pub(super) root: Option<&'g Node<K, V, E>>,
}

impl<K: Key, V: Copy, E: End> Root<K, V, E> {
    /// The version without entries.
    pub(crate) const EMPTY: Self = Self(None);

    /// Converts the root to a pointer; null for no entries.
    pub(crate) fn into_raw(self) -> *mut () {
        self.0.map_or(core::ptr::null_mut(), |link| link.0.as_ptr().cast())
    }

    /// Converts a pointer of `into_raw` back to the root.
    ///
    /// # Safety
    /// `raw` came from `into_raw` of a root of this type.
    pub(crate) unsafe fn from_raw(raw: *mut ()) -> Self {
        Self(NonNull::new(raw.cast()).map(Link))
    }

    /// Reads this version.
    ///
    /// # Safety
    /// During `'g` the tree lives, and what it has retired since it published this root is not reclaimed. For
    /// example, `'g` is a read section that found this root published, and a grace period separates the next
    /// publication from the reclaim.
    #[inline(always)]
    pub(crate) unsafe fn read<'g>(self) -> View<'g, K, V, E> {
        // SAFETY: by the condition above, this root keeps its nodes during `'g`.
        View { root: self.0.map(|link| unsafe { &(*link.0.as_ptr()).body }) }
    }
}

impl<'g, K: Key, V: Copy + 'g, E: End> View<'g, K, V, E> {
    /// Whether there are no entries.
    #[inline(always)]
    pub(crate) fn is_empty(self) -> bool {
        self.root.is_none()
    }

    /// Returns the entry with the greatest key ≤ `key`.
    #[inline]
    pub(crate) fn floor(self, key: K) -> Option<(K, V)> {
        self.floor_interval(key).map(|(key, value, _)| (key, value))
    }

    /// Returns the entry with the greatest key ≤ `key`, with its end.
    #[inline]
    pub(crate) fn floor_interval(self, key: K) -> Option<(K, V, E)> {
        let mut node = self.root?;
        while node.level > 0 {
            node = node.child(node.rank(key).saturating_sub(1));
        }
        let at = node.rank(key).checked_sub(1)?;
        node.entry_is_read(at);
        Some((node.keys[at], node.value(at), node.ends[at]))
    }

    /// Returns the value of `key`.
    #[inline]
    pub(crate) fn get(self, key: K) -> Option<V> {
        self.floor(key).filter(|&(found, _)| found == key).map(|(_, value)| value)
    }

    /// Returns all entries with keys from `keys.start` on, in key order.
    pub(crate) fn range(self, keys: RangeFrom<K>) -> impl Iterator<Item = (K, V)> + use<'g, K, V, E> {
        let from = keys.start;
        let places = self.walk(move |node| u64::MAX << node.skipped(from));
        places.map(|(node, at)| (node.keys[at], node.value(at)))
    }

    /// Returns all entries with a key in `keys` and an end > `from`, with their ends, in key order. If `keys`
    /// starts at the least key, these are the intervals `[key, end)` that overlap the range from `from` to the
    /// end of `keys`. O(log n) for each run of neighbours among them.
    pub(crate) fn overlapping(
        self,
        from: E,
        keys: Range<K>,
    ) -> impl Iterator<Item = (K, V, E)> + use<'g, K, V, E> {
        let places = self.walk(move |node| {
            let before = node.count(|key| key < keys.end);
            let skipped = node.skipped(keys.start);
            // Eight to a line.
            prim::read((skipped..before).step_by(8).map(|at| word(&node.ends[at])));
            let ends = node.ends[..before].iter().enumerate().skip(skipped);
            ends.fold(0, |bits, (at, &end)| bits | u64::from(end > from) << at)
        });
        places.map(|(node, at)| (node.keys[at], node.value(at), node.ends[at]))
    }

    /// Returns the places of all entries that `hits` accepts, in key order. `hits` returns a bit for each entry
    /// of a node; above the leaves the bit says whether an entry below may be accepted.
    #[inline(always)]
    fn walk<F: Fn(&Node<K, V, E>) -> u64>(self, hits: F) -> Walk<'g, K, V, E, F> {
        let mut walk = Walk { path: [Stop { node: None, ahead: 0 }; MAX_HEIGHT], level: 0, top: 0, hits };
        if let Some(root) = self.root {
            walk.top = root.level;
            walk.enter(root);
        }
        walk
    }
}

/// Position of a walk on one level.
#[derive(Clone, Copy)]
struct Stop<'g, K: Key, V: Copy, E: End> {
    node: Option<&'g Node<K, V, E>>,
    /// Its entries that are still to visit, a bit for each.
    ahead: u64,
}

/// A walk over the leaves of one version, with a position on each level from `level` to `top`.
struct Walk<'g, K: Key, V: Copy, E: End, F> {
    path: [Stop<'g, K, V, E>; MAX_HEIGHT],
    level: usize,
    top: usize,
    hits: F,
}

impl<'g, K: Key, V: Copy, E: End, F: Fn(&Node<K, V, E>) -> u64> Walk<'g, K, V, E, F> {
    #[inline(always)]
    fn enter(&mut self, node: &'g Node<K, V, E>) {
        self.level = node.level;
        self.path[node.level] = Stop { node: Some(node), ahead: (self.hits)(node) & ((1 << node.len) - 1) };
    }
}

impl<'g, K: Key, V: Copy, E: End, F: Fn(&Node<K, V, E>) -> u64> Iterator for Walk<'g, K, V, E, F> {
    /// A leaf, and a place in it.
    type Item = (&'g Node<K, V, E>, usize);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Stop { node, ahead } = &mut self.path[self.level];
            let node = (*node)?;
            if *ahead == 0 {
                if self.level == self.top {
                    return None;
                }
                self.level += 1;
                continue;
            }
            let at = ahead.trailing_zeros() as usize;
            *ahead &= *ahead - 1;
            if self.level == 0 {
                node.entry_is_read(at);
                return Some((node, at));
            }
            self.enter(node.child(at));
        }
    }
}
