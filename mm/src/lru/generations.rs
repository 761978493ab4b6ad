//! Generations: how many there are, how old, and how many pages are in each.
//!
//! ```text
//! min_seq[anon] ≤ min_seq[file]                                    max_seq
//!      │ oldest: evicted next                                         │ youngest: faults put pages here
//!   [ 17 ]              [ 18 ]              [ 19 ]                 [ 20 ]          2 to 4 at a time
//! ```
//! The youngest is one for all nodes, since a pass clears the Accessed bits of all of them; each node and kind of page has
//! its own oldest. A page of a generation below the oldest counts as of the oldest, so **two generations become one** by
//! one number more and two counters added, whatever their size.
//!
//! **The counters** are sharded: a thread that brings a page in locks its own shard, for two additions. The numbers change
//! under the locks of all shards, so who holds one shard sees numbers and counters that belong together, and the sums
//! are exact. A shard may be below zero: who takes a page away is not always who brought it.

use crate::numa::Node;
use crate::shards::Shards;
use parking_lot::{Mutex, MutexGuard};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// So many of the youngest are not evicted: a page that was just brought in had no chance to be used again.
pub(super) const MIN_GENS: u64 = 2;
/// So many there are at most.
pub(super) const MAX_GENS: u64 = 4;
const SLOTS: usize = MAX_GENS as usize;

/// What kind of page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Of this address space alone.
    Anon,
    /// A file's own.
    File,
}

impl Kind {
    pub(super) const ALL: [Self; 2] = [Self::Anon, Self::File];
}

/// Pages of one kind in each generation, by its number modulo their number.
type Slots = [i64; SLOTS];

/// See the module's header.
#[derive(Debug)]
pub(super) struct Generations {
    // ORDER(generations): Relaxed, all of these: they change under all shards' locks, and who acts on them holds one;
    // others only look.
    max_seq: AtomicU64,
    min_seq: Box<[[AtomicU64; 2]]>,
    /// When each began: nanoseconds since `start`.
    births: [AtomicU64; SLOTS],
    start: Instant,
    shards: Shards<Mutex<Vec<[Slots; 2]>>>,
}

impl Generations {
    /// As many as there can be, all of them empty.
    pub(super) fn new(nodes: u8) -> Self {
        let shards: Shards<Mutex<Vec<[Slots; 2]>>> = Shards::new();
        shards.iter().for_each(|shard| shard.lock().resize(usize::from(nodes), Default::default()));
        Self {
            max_seq: AtomicU64::new(MAX_GENS - 1),
            min_seq: (0..nodes).map(|_| Default::default()).collect(),
            births: Default::default(),
            start: Instant::now(),
            shards,
        }
    }

    /// The youngest.
    pub(super) fn max_seq(&self) -> u64 {
        self.max_seq.load(Relaxed)
    }

    /// The oldest of a node and kind.
    pub(super) fn min_seq(&self, node: Node, kind: Kind) -> u64 {
        self.min_seq[usize::from(node.0)][kind as usize].load(Relaxed)
    }

    /// How many nodes there are.
    pub(super) fn nodes(&self) -> impl Iterator<Item = Node> + use<> {
        (0..self.min_seq.len() as u8).map(Node)
    }

    /// How long ago a generation began.
    pub(super) fn age(&self, seq: u64) -> Duration {
        let birth = Duration::from_nanos(self.births[seq as usize % SLOTS].load(Relaxed));
        self.start.elapsed().saturating_sub(birth)
    }

    /// This thread's counters. Nothing else is locked while they are.
    pub(super) fn counters(&self) -> CountersGuard<'_> {
        CountersGuard { of: self, shard: self.shards.mine().lock() }
    }

    /// Pages in a generation. Exact where no thread changes them meanwhile.
    pub(super) fn pages(&self, node: Node, kind: Kind, seq: u64) -> u64 {
        let slot = |shard: &Mutex<Vec<[Slots; 2]>>| {
            shard.lock()[usize::from(node.0)][kind as usize][seq as usize % SLOTS]
        };
        self.shards.iter().map(slot).sum::<i64>().max(0) as u64
    }

    /// Begins the next generation. Where there are as many as there can be, the oldest two become one.
    pub(super) fn begin_next(&self) {
        let mut all = self.lock_all();
        let max = self.max_seq();
        for node in self.nodes() {
            for kind in Kind::ALL {
                if max + 1 - self.min_seq(node, kind) == MAX_GENS {
                    self.drop_oldest(&mut all, node, kind);
                }
            }
        }
        self.births[(max + 1) as usize % SLOTS].store(self.start.elapsed().as_nanos() as u64, Relaxed);
        self.max_seq.store(max + 1, Relaxed);
    }

    /// Where the oldest generations of a node are empty, the next are the oldest. With `can_swap`, anonymous pages do
    /// not run away from files: their oldest is never younger than theirs.
    pub(super) fn pass_by_empty(&self, node: Node, can_swap: bool) {
        let is_empty = |kind| {
            let seq = self.min_seq(node, kind);
            seq + MIN_GENS <= self.max_seq() && self.pages(node, kind, seq) == 0
        };
        if !Kind::ALL.into_iter().any(is_empty) {
            return;
        }
        let mut all = self.lock_all();
        let first_used = |kind: Kind| {
            let empty = |seq: u64| all.iter().map(|shard| slot(shard, node, kind, seq)).sum::<i64>() == 0;
            let oldest = self.min_seq(node, kind);
            let last = (self.max_seq() + 1 - MIN_GENS).max(oldest);
            (oldest..last).find(|&seq| !empty(seq)).unwrap_or(last)
        };
        let [mut anon, mut file] = Kind::ALL.map(first_used);
        if can_swap {
            anon = anon.min(file);
            file = file.max(anon);
        }
        for (kind, seq) in Kind::ALL.into_iter().zip([anon, file]) {
            while self.min_seq(node, kind) < seq {
                self.drop_oldest(&mut all, node, kind);
            }
        }
    }

    /// What is in the oldest generation is in the next one.
    fn drop_oldest(&self, all: &mut [MutexGuard<'_, Vec<[Slots; 2]>>], node: Node, kind: Kind) {
        let oldest = self.min_seq(node, kind);
        for shard in all {
            let slots = &mut shard[usize::from(node.0)][kind as usize];
            slots[(oldest + 1) as usize % SLOTS] += std::mem::take(&mut slots[oldest as usize % SLOTS]);
        }
        self.min_seq[usize::from(node.0)][kind as usize].store(oldest + 1, Relaxed);
    }

    /// In their order, so that two who do this do not wait for each other in turn.
    fn lock_all(&self) -> Vec<MutexGuard<'_, Vec<[Slots; 2]>>> {
        self.shards.iter().map(Mutex::lock).collect()
    }
}

fn slot(shard: &[[Slots; 2]], node: Node, kind: Kind, seq: u64) -> i64 {
    shard[usize::from(node.0)][kind as usize][seq as usize % SLOTS]
}

/// One shard of the counters, locked: as long as it is, no generation begins or ends.
pub(super) struct CountersGuard<'a> {
    of: &'a Generations,
    shard: MutexGuard<'a, Vec<[Slots; 2]>>,
}

impl CountersGuard<'_> {
    /// `pages` more, or fewer, in the generation that `seq` counts as.
    pub(super) fn add(&mut self, node: Node, kind: Kind, seq: u64, pages: i64) {
        let seq = seq.max(self.min_seq(node, kind));
        self.shard[usize::from(node.0)][kind as usize][seq as usize % SLOTS] += pages;
    }
}

impl Deref for CountersGuard<'_> {
    type Target = Generations;
    fn deref(&self) -> &Generations {
        self.of
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: Node = Node(0);

    fn histogram(generations: &Generations, kind: Kind) -> Vec<(u64, u64)> {
        let seqs = generations.min_seq(NODE, kind)..=generations.max_seq();
        seqs.map(|seq| (seq, generations.pages(NODE, kind, seq))).collect()
    }

    #[test]
    fn the_oldest_two_become_one_where_there_is_no_room_for_a_next() {
        let generations = Generations::new(1);
        for (seq, pages) in [(0, 5), (1, 7), (3, 9)] {
            generations.counters().add(NODE, Kind::Anon, seq, pages);
        }
        generations.begin_next();
        assert_eq!(histogram(&generations, Kind::Anon), [(1, 12), (2, 0), (3, 9), (4, 0)]);
        // One that was of generation 0 leaves by the number that it was given.
        generations.counters().add(NODE, Kind::Anon, 0, -1);
        assert_eq!(histogram(&generations, Kind::Anon), [(1, 11), (2, 0), (3, 9), (4, 0)]);
    }

    #[test]
    fn empty_ones_are_passed_by_but_for_the_youngest_two() {
        let generations = Generations::new(1);
        generations.pass_by_empty(NODE, false);
        assert_eq!(histogram(&generations, Kind::File), [(2, 0), (3, 0)]);
        generations.counters().add(NODE, Kind::File, 2, 1);
        generations.begin_next();
        generations.pass_by_empty(NODE, false);
        assert_eq!(generations.min_seq(NODE, Kind::File), 2, "not empty");
        assert_eq!(generations.min_seq(NODE, Kind::Anon), 3, "each kind by itself");
    }

    #[test]
    fn anonymous_pages_do_not_run_ahead_of_files() {
        let generations = Generations::new(1);
        generations.counters().add(NODE, Kind::File, 1, 1);
        generations.pass_by_empty(NODE, true);
        assert_eq!(Kind::ALL.map(|kind| generations.min_seq(NODE, kind)), [1, 1]);
        generations.counters().add(NODE, Kind::File, 1, -1);
        generations.counters().add(NODE, Kind::Anon, 1, 1);
        generations.pass_by_empty(NODE, true);
        assert_eq!(Kind::ALL.map(|kind| generations.min_seq(NODE, kind)), [1, 2]);
    }

    #[test]
    fn sums_are_exact_whichever_thread_brings_and_takes() {
        let generations = Generations::new(1);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let mut counters = generations.counters();
                        let seq = counters.max_seq();
                        counters.add(NODE, Kind::Anon, seq, 3);
                        drop(counters);
                        generations.counters().add(NODE, Kind::Anon, seq, -2);
                    }
                });
            }
            scope.spawn(|| (0..100).for_each(|_| generations.begin_next()));
        });
        let total: u64 = histogram(&generations, Kind::Anon).iter().map(|&(_, pages)| pages).sum();
        assert_eq!(total, 4000);
    }
}
