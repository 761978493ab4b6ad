//! Nodes: which one a thread runs on, and which ones the machine has.
//!
//! Nodes are configured ([`ArenaBuilder::nodes`](crate::ArenaBuilder::nodes)) and a thread *declares* its node,
//! so that policies can be tried on any machine. On a machine with several nodes, the arena's nodes are bound
//! to them in turn, best effort; the caller binds the threads to CPUs.

use std::cell::Cell;
use std::fs;

/// A node of an arena: part of its memory, and the threads near it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Node(pub u8);

thread_local! { static HERE: Cell<Node> = const { Cell::new(Node(0)) }; }

impl Node {
    /// Declares that the calling thread runs on this node: its allocations prefer this node, and its accesses
    /// count for it. An arena with fewer nodes takes the number modulo theirs.
    ///
    /// ```
    /// use slat_mm::Node;
    /// Node(1).run_here();
    /// assert_eq!(Node::here(), Node(1));
    /// ```
    pub fn run_here(self) {
        HERE.set(self);
    }

    /// Returns the calling thread's node; node 0 by default.
    pub fn here() -> Self {
        HERE.get()
    }
}

/// Returns the machine's nodes with memory; empty if the system does not say.
pub(crate) fn real_nodes() -> Vec<u32> {
    fs::read_to_string("/sys/devices/system/node/has_memory").map_or_else(|_| Vec::new(), |list| parse(&list))
}

/// Parses the kernel's notation for a set of numbers, such as `0-1,4`.
fn parse(list: &str) -> Vec<u32> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lists_are_read() {
        assert_eq!(parse("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(parse("0\n"), [0]);
        assert_eq!(parse("\n"), [0; 0]);
    }

    #[test]
    fn each_thread_has_its_own_node() {
        Node(3).run_here();
        let other = std::thread::spawn(Node::here).join().unwrap();
        assert_eq!((other, Node::here()), (Node(0), Node(3)));
    }
}
