//! The part of a state by which a walk tells states apart; and the steps before which a walk lets threads switch.

use super::random::{Quick, Random, mix};
use crate::state::{Change, EPOCH, Fault, Flush, Logging, Memo, Pc, Shared, State, Thread, Walk, Word};
use std::hash::{Hash, Hasher};
use std::mem::discriminant;

/// Returns a hash of what a walk sees of a state.
///
/// Numbers count only by how they compare: a hole with a thread's stamp, a line with a thread's number. Generations of
/// frames do not count. So a walk visits one of many states that look alike, and other seeds visit others.
pub(super) fn view(s: &State) -> u64 {
    let mut hash = Quick::default();
    let Shared { lines, nodes, log, tlb, held, writable, memslots, vcpus, grace, .. } = &s.shared;
    for word in nodes.iter().flat_map(|node| node.entries) {
        kind(word).hash(&mut hash);
    }
    for (place, line) in s.shared.slots.iter().zip(lines.map(Some).into_iter().chain([None; 8])) {
        (place.active, place.unflushed, place.lines, line.map(|line| line.listed)).hash(&mut hash);
    }
    for vcpu in vcpus {
        let used = |sets: [u16; 4]| sets.map(|frames| frames != 0);
        (vcpu.root, used(vcpu.loads), used(vcpu.stores)).hash(&mut hash);
    }
    (log, held, writable, memslots, grace).hash(&mut hash);
    if tlb.kicks {
        tlb.hash(&mut hash);
    }
    let Shared { parked, watched, tracked, locked, writer, .. } = s.shared;
    (s.shared.shorts, parked, watched, tracked, locked, writer).hash(&mut hash);
    for thread in &s.threads {
        view_of(thread, &s.shared, &mut hash);
    }
    hash.finish()
}

/// Returns what a walk sees of an entry.
fn kind(word: Word) -> (u8, bool, bool) {
    match word {
        Word::Hole(_) => (0, false, false),
        Word::Mmio(_) => (1, false, false),
        Word::Table(node) => (8 + node, false, false),
        Word::Leaf(leaf) => (2, leaf.write, leaf.dirty),
        Word::Frozen(_) => (3, false, false),
    }
}

fn view_of(thread: &Thread, shared: &Shared, hash: &mut Quick) {
    let Thread {
        op,
        pc,
        gfn,
        waits,
        walk: Walk { level, thawed, .. },
        fault: Fault { places, asking, .. },
        change: Change { again, took, .. },
        ..
    } = *thread;
    (op, pc, level, gfn, places, waits, asking, thawed.is_some(), again, took).hash(hash);
    let Thread {
        fault: Fault { page, part, .. },
        flush: Flush { owed, unlinked, .. },
        log: Logging { logged, known, taken, arms, before, late, .. },
        ..
    } = *thread;
    (page.map(|page| (page.write, page.large)), part, owed, unlinked).hash(hash);
    (logged, known, taken, arms, before, late, thread.commit.emptied, thread.change.telling).hash(hash);
    for word in shared.nodes.iter().flat_map(|node| node.entries) {
        word.version().is_some_and(|version| version <= thread.fault.stamp).hash(hash);
    }
    for line in shared.lines {
        (line.newest > thread.change.number).hash(hash);
    }
    (thread.fault.epoch == shared.lines[EPOCH].newest, thread.fault.offered.is_some()).hash(hash);
    thread.fault.memo.map(Memo::frames).hash(hash);
}

/// The steps before which a walk lets threads switch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Switches {
    drawn: u64,
    /// One of so many.
    of: u64,
}

impl Switches {
    pub(super) fn draw(random: &mut Random) -> Self {
        Self { drawn: random.number(), of: random.pick(&[2, 2, 3, 4]) }
    }

    /// Whether threads may switch before this step. Before an operation they may.
    pub(super) fn has(self, pc: Pc) -> bool {
        let mut hash = Quick::default();
        discriminant(&pc).hash(&mut hash);
        pc == Pc::Start || mix(hash.finish() ^ self.drawn).is_multiple_of(self.of)
    }
}
