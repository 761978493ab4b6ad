//! A scenario: a world, a program for each thread, perhaps a mistake.

use super::shadow::{Tree, Vcpu, Word, World, entry, stores};
use crate::bug::Bug;

/// Threads in the world. The first are vCPUs.
pub(super) const THREADS: usize = 3;

/// What a thread is told to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// L2 accesses g2. Nothing, if this vCPU is not in L2.
    Access {
        /// It stores.
        write: bool,
    },
    /// The same close to the last access, whose table is remembered.
    Near {
        /// It stores.
        write: bool,
    },
    /// L1 writes T under the root `key`.
    Store {
        /// Which of L1's roots.
        key: u8,
        /// The value.
        t: u8,
    },
    /// The vCPU leaves L2, and L1 flushes (INVEPT, a fresh ASID, a TLBI).
    Flush,
    /// The vCPU leaves L2, and L1 flushes for all vCPUs at once (a broadcast TLBI): when it goes on, none uses what was before.
    Broadcast,
    /// The vCPU leaves L2.
    Leave,
    /// The vCPU enters L2 on the root `key`.
    Enter {
        /// Which of L1's roots.
        key: u8,
    },
    /// L0 takes a host page away, or forbids stores to it.
    Host {
        /// The page.
        hva: u8,
        /// The page stays, stores are forbidden.
        protect: bool,
    },
    /// A transaction moves frame `g1` to another host page.
    Move {
        /// The frame of L1.
        g1: u8,
        /// Its host page from now on.
        hva: u8,
    },
    /// A transaction moves the slot in which T lies: other memory, where T is this.
    MoveTables {
        /// The value.
        t: u8,
    },
    /// Table memory is short: the shadow's leaf table goes, whichever vCPUs run on it.
    Reclaim,
    /// The slots log from now on.
    BeginLog,
    /// The log is taken, and its pages are copied.
    Harvest,
}

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Nested {
    /// What happens in it.
    pub name: String,
    /// As it begins.
    pub(super) world: World,
    /// One for each thread.
    pub(super) programs: Vec<Vec<Op>>,
    /// A flush of the shadow puts an empty tree in place of what it has, and looks at no entry.
    pub(super) drops: bool,
    /// An invalidation looks at the row, and leaves the leaf of a frame that it does not cover. Otherwise it edits what is there.
    pub(super) spares: bool,
    /// As it is built in `slat/src/nested`: see `built`. Whatever finds something in the reverse map owes a flush of L2's tag.
    pub(super) fresh: bool,
    /// The mistake that it is checked with.
    pub(super) bug: Option<Bug>,
}

impl Nested {
    pub(super) fn new(name: &str, programs: &[&[Op]]) -> Self {
        let programs = programs.iter().map(|ops| ops.to_vec()).collect();
        let name = format!("nested: {name}");
        Self { name, world: World::new(), programs, drops: false, spares: false, fresh: false, bug: None }
    }

    /// The same with two vCPUs.
    pub(super) fn two_vcpus(mut self) -> Self {
        self.world.vcpu_count = 2;
        self
    }

    /// The same where T is this at first.
    pub(super) fn t(mut self, t: u8) -> Self {
        self.world.t[0] = t;
        for vcpu in &mut self.world.vcpus {
            vcpu.allowed[0] = 1 << t;
        }
        self
    }

    /// The same with a leaf table and a chunk.
    pub(super) fn tables(mut self) -> Self {
        self.world.chunk = true;
        self.world.trees[0] = Tree { upper: Word::Table, leaf: Word::Hole(0), row: 0 };
        self
    }

    /// The same with what T says composed.
    pub(super) fn composed(mut self) -> Self {
        self = self.tables();
        let world = &mut self.world;
        let g1 = world.t[0] & entry::FRAME;
        let pfn = world.slots[g1 as usize];
        let write = stores(world.t[0]) && !world.logs && world.writable[pfn as usize];
        world.trees[0].leaf = Word::Leaf { pfn, write, armed: false, g1 };
        world.trees[0].row = g1;
        world.heads[g1 as usize] = true;
        self
    }

    /// The same with L1's own mapping of its frames.
    pub(super) fn canonical(mut self) -> Self {
        for g1 in 0..2 {
            let pfn = self.world.slots[g1 as usize];
            self.world.canonical[g1 as usize] = Word::Leaf { pfn, write: false, armed: false, g1 };
        }
        self
    }

    /// The same with vCPUs `from` and above outside L2, where they have never been.
    pub(super) fn newcomers(mut self, from: usize) -> Self {
        for vcpu in &mut self.world.vcpus[from..] {
            *vcpu = Vcpu { in_l2: false, known: false, ..*vcpu };
        }
        self
    }

    /// The same where the slots log already, and what is composed is armed.
    pub(super) fn logs(mut self) -> Self {
        if let Word::Leaf { write, .. } = &mut self.world.trees[0].leaf {
            *write = false;
        }
        (self.world.logs, self.world.begun) = (true, true);
        self
    }

    /// The same with flushes that drop the tree.
    pub(super) fn drops(mut self) -> Self {
        self.drops = true;
        self.name.push_str(", dropped");
        self
    }

    /// The same as it is built.
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

    /// Whether the shadow's tables go in it. There is a second tree for that.
    pub(super) fn reclaims(&self) -> bool {
        self.programs.iter().flatten().any(|op| *op == Op::Reclaim)
    }

    pub(super) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }
}
