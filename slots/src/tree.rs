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
//! A node has 40 entries, each a key, an end and what lies below: a value in a leaf, a node elsewhere.
//! The key of a node's entry is the least key below it, exactly, and its end is the furthest end below it. So:
//! - the entry with the greatest key ≤ k (`floor`, the gfn look-up) is found on one path;
//! - the intervals `[key, end)` that meet a range are found without visiting subtrees that have none.
//!
//! Every node but the root is at least a quarter full, which bounds the height.
//!
//! Promises: one writer at a time (`&mut`); look-ups are wait-free and write nothing; memory can run out only
//! in [`Edit::reserve`], before anything is changed; dropping an edit undoes it and never allocates.

#[cfg(test)]
mod audit;
mod node;
mod view;

use crate::pool::{Chain, NoMemory, Pool};
use core::mem;
use node::{Below, End, Entry, FANOUT, Key, Link, Node};
pub(crate) use view::{Root, View};

/// Entries that a node other than the root has at least.
const MIN: usize = FANOUT / 4;

/// Nodes that are in no current version, but that a reader of an older version may still use.
pub(crate) type Retired<K, V, E = ()> = Chain<Node<K, V, E>>;

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
    /// Nodes made, each a copy of another or of one on the stack.
    made: usize,
}

/// What an insertion did to the node below.
enum Inserted<K: Key, V: Copy, E: End> {
    Added,
    /// The value that was there, and whether the interval ends earlier now.
    Replaced(V, bool),
    /// Added, and the node's upper half moved out to this new neighbour on its right.
    Split(Entry<K, V, E>),
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

    /// Bytes lent by the allocator.
    pub(crate) fn bytes(&self) -> usize {
        self.pool.bytes()
    }

    /// Begins the next version.
    pub(crate) fn edit(&mut self) -> Edit<'_, K, V, E> {
        self.edits += 1;
        Edit { root: self.root, len: self.len, retired: Chain::default(), made: 0, tree: self }
    }

    /// Takes retired nodes back, for later edits.
    ///
    /// # Safety
    /// They come from this tree, and no reader is left of a version from before they were retired: a grace period has
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
        // SAFETY: from this pool, on no chain; the callers know that it has no reader.
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

    /// Bytes of the nodes that were made so far.
    pub(crate) fn made_bytes(&self) -> usize {
        self.made * size_of::<Node<K, V, E>>()
    }

    /// Makes the next `edits` insertions or removals succeed. Each of them does it for itself.
    pub(crate) fn reserve(&mut self, edits: usize) -> Result<(), NoMemory> {
        // On each level an insertion copies a node and splits it, a removal copies a node and its neighbour;
        // the tree may grow by a root, which the next one copies.
        let height = self.root.map_or(0, |root| root.level + 1);
        self.tree.pool.reserve((2 * height + edits) * edits)
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
        if let Inserted::Replaced(old, _) = inserted {
            return Ok(Some(old));
        }
        self.len += 1;
        Ok(None)
    }

    /// Removes `key`. Returns its value, or none if there is no such key.
    pub(crate) fn remove(&mut self, key: K) -> Result<Option<V>, NoMemory> {
        self.reserve(1)?;
        let Some(mut root) = self.root else { return Ok(None) };
        let node = self.own(&mut root);
        let removed = self.remove_below(node, key);
        self.root = match (node.level, node.len) {
            (0, 1..) | (1.., 2..) => Some(root),
            (level, _) => {
                let rest = (level > 0).then(|| *node.child(0));
                self.discard(root);
                rest
            }
        };
        self.len -= usize::from(removed.is_some());
        Ok(removed.map(|(value, _)| value))
    }

    /// Makes this version the current one. Cannot fail.
    ///
    /// Readers may use what is retired until the new root has replaced the old one for them and a
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
            match inserted {
                // Nothing below ends earlier than before: no need to look at all of it.
                Inserted::Added | Inserted::Replaced(_, false) => {
                    node.set(at, Entry::ending(child, node.ends[at].max(entry.end)));
                    return inserted;
                }
                Inserted::Replaced(_, true) => {
                    node.set(at, Entry::of(child));
                    return inserted;
                }
                Inserted::Split(right) => {
                    node.set(at, Entry::of(child));
                    (at + 1, right)
                }
            }
        } else if rank > 0 && node.keys[rank - 1] == entry.key {
            let (old, shrinks) = (node.value(rank - 1), entry.end < node.ends[rank - 1]);
            node.set(rank - 1, entry);
            return Inserted::Replaced(old, shrinks);
        } else {
            (rank, entry)
        };
        if node.len < FANOUT {
            node.insert(at, entry);
            return Inserted::Added;
        }
        // Slots are mostly set up in address order: a node that grows at its end keeps three quarters, since
        // little will come before it.
        let left = if at == FANOUT { FANOUT - MIN } else { FANOUT / 2 };
        let mut link = self.make(node);
        let right = self.own(&mut link);
        right.remove(0..left);
        node.truncate(left);
        if at <= left {
            node.insert(at, entry);
        } else {
            right.insert(at - left, entry);
        }
        Inserted::Split(Entry::of(link))
    }

    /// Removes `key` from `node`, which is this edit's own, or from below it.
    fn remove_below(&mut self, node: &mut Node<K, V, E>, key: K) -> Option<(V, E)> {
        let at = node.rank(key).checked_sub(1)?;
        if node.level == 0 {
            let removed = (node.keys[at] == key).then(|| (node.value(at), node.ends[at]))?;
            node.remove(at..at + 1);
            return Some(removed);
        }
        let mut child = *node.child(at);
        let below = self.own(&mut child);
        let removed = self.remove_below(below, key);
        // Something else ends later than what is gone: no need to look at all of it.
        let end = node.ends[at];
        let outlived = removed.is_some_and(|(_, gone)| gone < end);
        node.set(at, if outlived { Entry::ending(child, end) } else { Entry::of(child) });
        if child.len < MIN {
            // With the neighbour on its right; the last one with that on its left.
            self.level_out(node, at.min(node.len - 2));
        }
        removed
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
        self.made += 1;
        let block = self.tree.pool.take(node);
        // SAFETY: fresh from the pool: no other reference exists.
        unsafe { (*block.as_ptr()).body.stamp = self.tree.edits };
        Link(block)
    }

    /// Makes what `link` points to this edit's own: a copy, if it is not yet.
    fn own<'l>(&mut self, link: &'l mut Link<K, V, E>) -> &'l mut Node<K, V, E> {
        if link.stamp < self.tree.edits {
            let copy = self.make(link);
            self.discard(mem::replace(link, copy));
        }
        // SAFETY: made by this edit, so no version that is read contains it. The callers hold one such
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
