//! The shared state: L1's table entry, one shadow, the reverse map, the lines, the host; and the hardware of two vCPUs.
//!
//! L1 has two frames, g1 0 and 1, each backed by a host page of up to four versions. T is one entry of L1's own
//! second-level table. One shadow translates the frame g2 by an upper entry and a leaf table. Hardware always does the
//! worst, as in [`crate::hardware`].

use crate::state::Bad;

/// Number of threads. The first ones are vCPUs.
pub(super) const THREADS: usize = 3;

/// Frames of L1, host pages, vCPUs, roots that L1 can give, trees that a shadow can have.
pub(super) const TWO: usize = 2;
/// The line of the epoch, and the shadow's own. Lines 0 and 1 are those of the two regions of host pages.
pub(super) const EPOCH: usize = 2;
pub(super) const SHADOW: usize = 3;

/// T: an entry of L1's table.
pub(super) mod entry {
    /// The frame of L1 that it names.
    pub const FRAME: u8 = 1;
    pub const WRITE: u8 = 2;
    pub const ACCESSED: u8 = 4;
    pub const DIRTY: u8 = 8;
    pub const PRESENT: u8 = 16;
}
use entry::{ACCESSED, DIRTY, FRAME, PRESENT, WRITE};

/// Returns whether T allows stores. They need its Dirty, too, so that L1 finds it set.
pub(super) fn stores(t: u8) -> bool {
    t & (PRESENT | WRITE | DIRTY) == PRESENT | WRITE | DIRTY
}

/// An entry of a shadow, or of the canonical tables.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Word {
    /// Nothing mapped; the last invalidation that covered it.
    Hole(u8),
    /// A link to the leaf table.
    Table,
    /// A frame of the host. The checker knows its frame of L1; no bit of the word has it.
    Leaf {
        /// `version * 2 + host page`.
        pfn: u8,
        /// The hardware may write.
        write: bool,
        /// A log withdrew the write permission, which TLBs may still hold.
        armed: bool,
        /// The frame of L1 that it was composed from.
        g1: u8,
    },
    /// Owned for a moment by a fault.
    Frozen(u8),
    /// The same, as built, but its owner must install nothing, because its answer is stale.
    Condemned(u8),
}

impl Word {
    /// Returns whether a compare-and-swap treats the two words as equal.
    pub(super) fn same(self, other: Self) -> bool {
        match (self, other) {
            (Self::Leaf { g1, .. }, Self::Leaf { pfn, write, armed, .. }) => {
                self == Self::Leaf { pfn, write, armed, g1 }
            }
            _ => self == other,
        }
    }
}

/// The tables of the shadow below one root.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tree {
    pub(super) upper: Word,
    pub(super) leaf: Word,
    /// Beside the leaf: the frame of L1.
    pub(super) row: u8,
}

/// One invalidation in the active set: its host pages, its frames of L1, whether it covers the shadow, and whether T's
/// own page.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Place {
    pub(super) listed: bool,
    pub(super) unflushed: bool,
    pub(super) number: u8,
    pub(super) hvas: u8,
    pub(super) g1s: u8,
    pub(super) shadow: bool,
    pub(super) tables: bool,
    /// It has found a shadow in the reverse map.
    pub(super) reached: bool,
}

/// A vCPU: its TLBs under both tags, and its pending flush before it may run L2.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Vcpu {
    /// Translations of g2, a bit for each frame of L1, frame of the host, and permission to write.
    pub(super) l2: u32,
    /// Translations of L1's frames, a bit for each and each frame of the host.
    pub(super) l1: u16,
    pub(super) in_l2: bool,
    /// The root of L2: the root of L1, and the tree of the shadow.
    pub(super) key: u8,
    pub(super) root: u8,
    /// The newest number when L1 last flushed for this vCPU, if no flush of the shadow has begun since.
    pub(super) pending: Option<u8>,
    /// As built: the newest number when its own TLB last forgot L2's tag; and whether T has refused what it hit.
    pub(super) forgot: u8,
    pub(super) refused: bool,
    /// As built: its paging-structure caches may have a link to the tables that were unlinked.
    pub(super) linked: bool,
    /// As built: the tree that its last fault has left a leaf in, and the shadow's line then.
    pub(super) near: Option<(u8, u8)>,
    /// It has been in the shadow.
    pub(super) known: bool,
    /// Values of T since its last flush, a bit each, for both roots of L1.
    pub(super) allowed: [u32; TWO],
}

impl Vcpu {
    /// Forgets everything under L2's tag, including links.
    pub(super) fn forget_l2(&mut self) {
        (self.l2, self.linked) = (0, false);
    }
}

/// The shared state.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shared {
    pub(super) newest: u8,
    pub(super) lines: [u8; 4],
    pub(super) places: [Place; THREADS],
    /// The version of each host page, and whether it may be written.
    pub(super) versions: [u8; TWO],
    pub(super) writable: [bool; TWO],
    /// The host page behind each frame of L1.
    pub(super) slots: [u8; TWO],
    pub(super) canonical: [Word; TWO],
    /// T under each of L1's roots.
    pub(super) t: [u8; TWO],
    /// Values of T since the broadcast of each vCPU began, while it is under way: a bit each.
    pub(super) since: [u32; TWO],
    /// The root of L1 that the shadow is for; the tree in use; the newest flush that has ended.
    pub(super) key: u8,
    pub(super) root: u8,
    pub(super) flushed: u8,
    /// As built: the number of drops under way; the newest number at the last finished drop; and the number up to which
    /// a broadcast has made all TLBs forget.
    pub(super) dropping: u8,
    pub(super) dropped: u8,
    pub(super) settled: u8,
    pub(super) trees: [Tree; TWO],
    /// As built: the tables of the first tree were unlinked, and are used for something else.
    pub(super) freed: bool,
    /// The reverse map's chunk: whether it exists, and of each frame of L1 whether its head names (shadow, g2).
    pub(super) chunk: bool,
    pub(super) heads: [bool; TWO],
    /// The number that the first draft kept in the chunk instead of the lines.
    pub(super) chunk_version: u8,
    pub(super) vcpus: [Vcpu; TWO],
    pub(super) vcpu_count: usize,
    /// Whether the slots log; whether that has begun; marks; frames written since their copy.
    pub(super) logs: bool,
    pub(super) begun: bool,
    pub(super) marks: u8,
    pub(super) unsaved: u8,
    pub(super) bad: Option<Bad>,
}

impl Shared {
    /// An empty shadow with no leaf table, no chunk; T names frame 0, which L2 may write.
    pub(super) fn new() -> Self {
        let tree = Tree { upper: Word::Hole(0), leaf: Word::Hole(0), row: 0 };
        let t = PRESENT | WRITE | ACCESSED | DIRTY;
        let allowed = [1 << t, 1 << (t | FRAME)];
        let vcpu = Vcpu { in_l2: true, known: true, allowed, ..Vcpu::default() };
        Self {
            newest: 0,
            lines: [0; 4],
            places: [Place::default(); THREADS],
            versions: [0; TWO],
            writable: [true; TWO],
            slots: [0, 1],
            canonical: [Word::Hole(0); TWO],
            t: [t, t | FRAME],
            since: [0; TWO],
            key: 0,
            root: 0,
            flushed: 0,
            dropping: 0,
            dropped: 0,
            settled: 0,
            trees: [tree; TWO],
            freed: false,
            chunk: false,
            heads: [false; TWO],
            chunk_version: 0,
            vcpus: [vcpu; TWO],
            vcpu_count: 1,
            logs: false,
            begun: false,
            marks: 0,
            unsaved: 0,
            bad: None,
        }
    }

    /// The entry that a walk of the shadow ends at.
    pub(super) fn walk(&self) -> Word {
        let tree = &self.trees[self.root as usize];
        if tree.upper == Word::Table { tree.leaf } else { tree.upper }
    }

    /// A compare-and-swap of the leaf entry in `root`; what stands there keeps its frame of L1 if only a bit of it changes.
    pub(super) fn swap(&mut self, root: u8, old: Word, new: Word) -> bool {
        let leaf = &mut self.trees[root as usize].leaf;
        let done = leaf.same(old);
        if done {
            if let (Word::Hole(from), Word::Hole(to)) = (old, new)
                && to < from
            {
                self.bad = Some(Bad::VersionFell);
            }
            *leaf = match (*leaf, new) {
                (Word::Leaf { g1, .. }, Word::Leaf { pfn, write, armed, .. }) => {
                    Word::Leaf { pfn, write, armed, g1 }
                }
                _ => new,
            };
        }
        done
    }

    /// T becomes `t` under root `key` of L1's.
    pub(super) fn store(&mut self, key: u8, t: u8) {
        self.t[key as usize] = t;
        for vcpu in &mut self.vcpus {
            vcpu.allowed[key as usize] |= 1 << t;
        }
        for since in self.since.iter_mut().filter(|since| **since != 0) {
            *since |= 1 << t;
        }
    }

    /// Forbids this vCPU older values of T.
    pub(super) fn forgets_t(&mut self, vcpu: usize, key: u8) {
        self.vcpus[vcpu].allowed[key as usize] = 1 << self.t[key as usize];
    }

    /// As built: records a drop.
    pub(super) fn note_drop(&mut self) {
        self.newest += 1;
        self.dropped = self.newest;
    }

    /// As built: makes the vCPU's own TLB forget, if there was a drop.
    pub(super) fn forget_dropped(&mut self, vcpu: usize) {
        if self.dropping > 0 || self.dropped > self.vcpus[vcpu].forgot {
            self.vcpus[vcpu].forgot = self.newest;
            self.vcpus[vcpu].forget_l2();
        }
    }

    /// As built: a thread is about to use this tree.
    pub(super) fn uses(&mut self, root: u8) {
        if self.freed && root == 0 {
            self.bad = Some(Bad::FreedTable);
        }
    }

    /// The next number, announced on these lines.
    pub(super) fn announce(&mut self, lines: impl IntoIterator<Item = usize>) -> u8 {
        self.newest += 1;
        for line in lines {
            self.lines[line] = self.newest;
        }
        self.newest
    }

    /// Adds everything that a vCPU could load at this moment to its caches, and judges it.
    pub(super) fn hardware(&mut self) {
        for index in 0..self.vcpu_count {
            let mut vcpu = self.vcpus[index];
            let old = (vcpu.in_l2 && vcpu.linked).then_some(0);
            if old.is_some() {
                self.uses(0);
            }
            for root in [vcpu.root].into_iter().chain(old) {
                let tree = self.trees[root as usize];
                if let (true, Word::Table, Word::Leaf { pfn, write, g1, .. }) =
                    (vcpu.in_l2, tree.upper, tree.leaf)
                {
                    vcpu.l2 |= 1 << (g1 * 16 + pfn * 2 + u8::from(write));
                }
            }
            for (g1, word) in (0..).zip(self.canonical) {
                if let Word::Leaf { pfn, .. } = word {
                    vcpu.l1 |= 1 << (g1 * 8 + pfn);
                }
            }
            self.vcpus[index] = vcpu;
            for bit in (0..16).filter(|bit| vcpu.l1 >> bit & 1 != 0) {
                self.judge(bit / 8, bit % 8, false);
            }
            for bit in (0..32).filter(|bit| vcpu.l2 >> bit & 1 != 0) {
                let (g1, write) = (bit / 16, bit & 1 != 0);
                self.judge(g1, bit / 2 % 8, write);
                if write && vcpu.in_l2 && self.begun {
                    self.unsaved |= 1 << g1;
                }
                let says = |t: u8| {
                    t & (PRESENT | ACCESSED | FRAME) == PRESENT | ACCESSED | g1 && (!write || stores(t))
                };
                let allowed = vcpu.allowed[vcpu.key as usize];
                if vcpu.in_l2 && !(0..32).any(|t| allowed >> t & 1 != 0 && says(t)) {
                    self.bad = Some(Bad::StaleTables);
                }
            }
        }
    }

    /// Judges that a vCPU can reach this frame of the host by that frame of L1.
    fn judge(&mut self, g1: u8, pfn: u8, write: bool) {
        let page = (pfn % 2) as usize;
        if pfn / 2 < self.versions[page] {
            self.bad = Some(Bad::StaleLoad);
        } else if usize::from(self.slots[g1 as usize]) != page {
            self.bad = Some(Bad::StaleSlot);
        } else if write && !self.writable[page] {
            self.bad = Some(Bad::StaleStore);
        }
    }
}
