//! The free frames of a node that are on no thread's list: in zones, each under a lock of its own.
//!
//! ```text
//! node   │ zone 0 │ zone 1 │ zone 2 │ …       as many blocks in each, neighbours together
//!            ▲        ▲
//!      threads 0, 3   threads 1, 4            each begins at its own zone, and goes on where that has none
//! ```
//! A lock that hundreds of CPUs take for each batch is what they wait for, however short it is held: each hand-over moves its line
//! between sockets. Here a few threads share a zone. A small node has one zone only: its frames gather at its bottom, so that whole
//! blocks remain.
//!
//! A thread holds the lock of one zone at a time; or [all of them](Zones::lock_all), taken in order.

use crate::frames::{BLOCK, FreeFrames, Unit};
use crate::prim::{Mutex, MutexGuard, thread_number};
use crate::shards::{Shards, shards};
use std::ops::Range;

/// Blocks of a zone at least: 64 MiB.
const SMALLEST: u64 = 32;
/// Threads with lists of their own that share a zone at most, where the node is large enough.
const THREADS: usize = 8;

/// See the module's header. Frames are numbered from the node's first.
#[derive(Debug)]
pub(super) struct Zones {
    zones: Shards<Mutex<FreeFrames>>,
    /// Frames of each zone but the last, which may have fewer.
    each: u64,
}

/// All zones of a node, locked.
pub(super) struct AllZones<'a> {
    zones: Vec<MutexGuard<'a, FreeFrames>>,
    each: u64,
}

impl Zones {
    /// For so many blocks, all free.
    pub(super) fn new(blocks: u64) -> Self {
        let most = (blocks / SMALLEST).clamp(1, (shards() / THREADS) as u64);
        Self::with(blocks, blocks.div_ceil(most))
    }

    /// With so many blocks in each zone.
    fn with(blocks: u64, each: u64) -> Self {
        let zones = (0..blocks).step_by(each as usize);
        let zones = zones.map(|first| Mutex::new(FreeFrames::new(each.min(blocks - first) as usize)));
        Self { zones: zones.collect(), each: each * BLOCK }
    }

    /// The zones with their first frames, this thread's first.
    fn mine_first(&self) -> impl Iterator<Item = (u64, &Mutex<FreeFrames>)> {
        let (mine, count) = (thread_number(), self.zones.len());
        let looked = if seeded!(ZoneAlone) { 1 } else { count };
        (mine..mine + looked).map(move |zone| ((zone % count) as u64 * self.each, self.zones.pick(zone)))
    }

    /// Frames that are free.
    pub(super) fn free(&self) -> u64 {
        self.zones.iter().map(|zone| zone.lock().free()).sum()
    }

    /// Takes up to `want` single frames, of the first zone with more than `spare` free ones.
    pub(super) fn take_frames(&self, want: usize, spare: u64, into: &mut Vec<u64>) {
        for (first, zone) in self.mine_first() {
            let mut free = zone.lock();
            if free.free() > spare {
                let before = into.len();
                free.take_frames(want, into);
                into[before..].iter_mut().for_each(|frame| *frame += first);
                return;
            }
        }
    }

    /// Takes a unit and returns its first frame.
    pub(super) fn take(&self, unit: Unit) -> Option<u64> {
        self.mine_first().find_map(|(first, zone)| zone.lock().take(unit).map(|frame| first + frame))
    }

    /// Takes frames back, neighbours of each other.
    pub(super) fn give(&self, mut frames: Range<u64>) {
        while !frames.is_empty() {
            let (zone, first) = (frames.start / self.each, frames.start / self.each * self.each);
            let end = frames.end.min(first + self.each);
            self.zones.pick(zone as usize).lock().give(frames.start - first..end - first);
            frames.start = end;
        }
    }

    /// Takes single frames back, those of one zone by one hold of its lock.
    pub(super) fn give_each(&self, frames: &mut [u64]) {
        frames.sort_unstable();
        for frames in frames.chunk_by(|one, next| one / self.each == next / self.each) {
            let zone = frames[0] / self.each;
            let mut free = self.zones.pick(zone as usize).lock();
            frames.iter().map(|frame| frame % self.each).for_each(|frame| free.give(frame..frame + 1));
        }
    }

    /// No thread takes or gives back until the result is dropped.
    pub(super) fn lock_all(&self) -> AllZones<'_> {
        AllZones { zones: self.zones.iter().map(|zone| zone.lock()).collect(), each: self.each }
    }

    /// Each zone, with its first frame.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Mutex<FreeFrames>)> {
        (0..).step_by(self.each as usize).zip(self.zones.iter())
    }
}

impl AllZones<'_> {
    /// Takes single frames back.
    pub(super) fn give_each(&mut self, frames: &[u64]) {
        for frame in frames {
            let at = frame % self.each;
            self.zones[(frame / self.each) as usize].give(at..at + 1);
        }
    }

    /// Takes a frame.
    pub(super) fn take_frame(&mut self) -> Option<u64> {
        let mut one = Vec::with_capacity(1);
        self.first(|free| {
            free.take_frames(1, &mut one);
            one.pop()
        })
    }

    /// Takes a unit and returns its first frame.
    pub(super) fn take(&mut self, unit: Unit) -> Option<u64> {
        self.first(|free| free.take(unit))
    }

    /// What `take` gets of the first zone that has it.
    fn first(&mut self, mut take: impl FnMut(&mut FreeFrames) -> Option<u64>) -> Option<u64> {
        let count = self.zones.len();
        let (begin, looked) = if seeded!(ZoneAlone) { (thread_number() % count, 1) } else { (0, count) };
        let zones = (0..).step_by(self.each as usize).zip(&mut self.zones);
        zones.skip(begin).take(looked).find_map(|(first, free)| Some(first + take(free)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all single frames.
    fn all(zones: &Zones) -> Vec<u64> {
        let mut all = Vec::new();
        let mut before = usize::MAX;
        while before != all.len() {
            before = all.len();
            zones.take_frames(100, 0, &mut all);
        }
        all
    }

    #[test]
    fn a_small_node_has_one_zone_and_a_large_one_has_no_small_zones() {
        for blocks in [1, 31, 63] {
            assert_eq!(Zones::new(blocks).zones.len(), 1, "{blocks} blocks");
        }
        for blocks in [64, 1000, 1 << 30] {
            let zones = Zones::new(blocks);
            let most = shards() / THREADS;
            assert!((1..=most.max(1)).contains(&zones.zones.len()), "{blocks} blocks");
            assert_eq!(zones.free(), blocks * BLOCK);
        }
    }

    #[test]
    fn what_one_zone_lacks_comes_from_the_next_and_goes_back_to_where_it_was() {
        // The last zone has one block.
        let zones = Zones::with(7, 2);
        assert_eq!(zones.iter().map(|(first, _)| first / BLOCK).collect::<Vec<_>>(), [0, 2, 4, 6]);
        let mut taken = all(&zones);
        assert_eq!((taken.len() as u64, zones.free()), (7 * BLOCK, 0));
        assert_eq!((zones.take(Unit::Chunk), zones.lock_all().take_frame()), (None, None));
        taken.reverse();
        zones.give_each(&mut taken);
        assert!(taken.iter().copied().eq(0..7 * BLOCK), "each frame was taken once");
        let free: Vec<_> = zones.iter().map(|(_, zone)| zone.lock().free() / BLOCK).collect();
        assert_eq!(free, [2, 2, 2, 1]);
        let mut blocks: Vec<_> = std::iter::from_fn(|| zones.take(Unit::Block)).collect();
        blocks.sort_unstable();
        assert!(blocks.iter().copied().eq((0..7).map(|block| block * BLOCK)), "they are whole again");
        // Over the ends of three zones.
        zones.give(BLOCK..6 * BLOCK + 1);
        let free: Vec<_> = zones.iter().map(|(_, zone)| zone.lock().free()).collect();
        assert_eq!(free, [BLOCK, 2 * BLOCK, 2 * BLOCK, 1]);
        let mut locked = zones.lock_all();
        locked.give_each(&[0, 6 * BLOCK + 1]);
        assert_eq!(locked.take_frame(), Some(0));
        assert_eq!(locked.take(Unit::Block), Some(BLOCK));
        drop(locked);
        assert_eq!(zones.free(), 4 * BLOCK + 2);
    }

    #[test]
    fn a_zone_with_few_frames_is_passed_over_where_some_are_to_be_spared() {
        let zones = Zones::with(2, 1);
        let mut taken = Vec::new();
        zones.take_frames(500, 0, &mut taken);
        let mine = taken[0] / BLOCK;
        taken.clear();
        zones.take_frames(1, 100, &mut taken);
        assert_eq!(taken[0] / BLOCK, 1 - mine);
        zones.take_frames(1, BLOCK, &mut taken);
        assert_eq!(taken.len(), 1, "none has so many");
    }
}
