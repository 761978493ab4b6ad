//! The ordered map under the slots: a copy-on-write B+tree with wide nodes.
//!
//! A published version never changes. An [`Edit`] copies each node that it touches once, on the way down to the
//! leaf. [`Edit::publish`] returns the new [`Root`], which shares all other nodes with the old one, and the
//! copied originals as [`Retired`]. Readers of the old root are not affected. After a grace period
//! [`Tree::reclaim`] takes the originals back for the next edit.
//!
//! ```text
//!   old root ──▶ [ a b c ]        [ a b' c ] ◀── new root
//!                  │ │ └────────────┼─┼──┘
//!                  │ │  ┌───────────┘ │          b was copied to b'; a and c are shared
//!                  ▼ ▼  ▼             ▼
//! ```
//! A node has up to 40 entries. An entry has a key, an end, and a value (in a leaf) or a child. The key of an
//! inner entry is exactly the least key below it, its end the furthest end below it. So:
//! - the entry with the greatest key ≤ k (`floor`, the gfn look-up) is found on one path;
//! - the intervals `[key, end)` that overlap a range are found without visiting subtrees that have none.
//!
//! Every node but the root is at least a quarter full, which bounds the height.
//!
//! Guarantees: one writer at a time (`&mut`). Look-ups are wait-free and write nothing. Memory can run out only
//! in [`Edit::reserve`], before anything is changed. Dropping an edit undoes it, without allocating.

#[cfg(test)]
mod audit;
mod node;
mod view;

use crate::pool::{Chain, NoMemory, Pool};
use crate::prim;
use core::mem;
use node::{Below, End, Entry, FANOUT, Key, Link, Node};
pub(crate) use view::{Root, View};

/// Least entries of a node other than the root.
const MIN: usize = FANOUT / 4;

/// Nodes that are not in the current version, but may be read in an older one.
pub(crate) type Retired<K, V, E = ()> = Chain<Node<K, V, E>>;

/// The writer's side: the current version, and the memory of all versions.
pub(crate) struct Tree<K: Key, V: Copy, E: End = ()> {
    root: Option<Link<K, V, E>>,
    len: usize,
    /// Number of edits begun.
    edits: u64,
    pool: Pool<Node<K, V, E>>,
}

/// The next version of a tree under construction. Dropping it discards its changes.
pub(crate) struct Edit<'t, K: Key, V: Copy, E: End = ()> {
    tree: &'t mut Tree<K, V, E>,
    root: Option<Link<K, V, E>>,
    len: usize,
    retired: Retired<K, V, E>,
}

/// Effect of an insertion on the node below.
enum Inserted<K: Key, V: Copy, E: End> {
    Added,
    /// The old value, and whether the interval now ends earlier.
    Replaced(V, bool),
    /// Added, and the node's upper half moved to this new right neighbour.
    Split(Entry<K, V, E>),
}

impl<K: Key, V: Copy, E: End> Tree<K, V, E> {
    /// Creates an empty tree; allocates nothing.
    pub(crate) fn new() -> Self {
        Self { root: None, len: 0, edits: 0, pool: Pool::default() }
    }

    /// Returns the current version.
    pub(crate) fn root(&self) -> Root<K, V, E> {
        Root(self.root)
    }

    /// Returns the allocated bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.pool.bytes()
    }

    /// Begins the next version.
    pub(crate) fn edit(&mut self) -> Edit<'_, K, V, E> {
        self.edits += 1;
        Edit { root: self.root, len: self.len, retired: Chain::default(), tree: self }
    }

    /// Takes retired nodes back, for later edits.
    ///
    /// # Safety
    /// `retired` comes from this tree. All readers of versions older than it have finished: a grace period has
    /// passed since the next version was published.
    pub(crate) unsafe fn reclaim(&mut self, retired: Retired<K, V, E>) {
        // SAFETY: the caller keeps the condition.
        unsafe { self.pool.reclaim(retired) };
    }

    /// Frees the nodes at and below `link` that edits from `stamp` on have made; these are all at the top.
    fn free_since(&mut self, link: Link<K, V, E>, stamp: u64) {
        if link.stamp < stamp {
            return;
        }
        if link.level > 0 {
            for at in 0..link.len {
                self.free_since(*link.child(at), stamp);
            }
        }
        // SAFETY: from this pool, on no chain; the callers ensure that no reader uses it.
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
    /// Returns the version under construction.
    pub(crate) fn view(&self) -> View<'_, K, V, E> {
        View { root: self.root.as_deref() }
    }

    /// Makes the next `edits` insertions or removals succeed. Each operation also does this for itself.
    pub(crate) fn reserve(&mut self, edits: usize) -> Result<(), NoMemory> {
        // Per level, an insertion copies and splits a node, and a removal copies a node and its neighbour. The
        // tree may grow by a root, which the next operation copies.
        let height = self.root.map_or(0, |root| root.level + 1);
        self.tree.pool.reserve((2 * height + edits) * edits)
    }

    /// Sets the value of `key` and the end of its interval. Returns the value that it replaces.
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

    /// Removes `key`. Returns its value, or `None` if it is not in the tree.
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

    /// Makes this version current. Cannot fail.
    ///
    /// Readers may use the retired nodes until the new root has replaced the old one for them and a grace
    /// period has passed. Then pass them to [`Tree::reclaim`].
    pub(crate) fn publish(mut self) -> (Root<K, V, E>, Retired<K, V, E>) {
        self.tree.root = self.root.take();
        self.tree.len = self.len;
        (self.tree.root(), mem::take(&mut self.retired))
    }

    /// Inserts into `node`, which this edit owns, or below it.
    fn insert_below(&mut self, node: &mut Node<K, V, E>, entry: Entry<K, V, E>) -> Inserted<K, V, E> {
        let rank = node.rank(entry.key);
        let (at, entry) = if node.level > 0 {
            let at = rank.saturating_sub(1);
            let mut child = *node.child(at);
            let below = self.own(&mut child);
            let inserted = self.insert_below(below, entry);
            match inserted {
                // No interval below ends earlier than before, so the other entries need no look.
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
        // Slots are mostly created in address order. A node that grows at its end keeps three quarters, since
        // few keys will be inserted before them.
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

    /// Removes `key` from `node`, which this edit owns, or from below it.
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
        // Another interval ends later than the removed one, so the other entries need no look.
        let end = node.ends[at];
        let outlived = removed.is_some_and(|(_, gone)| gone < end);
        node.set(at, if outlived { Entry::ending(child, end) } else { Entry::of(child) });
        if child.len < MIN {
            // Balance with the right neighbour; the last child with its left one.
            self.level_out(node, at.min(node.len - 2));
        }
        removed
    }

    /// Merges children `at` and `at + 1` of `node`, or distributes their entries evenly if one node cannot hold
    /// them.
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

    /// Creates a copy of `node` that this edit owns.
    fn make(&mut self, node: &Node<K, V, E>) -> Link<K, V, E> {
        let block = self.tree.pool.take(node);
        // SAFETY: newly taken from the pool: no other reference exists.
        unsafe { (*block.as_ptr()).body.stamp = self.tree.edits };
        let link = Link(block);
        prim::copied(node, &*link);
        link
    }

    /// Makes this edit own the node of `link`: copies it if needed.
    fn own<'l>(&mut self, link: &'l mut Link<K, V, E>) -> &'l mut Node<K, V, E> {
        if link.stamp < self.tree.edits {
            let copy = self.make(link);
            self.discard(mem::replace(link, copy));
        }
        // SAFETY: made by this edit, so no version that is read contains it. The callers hold one such
        // reference per level, and siblings are different nodes.
        unsafe { &mut (*link.0.as_ptr()).body }
    }

    /// Retires a node that is no longer in this version, or frees it if this edit owns it.
    fn discard(&mut self, link: Link<K, V, E>) {
        let mine = link.stamp == self.tree.edits;
        let chain = if mine { &mut self.tree.pool.free } else { &mut self.retired };
        // SAFETY: from this pool and on no chain: each node leaves a version once. A node that this edit owns
        // has no reader.
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
