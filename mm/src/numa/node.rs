//! Nodes: which one a thread runs on, and which ones the machine really has.
//!
//! Nodes are a matter of configuration ([`ArenaBuilder::nodes`](crate::ArenaBuilder::nodes)), so that policies can
//! be tried on any machine: a thread *says* where it runs. Where the machine has several nodes with memory, the
//! arena's nodes are bound to them in turn, best effort; tying the threads to their CPUs is then the caller's part.

use std::cell::Cell;
use std::fs;

/// A node of an arena: some of its memory, and the threads that have it near.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Node(pub u8);

thread_local! { static HERE: Cell<Node> = const { Cell::new(Node(0)) }; }

impl Node {
    /// The calling thread runs on this node from now on: what it brings in is allocated here first, and its
    /// accesses are this node's. An arena with fewer nodes counts on from its first.
    ///
    /// ```
    /// use slat_mm::Node;
    /// Node(1).run_here();
    /// assert_eq!(Node::here(), Node(1));
    /// ```
    pub fn run_here(self) {
        HERE.set(self);
    }

    /// Where the calling thread runs; node 0 unless it has said otherwise.
    pub fn here() -> Self {
        HERE.get()
    }
}

/// The machine's nodes that have memory; empty where the system does not say.
pub(crate) fn real_nodes() -> Vec<u32> {
    fs::read_to_string("/sys/devices/system/node/has_memory").map_or_else(|_| Vec::new(), |list| parse(&list))
}

/// Reads the kernel's way to write a set of numbers: `0-1,4`.
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
