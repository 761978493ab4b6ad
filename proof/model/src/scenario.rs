//! A scenario: an initial state, a program for each thread, perhaps a mistake; and families of scenarios.

use crate::bug::Bug;
use crate::state::{
    Caches, Held, HeldState, LOGGED, Leaf, Log, Op, Pc, Range, Sets, Shared, Tlb, Track, Word,
};

/// A scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Name of the scenario.
    pub name: String,
    /// The initial state.
    pub shared: Shared,
    /// A program for each thread.
    pub programs: Vec<Vec<Op>>,
    /// Frames of each slot, if vCPUs [remember](crate::memo); otherwise 0.
    pub remembers: u8,
    /// Whether guests store, and Dirty is checked.
    pub stores: bool,
    /// Invalidations have table pages at hand: a large leaf of which a part changes is split.
    pub splits: bool,
    /// Threads that first run alone up to a step, one after the other.
    pub ahead: Vec<(usize, Pc)>,
    /// The seeded mistake.
    pub bug: Option<Bug>,
}

/// Scenarios about one subject.
pub struct Family<S = Scenario> {
    /// Name of the subject.
    pub name: &'static str,
    /// The scenarios.
    pub scenarios: Vec<S>,
}

impl Scenario {
    /// Makes a scenario from an empty state of two levels and one vCPU.
    pub fn new(name: &str, programs: &[&[Op]]) -> Self {
        let programs = programs.iter().map(|ops| ops.to_vec()).collect();
        Self {
            name: name.into(),
            shared: Shared::new(2, 1),
            programs,
            remembers: 0,
            stores: false,
            splits: true,
            ahead: Vec::new(),
            bug: None,
        }
    }

    /// The same with three levels.
    pub fn deep(mut self) -> Self {
        let Shared { log, vcpu_count, .. } = self.shared;
        self.shared = Shared { log, ..Shared::new(3, vcpu_count) };
        self
    }

    /// The same with two vCPUs.
    pub fn two_vcpus(mut self) -> Self {
        self.shared.vcpu_count = 2;
        self.shared.vcpus[1] = self.shared.vcpus[0];
        self
    }

    /// The same with guests that store.
    pub fn stores(mut self) -> Self {
        self.stores = true;
        self
    }

    /// The same without table pages at hand: a large leaf of which a part changes is zapped.
    pub fn pageless(mut self) -> Self {
        self.splits = false;
        self
    }

    /// The same with vCPUs that remember. Slots have `frames` frames each, and each thread has already found the slot
    /// of frame 0.
    pub fn remembers(mut self, frames: u8) -> Self {
        self.remembers = frames;
        self
    }

    /// The same with vCPUs that leave the guest `leaves` times, enter it again, and answer kicks.
    pub fn kicks(mut self, leaves: u8) -> Self {
        self.shared.tlb = Tlb::entered(leaves);
        self
    }

    /// The same beside up to `many` short invalidations of another page of region 0. They move the numbers; each is one
    /// step.
    pub fn beside_shorts(mut self, many: u8) -> Self {
        self.shared.shorts = many;
        self
    }

    /// The same with kicks that are interrupts.
    pub fn interrupts(mut self, leaves: u8) -> Self {
        self.shared.tlb = Tlb::interrupted(leaves);
        self
    }

    /// The same with frame 0 held for hardware, and valid.
    pub fn held_by_hardware(mut self, write: bool) -> Self {
        self.shared.held =
            Held { state: HeldState::Valid, gfn: 0, hva: 0, write, hardware: true, ..Held::default() };
        self
    }

    /// Returns whether any thread holds a frame.
    pub(crate) fn holds(&self) -> bool {
        self.programs.iter().flatten().any(|op| matches!(op, Op::Hold { .. }))
    }

    /// The same on hardware that broadcasts flushes.
    pub fn broadcasts(mut self) -> Self {
        self.shared.tlb.broadcasts = true;
        self.called("broadcast: ")
    }

    /// The same with look-ups of slots in two steps, by word and cell.
    pub fn cells(mut self) -> Self {
        self.shared.sets = Sets::of(self.shared.memslots);
        self
    }

    /// The same in a VM that can log this way. Region 0 does not log yet.
    pub fn tracks(mut self, track: Track) -> Self {
        self.shared.log = Log { track, ..Log::default() };
        self.stores = track == Track::DirtyBits;
        self
    }

    /// The same with logs that begin with all pages marked.
    pub fn begins_set(mut self) -> Self {
        self.shared.log.set = true;
        self
    }

    /// The same with a log of region 0. Pages that are already writable there are marked.
    pub fn logs(mut self) -> Self {
        (self.shared.log.logs, self.shared.log.begun) = (true, true);
        if self.shared.vcpus[0].stores[0] != 0 && self.shared.log.track == Track::Writes {
            self.shared.log.log_writes(LOGGED);
        }
        self.settled()
    }

    /// The same with invalidations by host address in place of those by frame: narrow ones.
    pub fn by_host(mut self) -> Self {
        for op in self.programs.iter_mut().flatten() {
            if let Op::Invalidate { range, .. } = op
                && let Range::Gfns(pages) = *range
            {
                *range = Range::Hvas(pages);
            }
        }
        self.called("by host address: ")
    }

    /// The same from the state in which thread `i` is about to do `pc`.
    pub fn from(mut self, i: usize, pc: Pc) -> Self {
        self.ahead.push((i, pc));
        self
    }

    /// The same with an addition to the name.
    pub fn called(mut self, more: &str) -> Self {
        self.name.insert_str(0, more);
        self
    }

    /// The same with a mistake.
    pub fn with(mut self, bug: Bug) -> Self {
        self.bug = Some(bug);
        self
    }

    /// Returns the node that links region `region`, and makes it if it is missing.
    fn links(&mut self) -> (u8, u8) {
        let shared = &mut self.shared;
        if !shared.deep {
            return (shared.root, 1);
        }
        let root = shared.root;
        if let Word::Table(node) = shared.load(root, 2, 0) {
            return (node, 1);
        }
        let node = shared.new_node(1, [Word::Hole(0); 2]).expect("a new state");
        shared.set(root, 2, 0, Word::Table(node));
        (node, 1)
    }

    /// A leaf table in region `region`, with these entries.
    pub fn table(mut self, region: u8, entries: [Word; 2]) -> Self {
        let (node, level) = self.links();
        let table = self.shared.new_node(0, entries).expect("a new state");
        self.shared.set(node, level, region * 2, Word::Table(table));
        self.settled()
    }

    /// An empty leaf table in region 0.
    pub fn empty(self) -> Self {
        self.table(0, [Word::Hole(0); 2])
    }

    /// Small leaves in region 0.
    pub fn small(self, write: bool, host_write: bool) -> Self {
        let leaf = |pfn| Word::Leaf(Leaf { pfn, write, host_write, dirty: false });
        let mut made = self.table(0, [leaf(0), leaf(1)]);
        made.shared.writable[..2].fill(host_write);
        made.settled()
    }

    /// A large leaf in region 0.
    pub fn large(mut self, write: bool) -> Self {
        let (node, level) = self.links();
        let leaf = Leaf { pfn: 0, write, host_write: write, dirty: false };
        self.shared.set(node, level, 0, Word::Leaf(leaf));
        self.shared.writable[..2].fill(write);
        self.settled()
    }

    /// The same, armed: a store to it faults.
    pub fn armed_large(mut self) -> Self {
        let (node, level) = self.links();
        let leaf = Leaf { pfn: 0, write: false, host_write: true, dirty: false };
        self.shared.set(node, level, 0, Word::Leaf(leaf));
        self.settled()
    }

    /// Region 0 is read-only on the host.
    pub fn read_only(mut self) -> Self {
        self.shared.writable[..2].fill(false);
        self
    }

    /// Removes the slot of these frames.
    pub fn no_slot(mut self, gfns: std::ops::Range<usize>) -> Self {
        self.shared.memslots[gfns].fill(crate::state::NONE);
        self
    }

    /// Makes every small leaf dirty.
    pub fn dirty(mut self) -> Self {
        let shared = &mut self.shared;
        for node in shared.nodes.iter_mut().filter(|node| !node.free && node.level == 0) {
            for word in &mut node.entries {
                if let Word::Leaf(leaf) = word {
                    leaf.dirty = true;
                    if shared.log.track == Track::Nothing {
                        shared.written |= 1 << leaf.pfn;
                    } else {
                        shared.log.unsaved |= 1 << leaf.pfn;
                    }
                }
            }
        }
        self
    }

    /// Computes the caches and counts of the initial state.
    fn settled(mut self) -> Self {
        let shared = &mut self.shared;
        shared.leaves =
            shared.below(shared.root).0.iter().map(|&(_, level)| Shared::pages(level) as i8).sum();
        for vcpu in &mut shared.vcpus {
            *vcpu = Caches { root: shared.root, ..Caches::default() };
        }
        self.shared.hardware();
        assert_eq!(self.shared.bad, None, "the initial state is right: {}", self.name);
        self
    }
}
