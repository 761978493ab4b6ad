//! The ordered map under the slot sets: a copy-on-write B+tree with wide nodes.
//!
//! A published version never changes. An [`Edit`] copies each node that it touches once, on the way down to
//! the leaf; [`Edit::publish`] hands out the new [`Root`], which shares every other node with the old one,
//! and the copied originals as [`Retired`]. Readers of the old root go on undisturbed; when a grace period has
//! outlasted them, [`Tree::reclaim`] takes the originals back for the next edit.
//!
//! ```text
//!   old root ──▶ [ a b c ]        [ a b' c ] ◀── new root
//!                  │ │ └────────────┼─┼──┘
//!                  │ │  ┌───────────┘ │          b was copied to b'; a and c are shared
//!                  ▼ ▼  ▼             ▼
//! ```
//! A node has [`FANOUT`] entries, each a key, an end and what lies below: a value in a leaf, a node elsewhere.
//! The key of a node's entry is the least key below it, exactly, and its end is the furthest end below it. So:
//! - the entry with the greatest key ≤ k (`floor`, the gfn look-up) is found on one path;
//! - the intervals `[key, end)` that meet a range are found without visiting subtrees that have none.
//!
//! Every node but the root is at least a quarter full, which bounds the height.
//!
//! Promises: one writer at a time (`&mut`); look-ups are wait-free and write nothing; memory can run out only
//! in [`Edit::reserve`], before anything is changed; dropping an edit undoes it and never allocates.

use super::pool::{Block, Chain, NoMemory, Pool};
use core::mem;
use core::ops::{Deref, Range, RangeFrom};
use core::ptr::NonNull;

/// Entries of a node.
const FANOUT: usize = 32;
/// Entries that a node other than the root has at least.
const MIN: usize = FANOUT / 4;
/// Keys that are compared at once: those of a cache line, where a key is one word.
const GROUP: usize = 8;
/// More levels than memory can hold: the 16th needs 2 · 8^15 entries.
const MAX_HEIGHT: usize = 16;

/// What a [`Tree`] is ordered by.
pub(crate) trait Key: Copy + Ord {
    /// The greatest key. It may be used; unused places are filled with it.
    const MAX: Self;

    /// `self <= bound`. Searches compare whole groups of keys, so this should not branch.
    #[inline(always)]
    fn at_most(self, bound: Self) -> bool {
        self <= bound
    }
}

impl Key for u32 {
    const MAX: Self = Self::MAX;
}

impl Key for u64 {
    const MAX: Self = Self::MAX;
}

/// For what does not order alone: slots may share their first host address, so the hva index adds the id.
impl<A: Key, B: Key> Key for (A, B) {
    const MAX: Self = (A::MAX, B::MAX);

    #[inline(always)]
    fn at_most(self, bound: Self) -> bool {
        (self.0 < bound.0) | ((self.0 == bound.0) & self.1.at_most(bound.1))
    }
}

/// Where an interval ends: an address, or `()` in a tree of points.
pub(crate) trait End: Copy + Ord {}
impl<T: Copy + Ord> End for T {}

/// A pointer to a node.
///
/// Held by the node above or by the tree, edit or [`Root`] that it begins. All but a `Root` keep what they
/// point to from being reused, so whoever can reach a link may follow it; hence [`Root::read`] is unsafe.
#[derive(Clone, Copy)]
struct Link<K: Key, V: Copy, E: End>(NonNull<Block<Node<K, V, E>>>);

/// What an entry leads to; the node's level says which.
#[derive(Clone, Copy)]
union Below<K: Key, V: Copy, E: End> {
    /// On level 0.
    value: V,
    /// On every other level.
    child: Link<K, V, E>,
}

#[derive(Clone, Copy)]
struct Entry<K: Key, V: Copy, E: End> {
    key: K,
    end: E,
    below: Below<K, V, E>,
}

/// Entries 0 to `len` in key order, by columns. Past `len` keys are `K::MAX`, the other columns leftovers.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Node<K: Key, V: Copy, E: End> {
    keys: [K; FANOUT],
    below: [Below<K, V, E>; FANOUT],
    ends: [E; FANOUT],
    len: usize,
    /// Levels below this one: 0 is a leaf.
    level: usize,
    /// The edit that made this node, and may write to it. Never newer than the stamp of the node above.
    stamp: u64,
}

/// Nodes that are in no current version, but perhaps still before a reader's eyes.
pub(crate) type Retired<K, V, E = ()> = Chain<Node<K, V, E>>;

/// One version of a tree, to be published to readers. One word.
#[derive(Clone, Copy)]
pub(crate) struct Root<K: Key, V: Copy, E: End = ()>(Option<Link<K, V, E>>);

/// One version of a tree, held still for reading during `'g`.
#[derive(Clone, Copy)]
pub(crate) struct View<'g, K: Key, V: Copy, E: End = ()> {
    root: Option<&'g Node<K, V, E>>,
}

/// The current version and the memory of all: the writer's side.
pub(crate) struct Tree<K: Key, V: Copy, E: End = ()> {
    root: Option<Link<K, V, E>>,
    len: usize,
    /// Edits begun so far.
    edits: u64,
    pool: Pool<Node<K, V, E>>,
}

/// The next version of a tree in the making. Dropping it undoes everything.
pub(crate) struct Edit<'t, K: Key, V: Copy, E: End = ()> {
    tree: &'t mut Tree<K, V, E>,
    root: Option<Link<K, V, E>>,
    len: usize,
    retired: Retired<K, V, E>,
}

/// What an insertion did to the node below.
enum Inserted<K: Key, V: Copy, E: End> {
    Added,
    Replaced(V),
    /// Added, and the node's upper half moved out to this new neighbour on its right.
    Split(Entry<K, V, E>),
}

// SAFETY: a node is written only by the edit that made it, before it is published. What it shares with
// whoever has a link is plain data.
unsafe impl<K: Key + Send + Sync, V: Copy + Send + Sync, E: End + Send + Sync> Send for Link<K, V, E> {}
// SAFETY: as above.
unsafe impl<K: Key + Send + Sync, V: Copy + Send + Sync, E: End + Send + Sync> Sync for Link<K, V, E> {}

impl<K: Key, V: Copy, E: End> Deref for Link<K, V, E> {
    type Target = Node<K, V, E>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        // SAFETY: whoever can reach a link may follow it.
        unsafe { &(*self.0.as_ptr()).body }
    }
}

impl<K: Key, V: Copy, E: End> Entry<K, V, E> {
    /// The entry that leads to `child`, which is not empty.
    fn of(child: Link<K, V, E>) -> Self {
        let furthest = child.ends[1..child.len].iter().fold(child.ends[0], |a, &b| a.max(b));
        Self { key: child.keys[0], end: furthest, below: Below { child } }
    }
}

impl<K: Key, V: Copy, E: End> Node<K, V, E> {
    fn new(level: usize, first: Entry<K, V, E>) -> Self {
        let Entry { key, end, below } = first;
        let mut keys = [K::MAX; FANOUT];
        keys[0] = key;
        Self { keys, below: [below; FANOUT], ends: [end; FANOUT], len: 1, level, stamp: 0 }
    }

    /// How many keys satisfy `before`, which holds for those up to some key.
    ///
    /// Finds the group by the first keys of all but one, then counts inside it: eleven comparisons without a
    /// branch that could be mispredicted.
    #[inline(always)]
    fn count(&self, before: impl Fn(K) -> bool) -> usize {
        let groups = (1..FANOUT / GROUP).map(|group| usize::from(before(self.keys[group * GROUP])));
        let first = groups.sum::<usize>() * GROUP;
        let inside = self.keys[first..first + GROUP].iter().map(|&key| usize::from(before(key)));
        (first + inside.sum::<usize>()).min(self.len)
    }

    /// How many keys are ≤ `key`.
    #[inline(always)]
    fn rank(&self, key: K) -> usize {
        self.count(|k| k.at_most(key))
    }

    #[inline(always)]
    fn value(&self, at: usize) -> V {
        debug_assert!(self.level == 0);
        // SAFETY: entries of a leaf are made with values only.
        unsafe { self.below[at].value }
    }

    #[inline(always)]
    fn child(&self, at: usize) -> &Link<K, V, E> {
        debug_assert!(self.level > 0);
        // SAFETY: entries above the leaves are made by `Entry::of` only.
        unsafe { &self.below[at].child }
    }

    fn entries(&self) -> impl DoubleEndedIterator<Item = Entry<K, V, E>> + ExactSizeIterator {
        (0..self.len).map(|at| Entry { key: self.keys[at], end: self.ends[at], below: self.below[at] })
    }

    fn set(&mut self, at: usize, entry: Entry<K, V, E>) {
        self.keys[at] = entry.key;
        self.ends[at] = entry.end;
        self.below[at] = entry.below;
    }

    fn insert(&mut self, at: usize, entry: Entry<K, V, E>) {
        self.keys.copy_within(at..self.len, at + 1);
        self.ends.copy_within(at..self.len, at + 1);
        self.below.copy_within(at..self.len, at + 1);
        self.len += 1;
        self.set(at, entry);
    }

    fn remove(&mut self, places: Range<usize>) {
        let (to, from) = (places.start, places.end..self.len);
        self.keys.copy_within(from.clone(), to);
        self.ends.copy_within(from.clone(), to);
        self.below.copy_within(from, to);
        self.truncate(self.len - places.len());
    }

    fn truncate(&mut self, len: usize) {
        self.keys[len..self.len].fill(K::MAX);
        self.len = len;
    }
}

impl<K: Key, V: Copy, E: End> Root<K, V, E> {
    /// Reads this version.
    ///
    /// # Safety
    /// During `'g` the tree lives, and what it has retired since it published this root is not reclaimed:
    /// for instance because `'g` is a read section that found this root published, and a grace period lies
    /// between publishing its successor and reclaiming.
    #[inline(always)]
    pub(crate) unsafe fn read<'g>(self) -> View<'g, K, V, E> {
        // SAFETY: see above: for `'g` this root is like one that keeps its nodes.
        View { root: self.0.map(|link| unsafe { &(*link.0.as_ptr()).body }) }
    }
}

impl<'g, K: Key, V: Copy + 'g, E: End> View<'g, K, V, E> {
    /// The entry with the greatest key ≤ `key`.
    #[inline]
    pub(crate) fn floor(self, key: K) -> Option<(K, V)> {
        let mut node = self.root?;
        while node.level > 0 {
            node = node.child(node.rank(key).saturating_sub(1));
        }
        let at = node.rank(key).checked_sub(1)?;
        Some((node.keys[at], node.value(at)))
    }

    /// The value of `key`.
    #[inline]
    pub(crate) fn get(self, key: K) -> Option<V> {
        self.floor(key).filter(|&(found, _)| found == key).map(|(_, value)| value)
    }

    /// All entries with keys from `keys.start` on, in key order.
    pub(crate) fn range(self, keys: RangeFrom<K>) -> impl Iterator<Item = (K, V)> + use<'g, K, V, E> {
        let from = keys.start;
        self.walk(move |node| {
            let skipped = match node.level {
                0 => node.count(|key| !from.at_most(key)),
                _ => node.rank(from).saturating_sub(1),
            };
            u64::MAX << skipped
        })
    }

    /// All entries with a key < `until` and an end > `from`, in key order: the intervals `[key, end)` that
    /// meet the range from `from` to `until`. O(log n) for each run of neighbours among them.
    pub(crate) fn overlapping(
        self,
        from: E,
        until: K,
    ) -> impl Iterator<Item = (K, V)> + use<'g, K, V, E> {
        self.walk(move |node| {
            let before = node.count(|key| !until.at_most(key));
            let ends = node.ends[..before].iter().enumerate();
            ends.fold(0, |bits, (at, &end)| bits | u64::from(end > from) << at)
        })
    }

    /// All entries that `hits` lets through, in key order. It answers for a node with one bit for each entry,
    /// and for entries above the leaves whether any below may pass.
    #[inline(always)]
    fn walk<F: Fn(&Node<K, V, E>) -> u64>(self, hits: F) -> Walk<'g, K, V, E, F> {
        let mut walk = Walk { path: [(None, 0); MAX_HEIGHT], level: 0, top: 0, hits };
        if let Some(root) = self.root {
            walk.top = root.level;
            walk.enter(root);
        }
        walk
    }
}

/// A walk over the leaves of one version.
struct Walk<'g, K: Key, V: Copy, E: End, F> {
    /// On each level, the node where the walk stands and the entries it has still to visit.
    path: [(Option<&'g Node<K, V, E>>, u64); MAX_HEIGHT],
    level: usize,
    top: usize,
    hits: F,
}

impl<'g, K: Key, V: Copy, E: End, F: Fn(&Node<K, V, E>) -> u64> Walk<'g, K, V, E, F> {
    #[inline(always)]
    fn enter(&mut self, node: &'g Node<K, V, E>) {
        self.level = node.level;
        self.path[node.level] = (Some(node), (self.hits)(node) & ((1 << node.len) - 1));
    }
}

impl<K: Key, V: Copy, E: End, F: Fn(&Node<K, V, E>) -> u64> Iterator for Walk<'_, K, V, E, F> {
    type Item = (K, V);

    #[inline]
    fn next(&mut self) -> Option<(K, V)> {
        loop {
            let (node, ahead) = &mut self.path[self.level];
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
                return Some((node.keys[at], node.value(at)));
            }
            self.enter(node.child(at));
        }
    }
}

impl<K: Key, V: Copy, E: End> Tree<K, V, E> {
    /// An empty tree. Costs no memory.
    pub(crate) fn new() -> Self {
        Self { root: None, len: 0, edits: 0, pool: Pool::default() }
    }

    /// The current version.
    pub(crate) fn root(&self) -> Root<K, V, E> {
        Root(self.root)
    }

    /// Entries of the current version.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Memory held, in bytes: nodes in use, retired and free.
    pub(crate) fn bytes(&self) -> usize {
        self.pool.allocated * size_of::<Block<Node<K, V, E>>>()
    }

    /// The current version, for the writer.
    pub(crate) fn view(&self) -> View<'_, K, V, E> {
        View { root: self.root.as_deref() }
    }

    /// Begins the next version.
    pub(crate) fn edit(&mut self) -> Edit<'_, K, V, E> {
        self.edits += 1;
        Edit { root: self.root, len: self.len, retired: Chain::default(), tree: self }
    }

    /// Takes retired nodes back, for later edits.
    ///
    /// # Safety
    /// They come from this tree, and nobody reads a version from before they were retired: a grace period has
    /// passed since its successor was published.
    pub(crate) unsafe fn reclaim(&mut self, retired: Retired<K, V, E>) {
        // SAFETY: the caller's word.
        unsafe { self.pool.reclaim(retired) };
    }

    /// Frees what edits made from `stamp` on at and below `link`: all of it lies at the top.
    fn free_since(&mut self, link: Link<K, V, E>, stamp: u64) {
        if link.stamp < stamp {
            return;
        }
        if link.level > 0 {
            for at in 0..link.len {
                self.free_since(*link.child(at), stamp);
            }
        }
        // SAFETY: from this pool, on no chain; the callers know that nobody reads it.
        unsafe { self.pool.free.push(link.0) };
    }
}

impl<K: Key, V: Copy, E: End> Drop for Tree<K, V, E> {
    fn drop(&mut self) {
        if let Some(root) = self.root.take() {
            self.free_since(root, 0);
        }
    }
}

impl<K: Key, V: Copy, E: End> Edit<'_, K, V, E> {
    /// The version in the making.
    pub(crate) fn view(&self) -> View<'_, K, V, E> {
        View { root: self.root.as_deref() }
    }

    /// Makes the next `operations` insertions and removals succeed, in this edit and in later ones, as long as
    /// nothing is reclaimed in between. Each of them does it for itself.
    pub(crate) fn reserve(&mut self, operations: usize) -> Result<(), NoMemory> {
        // On each level an insertion copies a node and splits it, a removal copies a node and its neighbour,
        // and the root may grow. It grows once at any time, and again only after many splits below it.
        let height = self.root.map_or(0, |root| root.level + 1) + 1 + operations / 128;
        self.tree.pool.reserve(operations * (2 * height + 1))
    }

    /// Sets the value of `key`, and where its interval ends. Returns the value it replaces.
    pub(crate) fn insert(&mut self, key: K, value: V, end: E) -> Result<Option<V>, NoMemory> {
        self.reserve(1)?;
        let entry = Entry { key, end, below: Below { value } };
        let Some(mut root) = self.root else {
            self.root = Some(self.make(&Node::new(0, entry)));
            self.len = 1;
            return Ok(None);
        };
        let node = self.own(&mut root);
        let inserted = self.insert_below(node, entry);
        if let Inserted::Split(right) = inserted {
            let mut top = Node::new(root.level + 1, Entry::of(root));
            top.insert(1, right);
            root = self.make(&top);
        }
        self.root = Some(root);
        if let Inserted::Replaced(old) = inserted {
            return Ok(Some(old));
        }
        self.len += 1;
        Ok(None)
    }

    /// Removes `key`. Returns its value; none, and nothing is changed, if there is no such key.
    pub(crate) fn remove(&mut self, key: K) -> Result<Option<V>, NoMemory> {
        let (Some(mut root), Some(value)) = (self.root, self.view().get(key)) else { return Ok(None) };
        self.reserve(1)?;
        let node = self.own(&mut root);
        self.remove_below(node, key);
        self.root = match (node.level, node.len) {
            (0, 1..) | (1.., 2..) => Some(root),
            (level, _) => {
                let rest = (level > 0).then(|| *node.child(0));
                self.discard(root);
                rest
            }
        };
        self.len -= 1;
        Ok(Some(value))
    }

    /// Makes this version the current one. Cannot fail.
    ///
    /// Readers may see what is retired until the new root has replaced the old one before their eyes and a
    /// grace period has passed; then it goes to [`Tree::reclaim`].
    pub(crate) fn publish(mut self) -> (Root<K, V, E>, Retired<K, V, E>) {
        self.tree.root = self.root.take();
        self.tree.len = self.len;
        (self.tree.root(), mem::take(&mut self.retired))
    }

    /// Inserts into `node`, which is this edit's own, or below it.
    fn insert_below(&mut self, node: &mut Node<K, V, E>, entry: Entry<K, V, E>) -> Inserted<K, V, E> {
        let rank = node.rank(entry.key);
        let (at, entry) = if node.level > 0 {
            let at = rank.saturating_sub(1);
            let mut child = *node.child(at);
            let below = self.own(&mut child);
            let inserted = self.insert_below(below, entry);
            node.set(at, Entry::of(child));
            let Inserted::Split(right) = inserted else { return inserted };
            (at + 1, right)
        } else if rank > 0 && node.keys[rank - 1] == entry.key {
            let old = node.value(rank - 1);
            node.set(rank - 1, entry);
            return Inserted::Replaced(old);
        } else {
            (rank, entry)
        };
        if node.len < FANOUT {
            node.insert(at, entry);
            return Inserted::Added;
        }
        // Slots are mostly set up in address order: what is appended to has no room to keep on its left.
        let left = if at == FANOUT { FANOUT - MIN } else { FANOUT / 2 };
        let mut link = self.make(node);
        let right = self.own(&mut link);
        right.remove(0..left);
        node.truncate(left);
        if at <= left { node.insert(at, entry) } else { right.insert(at - left, entry) }
        Inserted::Split(Entry::of(link))
    }

    /// Removes `key`, which is there, from `node`, which is this edit's own, or from below it.
    fn remove_below(&mut self, node: &mut Node<K, V, E>, key: K) {
        let at = node.rank(key) - 1;
        if node.level == 0 {
            node.remove(at..at + 1);
            return;
        }
        let mut child = *node.child(at);
        let below = self.own(&mut child);
        self.remove_below(below, key);
        node.set(at, Entry::of(child));
        if child.len < MIN {
            // With the neighbour on its right; the last one with that on its left.
            self.level_out(node, at.min(node.len - 2));
        }
    }

    /// Merges children `at` and `at + 1` of `node`, or shares their entries evenly if one cannot hold all.
    fn level_out(&mut self, node: &mut Node<K, V, E>, at: usize) {
        let (mut left_link, mut right_link) = (*node.child(at), *node.child(at + 1));
        let left = self.own(&mut left_link);
        let sum = left.len + right_link.len;
        if sum <= FANOUT {
            right_link.entries().for_each(|entry| left.insert(left.len, entry));
            self.discard(right_link);
            node.remove(at + 1..at + 2);
        } else {
            let right = self.own(&mut right_link);
            let moved = (sum / 2).abs_diff(left.len);
            if left.len < right.len {
                right.entries().take(moved).for_each(|entry| left.insert(left.len, entry));
                right.remove(0..moved);
            } else {
                left.entries().rev().take(moved).for_each(|entry| right.insert(0, entry));
                left.truncate(left.len - moved);
            }
            node.set(at + 1, Entry::of(right_link));
        }
        node.set(at, Entry::of(left_link));
    }

    /// A new node of this edit's own, like `node`.
    fn make(&mut self, node: &Node<K, V, E>) -> Link<K, V, E> {
        let block = self.tree.pool.take(node);
        // SAFETY: nobody else knows it yet.
        unsafe { (*block.as_ptr()).body.stamp = self.tree.edits };
        Link(block)
    }

    /// Makes what `link` points to this edit's own: a copy, if it is not yet.
    fn own<'l>(&mut self, link: &'l mut Link<K, V, E>) -> &'l mut Node<K, V, E> {
        if link.stamp < self.tree.edits {
            let copy = self.make(link);
            self.discard(mem::replace(link, copy));
        }
        // SAFETY: made by this edit, so no version that anyone reads contains it. The callers hold one such
        // reference for each level, and siblings are different nodes.
        unsafe { &mut (*link.0.as_ptr()).body }
    }

    /// Lets go of a node that is no longer in this version.
    fn discard(&mut self, link: Link<K, V, E>) {
        let mine = link.stamp == self.tree.edits;
        let chain = if mine { &mut self.tree.pool.free } else { &mut self.retired };
        // SAFETY: from this pool, and on no chain: each node leaves a version once. An edit's own has no reader.
        unsafe { chain.push(link.0) };
    }
}

impl<K: Key, V: Copy, E: End> Drop for Edit<'_, K, V, E> {
    fn drop(&mut self) {
        if let Some(root) = self.root.take() {
            self.tree.free_since(root, self.tree.edits);
        }
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
