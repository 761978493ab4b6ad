//! A node: a sorted table of up to [`FANOUT`] entries in columns, and the search that every look-up uses.

use crate::addr::Hva;
use crate::pool::Block;
use crate::prim::{self, word};
use core::ops::{Deref, Range};
use core::ptr::NonNull;

/// Most entries of a node. Enough that 32,764 slots need three levels; not more, since an edit copies a node
/// per level.
pub(super) const FANOUT: usize = 40;
/// Number of keys compared at once: one cache line of one-word keys.
const GROUP: usize = 8;

/// Key of a [`Tree`](super::Tree).
pub(crate) trait Key: Copy + Ord {
    /// The greatest key. It may be used; unused places contain it.
    const MAX: Self;
}

impl Key for u32 {
    const MAX: Self = Self::MAX;
}

impl Key for u64 {
    const MAX: Self = Self::MAX;
}

impl Key for Hva {
    const MAX: Self = Self(u64::MAX);
}

/// For keys with a tie-breaker: slots may share their first host address, so the hva index adds the id.
impl Key for u128 {
    const MAX: Self = Self::MAX;
}

/// End of an interval: an address, or `()` in a tree of points.
pub(crate) trait End: Copy + Ord {}
impl<T: Copy + Ord> End for T {}

/// A pointer to a node.
///
/// Held by the node above, or by the tree, edit or [`Root`](super::Root) that starts with it. All but a `Root`
/// keep their nodes from being reused, so code that can reach a link may follow it; therefore `Root::read` is
/// unsafe.
#[derive(Clone, Copy)]
pub(crate) struct Link<K: Key, V: Copy, E: End>(pub(super) NonNull<Block<Node<K, V, E>>>);

/// The value or child of an entry; the node's level decides which.
#[derive(Clone, Copy)]
pub(super) union Below<K: Key, V: Copy, E: End> {
    /// On level 0.
    pub(super) value: V,
    /// On every other level.
    pub(super) child: Link<K, V, E>,
}

#[derive(Clone, Copy)]
pub(super) struct Entry<K: Key, V: Copy, E: End> {
    pub(super) key: K,
    pub(super) end: E,
    pub(super) below: Below<K, V, E>,
}

/// Entries 0 to `len` in key order, in columns. Past `len`, keys are `K::MAX` and the other columns are
/// undefined.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Node<K: Key, V: Copy, E: End> {
    // First the fields that every visit needs, on one line with the first keys.
    pub(super) len: usize,
    /// Levels below this one: 0 is a leaf.
    pub(super) level: usize,
    /// Number of the edit that made this node and may write to it. Not newer than the stamp of the node above.
    pub(super) stamp: u64,
    pub(super) keys: [K; FANOUT],
    pub(super) below: [Below<K, V, E>; FANOUT],
    pub(super) ends: [E; FANOUT],
}

// SAFETY: only the edit that made a node writes it, before it is published. After that it is plain data.
unsafe impl<K: Key + Send + Sync, V: Copy + Send + Sync, E: End + Send + Sync> Send for Link<K, V, E> {}
// SAFETY: as above.
unsafe impl<K: Key + Send + Sync, V: Copy + Send + Sync, E: End + Send + Sync> Sync for Link<K, V, E> {}

impl<K: Key, V: Copy, E: End> Deref for Link<K, V, E> {
    type Target = Node<K, V, E>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        // SAFETY: code that can reach a link may follow it.
        unsafe { &(*self.0.as_ptr()).body }
    }
}

impl<K: Key, V: Copy, E: End> Entry<K, V, E> {
    /// Creates the entry for `child`, which is not empty.
    pub(super) fn of(child: Link<K, V, E>) -> Self {
        let furthest = child.ends[1..child.len].iter().fold(child.ends[0], |a, &b| a.max(b));
        Self::ending(child, furthest)
    }

    /// Creates the entry for `child` when the furthest end below is known.
    pub(super) fn ending(child: Link<K, V, E>, end: E) -> Self {
        Self { key: child.keys[0], end, below: Below { child } }
    }
}

impl<K: Key, V: Copy, E: End> Node<K, V, E> {
    pub(super) fn new(level: usize, first: Entry<K, V, E>) -> Self {
        let Entry { key, end, below } = first;
        let mut keys = [K::MAX; FANOUT];
        keys[0] = key;
        Self { keys, below: [below; FANOUT], ends: [end; FANOUT], len: 1, level, stamp: 0 }
    }

    /// Returns how many keys satisfy `before`, which holds for a prefix of the keys.
    ///
    /// Finds the group by the first keys of all groups but one, then counts inside it: twelve comparisons
    /// without a branch that could be mispredicted.
    #[inline(always)]
    pub(super) fn count(&self, before: impl Fn(K) -> bool) -> usize {
        let groups = (1..FANOUT / GROUP).map(|group| usize::from(before(self.keys[group * GROUP])));
        let first = groups.sum::<usize>() * GROUP;
        let looked_at = (0..FANOUT).step_by(GROUP).chain([first + GROUP - 1]);
        prim::read(looked_at.map(|at| word(&self.keys[at])));
        let inside = self.keys[first..first + GROUP].iter().map(|&key| usize::from(before(key)));
        (first + inside.sum::<usize>()).min(self.len)
    }

    /// Returns how many keys are ≤ `key`.
    #[inline(always)]
    pub(super) fn rank(&self, key: K) -> usize {
        self.count(|k| k <= key)
    }

    /// Returns how many entries to skip for keys from `first` on.
    #[inline(always)]
    pub(super) fn skipped(&self, first: K) -> usize {
        match self.level {
            0 => self.count(|key| key < first),
            _ => self.rank(first).saturating_sub(1),
        }
    }

    /// Says that a look-up reads the value of entry `at`, and its end if there is one.
    #[inline(always)]
    pub(super) fn entry_is_read(&self, at: usize) {
        let end = (size_of::<E>() > 0).then(|| word(&self.ends[at]));
        prim::read(core::iter::once(word(&self.below[at])).chain(end));
    }

    #[inline(always)]
    pub(super) fn value(&self, at: usize) -> V {
        debug_assert!(self.level == 0);
        // SAFETY: entries of a leaf are created with values only.
        unsafe { self.below[at].value }
    }

    #[inline(always)]
    pub(super) fn child(&self, at: usize) -> &Link<K, V, E> {
        debug_assert!(self.level > 0);
        prim::read(core::iter::once(word(&self.below[at])));
        // SAFETY: entries above the leaves are created by `Entry::of` only.
        unsafe { &self.below[at].child }
    }

    pub(super) fn entries(&self) -> impl DoubleEndedIterator<Item = Entry<K, V, E>> + ExactSizeIterator {
        (0..self.len).map(|at| Entry { key: self.keys[at], end: self.ends[at], below: self.below[at] })
    }

    pub(super) fn set(&mut self, at: usize, entry: Entry<K, V, E>) {
        self.keys[at] = entry.key;
        self.ends[at] = entry.end;
        self.below[at] = entry.below;
    }

    pub(super) fn insert(&mut self, at: usize, entry: Entry<K, V, E>) {
        self.keys.copy_within(at..self.len, at + 1);
        self.ends.copy_within(at..self.len, at + 1);
        self.below.copy_within(at..self.len, at + 1);
        self.len += 1;
        self.set(at, entry);
    }

    pub(super) fn remove(&mut self, places: Range<usize>) {
        let (to, from) = (places.start, places.end..self.len);
        self.keys.copy_within(from.clone(), to);
        self.ends.copy_within(from.clone(), to);
        self.below.copy_within(from, to);
        self.truncate(self.len - places.len());
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.keys[len..self.len].fill(K::MAX);
        self.len = len;
    }
}
