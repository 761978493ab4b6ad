//! Checks of a tree for tests: are the invariants of every node kept, and is every block accounted for?

use super::node::{End, Entry, FANOUT, Key, Node};
use super::{MIN, Tree, View};

impl<K: Key, V: Copy, E: End> Tree<K, V, E> {
    /// Returns the current version. For the writer only, between edits.
    pub(crate) fn view(&self) -> View<'_, K, V, E> {
        View { root: self.root.as_deref() }
    }

    /// Returns the number of entries of the current version.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Checks the invariants of the current version's nodes. Returns the number of nodes.
    pub(crate) fn audit(&self) -> usize {
        let Some(root) = self.root else {
            assert_eq!(self.len, 0, "no root, no entries");
            return 0;
        };
        assert!(root.len > usize::from(root.level > 0), "a root of one child would be its child");
        let (nodes, entries) = audit_below(&root, root.level);
        assert_eq!(entries, self.len, "the length counts the entries");
        nodes
    }

    /// Whether each allocated block is in the current version, free, or among `retired` others.
    pub(crate) fn accounts_for(&self, retired: usize) -> bool {
        self.audit() + self.pool.free.len + retired == self.pool.allocated
    }

    /// Returns the number of allocated blocks.
    pub(crate) fn allocated(&self) -> usize {
        self.pool.allocated
    }

    /// Makes the allocator fail after `more` blocks beyond those in use; frees the free ones first.
    pub(crate) fn limit_more(&mut self, more: usize) {
        self.pool.trim();
        self.limit(self.pool.allocated + more);
    }

    /// Makes the allocator fail at `blocks` blocks.
    pub(crate) fn limit(&mut self, blocks: usize) {
        self.pool.limit = blocks;
    }
}

/// Returns the number of nodes and entries at and below `node`.
fn audit_below<K: Key, V: Copy, E: End>(node: &Node<K, V, E>, level: usize) -> (usize, usize) {
    assert_eq!(node.level, level, "all leaves lie on level 0");
    assert!(node.keys[..node.len].is_sorted_by(|a, b| a < b), "keys are sorted, each is there once");
    assert!(node.keys[node.len..].iter().all(|&key| key == K::MAX), "unused keys count as greatest");
    if level == 0 {
        return (1, node.len);
    }
    let mut sum = (1, 0);
    for at in 0..node.len {
        let child = *node.child(at);
        let Entry { key, end, .. } = Entry::of(child);
        assert!(key == node.keys[at], "an entry's key is the least below it");
        assert!(end == node.ends[at], "an entry's end is the furthest below it");
        assert!(child.stamp <= node.stamp, "copied nodes are at the top");
        assert!((MIN..=FANOUT).contains(&child.len), "a node is at least a quarter full");
        let (nodes, entries) = audit_below(&child, level - 1);
        sum = (sum.0 + nodes, sum.1 + entries);
    }
    sum
}
