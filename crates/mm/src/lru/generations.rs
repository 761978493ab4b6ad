//! Generations: their numbers, ages, and counts of pages.
//!
//! ```text
//! min_seq[anon] ≤ min_seq[file]                                    max_seq
//!      │ oldest: evicted next                                         │ youngest: faults put pages here
//!   [ 17 ]              [ 18 ]              [ 19 ]                 [ 20 ]          2 to 4 at a time
//! ```
//! All nodes share the youngest generation, since a pass clears the Accessed bits of all nodes. Each node and
//! kind of page has its own oldest. A page whose generation is below the oldest counts as in the oldest. So
//! **merging the two oldest generations** increments `min_seq` and adds two counters, whatever their size.
//!
//! **The counters** are sharded: a thread that brings a page in locks its own shard for two additions.
//! `min_seq` and `max_seq` change only while all shards are locked. So a thread that holds one shard sees
//! consistent numbers and counters, and the sums are exact. A shard may be negative: one thread can remove a
//! page that another brought in.

use crate::nodes::Node;
use crate::shards::Shards;
use parking_lot::{Mutex, MutexGuard};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Number of youngest generations that are not evicted, since their pages had no chance to be used again.
pub(crate) const MIN_GENS: u64 = 2;
/// Most generations at a time.
pub(crate) const MAX_GENS: u64 = 4;
const SLOTS: usize = MAX_GENS as usize;

/// Kind of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Private to this address space.
    Anon,
    /// A page of a file.
    File,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Anon, Self::File];
}

/// Pages of one kind in each generation, indexed by its number modulo `SLOTS`.
type Slots = [i64; SLOTS];

/// The generations of one address space.
#[derive(Debug)]
pub(crate) struct Generations {
    // ORDER(generations): Relaxed, all of these. They change while all shards are locked; threads that depend
    // on them hold a shard, others only report them.
    max_seq: AtomicU64,
    min_seq: Box<[[AtomicU64; 2]]>,
    /// Start of each generation, in nanoseconds since `start`.
    births: [AtomicU64; SLOTS],
    start: Instant,
    shards: Shards<Mutex<Vec<[Slots; 2]>>>,
}

impl Generations {
    /// Starts with the most generations, all empty.
    pub(crate) fn new(nodes: u8) -> Self {
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

    /// Number of the youngest generation.
    pub(crate) fn max_seq(&self) -> u64 {
        self.max_seq.load(Relaxed)
    }

    /// Number of the oldest generation of a node and kind.
    pub(crate) fn min_seq(&self, node: Node, kind: Kind) -> u64 {
        self.min_seq[usize::from(node.0)][kind as usize].load(Relaxed)
    }

    /// Returns all nodes.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = Node> + use<> {
        (0..self.min_seq.len() as u8).map(Node)
    }

    /// Returns how long ago a generation began.
    pub(crate) fn age(&self, seq: u64) -> Duration {
        let birth = Duration::from_nanos(self.births[seq as usize % SLOTS].load(Relaxed));
        self.start.elapsed().saturating_sub(birth)
    }

    /// Locks this thread's counters. The thread takes no other lock while it holds them.
    pub(crate) fn counters(&self) -> CountersGuard<'_> {
        CountersGuard { of: self, shard: self.shards.mine().lock() }
    }

    /// Returns the pages in a generation. Exact if no thread changes them meanwhile.
    pub(crate) fn pages(&self, node: Node, kind: Kind, seq: u64) -> u64 {
        let slot = |shard: &Mutex<Vec<[Slots; 2]>>| {
            shard.lock()[usize::from(node.0)][kind as usize][seq as usize % SLOTS]
        };
        self.shards.iter().map(slot).sum::<i64>().max(0) as u64
    }

    /// Begins the next generation. Merges the oldest two where their number is at its maximum.
    pub(crate) fn begin_next(&self) {
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

    /// Drops empty oldest generations of a node. With `can_swap` the oldest of anonymous pages is never younger
    /// than the oldest of files.
    pub(crate) fn pass_by_empty(&self, node: Node, can_swap: bool) {
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

    /// Merges the oldest generation into the next one.
    fn drop_oldest(&self, all: &mut [MutexGuard<'_, Vec<[Slots; 2]>>], node: Node, kind: Kind) {
        let oldest = self.min_seq(node, kind);
        for shard in all {
            let slots = &mut shard[usize::from(node.0)][kind as usize];
            slots[(oldest + 1) as usize % SLOTS] += std::mem::take(&mut slots[oldest as usize % SLOTS]);
        }
        self.min_seq[usize::from(node.0)][kind as usize].store(oldest + 1, Relaxed);
    }

    /// Locks all shards, in order, so that two threads cannot deadlock.
    fn lock_all(&self) -> Vec<MutexGuard<'_, Vec<[Slots; 2]>>> {
        self.shards.iter().map(Mutex::lock).collect()
    }
}

fn slot(shard: &[[Slots; 2]], node: Node, kind: Kind, seq: u64) -> i64 {
    shard[usize::from(node.0)][kind as usize][seq as usize % SLOTS]
}

/// One locked shard of the counters. No generation begins or ends while it is held.
pub(crate) struct CountersGuard<'a> {
    of: &'a Generations,
    shard: MutexGuard<'a, Vec<[Slots; 2]>>,
}

impl CountersGuard<'_> {
    /// Adds `pages`, which may be negative, to the generation that `seq` counts as.
    pub(crate) fn add(&mut self, node: Node, kind: Kind, seq: u64, pages: i64) {
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
    fn the_oldest_two_are_merged_at_the_maximum() {
        let generations = Generations::new(1);
        for (seq, pages) in [(0, 5), (1, 7), (3, 9)] {
            generations.counters().add(NODE, Kind::Anon, seq, pages);
        }
        generations.begin_next();
        assert_eq!(histogram(&generations, Kind::Anon), [(1, 12), (2, 0), (3, 9), (4, 0)]);
        // A page that entered generation 0 leaves under the same number.
        generations.counters().add(NODE, Kind::Anon, 0, -1);
        assert_eq!(histogram(&generations, Kind::Anon), [(1, 11), (2, 0), (3, 9), (4, 0)]);
    }

    #[test]
    fn empty_generations_are_dropped_but_not_the_youngest_two() {
        let generations = Generations::new(1);
        generations.pass_by_empty(NODE, false);
        assert_eq!(histogram(&generations, Kind::File), [(2, 0), (3, 0)]);
        generations.counters().add(NODE, Kind::File, 2, 1);
        generations.begin_next();
        generations.pass_by_empty(NODE, false);
        assert_eq!(generations.min_seq(NODE, Kind::File), 2, "not empty");
        assert_eq!(generations.min_seq(NODE, Kind::Anon), 3, "the kinds are independent");
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
    fn sums_are_exact_when_threads_add_and_remove_pages() {
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
