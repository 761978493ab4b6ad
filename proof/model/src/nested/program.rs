//! A scenario: an initial state, a program for each thread, perhaps a mistake.

use super::shadow::{Shared, Tree, Vcpu, Word, entry, stores};
use crate::bug::Bug;

/// An operation of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// L2 accesses g2. Nothing, if this vCPU is not in L2.
    Access {
        /// Whether it stores.
        write: bool,
    },
    /// The same close to the last access, whose table is remembered.
    Near {
        /// Whether it stores.
        write: bool,
    },
    /// L1 writes T under the root `key`.
    Store {
        /// The root of L1.
        key: u8,
        /// The value.
        t: u8,
    },
    /// The vCPU leaves L2, and L1 flushes (INVEPT, a fresh ASID, a TLBI).
    Flush,
    /// The vCPU leaves L2, and L1 flushes for all vCPUs at once (a broadcast TLBI): when L1 continues, no vCPU uses an
    /// older translation.
    Broadcast,
    /// The vCPU leaves L2.
    Leave,
    /// The vCPU enters L2 on the root `key`.
    Enter {
        /// The root of L1.
        key: u8,
    },
    /// L0 takes a host page away, or forbids stores to it.
    Host {
        /// The page.
        hva: u8,
        /// The page stays, but stores are forbidden.
        protect: bool,
    },
    /// A transaction moves frame `g1` to another host page.
    Move {
        /// The frame of L1.
        g1: u8,
        /// Its host page from now on.
        hva: u8,
    },
    /// A transaction moves the slot in which T lies to other memory, in which T has this value.
    MoveTables {
        /// The value.
        t: u8,
    },
    /// Table memory is short: reclaims the shadow's leaf table, whichever vCPUs run on it.
    Reclaim,
    /// The slots log from now on.
    BeginLog,
    /// Harvests the log, and copies its pages.
    Harvest,
}

/// A scenario of nested guests.
#[derive(Clone, Debug)]
pub struct Nested {
    /// Its events, in a few words.
    pub name: String,
    /// The initial state.
    pub(super) shared: Shared,
    /// A program for each thread.
    pub(super) programs: Vec<Vec<Op>>,
    /// A flush of the shadow replaces its tree by an empty one, and visits no entry.
    pub(super) drops: bool,
    /// An invalidation checks the row, and leaves the leaf of a frame that it does not cover. Otherwise it edits any
    /// leaf.
    pub(super) spares: bool,
    /// The design as built in `slat/src/nested`: see `built`. An invalidation that finds a hint owes a flush of L2's
    /// tag.
    pub(super) fresh: bool,
    /// The seeded mistake.
    pub(super) bug: Option<Bug>,
}

impl Nested {
    pub(super) fn new(name: &str, programs: &[&[Op]]) -> Self {
        let programs = programs.iter().map(|ops| ops.to_vec()).collect();
        let name = format!("nested: {name}");
        Self { name, shared: Shared::new(), programs, drops: false, spares: false, fresh: false, bug: None }
    }

    /// The same with two vCPUs.
    pub(super) fn two_vcpus(mut self) -> Self {
        self.shared.vcpu_count = 2;
        self
    }

    /// The same with this initial T.
    pub(super) fn t(mut self, t: u8) -> Self {
        self.shared.t[0] = t;
        for vcpu in &mut self.shared.vcpus {
            vcpu.allowed[0] = 1 << t;
        }
        self
    }

    /// The same with a leaf table and a chunk.
    pub(super) fn tables(mut self) -> Self {
        self.shared.chunk = true;
        self.shared.trees[0] = Tree { upper: Word::Table, leaf: Word::Hole(0), row: 0 };
        self
    }

    /// The same with a leaf composed from T.
    pub(super) fn composed(mut self) -> Self {
        self = self.tables();
        let shared = &mut self.shared;
        let g1 = shared.t[0] & entry::FRAME;
        let pfn = shared.slots[g1 as usize];
        let write = stores(shared.t[0]) && !shared.logs && shared.writable[pfn as usize];
        shared.trees[0].leaf = Word::Leaf { pfn, write, armed: false, g1 };
        shared.trees[0].row = g1;
        shared.heads[g1 as usize] = true;
        self
    }

    /// The same with L1's own mapping of its frames.
    pub(super) fn canonical(mut self) -> Self {
        for g1 in 0..2 {
            let pfn = self.shared.slots[g1 as usize];
            self.shared.canonical[g1 as usize] = Word::Leaf { pfn, write: false, armed: false, g1 };
        }
        self
    }

    /// The same with vCPUs `from` and above outside L2, which they have never entered.
    pub(super) fn newcomers(mut self, from: usize) -> Self {
        for vcpu in &mut self.shared.vcpus[from..] {
            *vcpu = Vcpu { in_l2: false, known: false, ..*vcpu };
        }
        self
    }

    /// The same with slots that log, and composed leaves that are armed.
    pub(super) fn logs(mut self) -> Self {
        if let Word::Leaf { write, .. } = &mut self.shared.trees[0].leaf {
            *write = false;
        }
        (self.shared.logs, self.shared.begun) = (true, true);
        self
    }

    /// The same with flushes that drop the tree.
    pub(super) fn drops(mut self) -> Self {
        self.drops = true;
        self.name.push_str(", dropped");
        self
    }

    /// The same in the design as built.
    pub(super) fn fresh(mut self) -> Self {
        self.fresh = true;
        self.name.push_str(", as built");
        self
    }

    /// The same with invalidations that leave leaves of other frames.
    pub(super) fn spares(mut self) -> Self {
        self.spares = true;
        self.name.push_str(", spared");
        self
    }

    /// The same with a mistake.
    pub fn with(mut self, bug: Bug) -> Self {
        self.bug = Some(bug);
        self
    }

    /// Returns whether the shadow's tables are reclaimed. That needs a second tree.
    pub(super) fn reclaims(&self) -> bool {
        self.programs.iter().flatten().any(|op| *op == Op::Reclaim)
    }

    pub(super) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }
}
