//! The free frames of a node that are in no list: zones, each with its own lock.
//!
//! ```text
//! node   │ zone 0 │ zone 1 │ zone 2 │ …       equal numbers of consecutive blocks
//!            ▲        ▲
//!      threads 0, 3   threads 1, 4            each begins at its own zone, and tries the next ones if that is empty
//! ```
//! A lock that hundreds of CPUs take for each batch becomes a bottleneck, however briefly it is held: each
//! hand-over moves its cache line between sockets. Here a few threads share a zone. A small node has a single
//! zone, so that its used frames stay at the bottom and whole blocks remain.
//!
//! Frames that were [zeroed ahead](crate::zero) belong to their zones, under the same locks. A fault that looks
//! for one reads a hint of its own zone, and the hints of others once per batch; it writes nothing that the
//! whole node shares.
//!
//! A thread holds the lock of one zone, or of [all zones](Zones::lock_all), taken in order.

use crate::frames::{BLOCK, FreeFrames, Unit};
use crate::prim::{AtomicU64, Mutex, MutexGuard, thread_number};
use crate::shards::{Padded, Shards, shards};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Least blocks of a zone: 64 MiB.
const SMALLEST: u64 = 32;
/// Number of lists that share a zone, if the node is large enough.
const THREADS: usize = 8;

/// The zones of one node. Frames are numbered from the node's first.
#[derive(Debug)]
pub(super) struct Zones {
    zones: Shards<Zone>,
    /// Number of frames in each zone but the last, which may have fewer.
    each: u64,
}

#[derive(Debug)]
struct Zone {
    /// Number of its first frame.
    first: u64,
    frames: Mutex<Frames>,
    /// Number of frames zeroed ahead. On its own cache lines: a fault that finds none here does not touch the
    /// lock's line.
    // ORDER(zeroed): Relaxed: a hint; the frames are found under the lock.
    zeroed: Padded<AtomicU64>,
}

/// The free frames of a zone.
#[derive(Debug)]
pub(super) struct Frames {
    /// Numbered from the zone's first frame.
    pub(super) free: FreeFrames,
    /// Frames zeroed ahead, which are not in `free`. Numbered from the node's first frame.
    zeroed: Vec<u64>,
}

/// All zones of a node, locked. No frame counts as zeroed ahead.
pub(super) struct AllZones<'a> {
    zones: Vec<MutexGuard<'a, Frames>>,
    each: u64,
}

impl Zone {
    /// Creates a zone of free blocks.
    fn new(first: u64, blocks: u64) -> Self {
        let frames = Frames { free: FreeFrames::new(blocks as usize), zeroed: Vec::new() };
        Self { first, frames: Mutex::new(frames), zeroed: Padded::default() }
    }

    /// Locks the zone, and makes its zeroed frames ordinary free frames.
    fn lock(&self) -> MutexGuard<'_, Frames> {
        let mut frames = self.frames.lock();
        self.zeroed.store(0, Relaxed);
        let Frames { free, zeroed } = &mut *frames;
        zeroed.drain(..).map(|frame| frame - self.first).for_each(|at| free.give(at..at + 1));
        frames
    }
}

impl Zones {
    /// Creates zones for this many blocks, all free.
    pub(super) fn new(blocks: u64) -> Self {
        let most = (blocks / SMALLEST).clamp(1, (shards() / THREADS) as u64);
        Self::with(blocks, blocks.div_ceil(most))
    }

    /// Creates zones of `each` blocks.
    fn with(blocks: u64, each: u64) -> Self {
        let zones = (0..blocks).step_by(each as usize);
        let zones = zones.map(|first| Zone::new(first * BLOCK, each.min(blocks - first)));
        Self { zones: zones.collect(), each: each * BLOCK }
    }

    /// Returns the zones, this thread's first.
    fn mine_first(&self) -> impl Iterator<Item = &Zone> {
        let mine = thread_number();
        (mine..mine + self.zones.len()).map(|zone| self.zones.pick(zone))
    }

    fn zone_of(&self, frame: u64) -> &Zone {
        self.zones.pick((frame / self.each) as usize)
    }

    /// Returns the number of free frames, zeroed or not.
    pub(super) fn free(&self) -> u64 {
        let free = |zone: &Zone| {
            let frames = zone.frames.lock();
            frames.free.free() + frames.zeroed.len() as u64
        };
        self.zones.iter().map(free).sum()
    }

    /// Returns the number of frames zeroed ahead.
    pub(super) fn zeroed(&self) -> u64 {
        self.zones.iter().map(|zone| zone.zeroed.load(Relaxed)).sum()
    }

    /// Takes up to `want` single frames from the first zone that has any.
    pub(super) fn take_frames(&self, want: usize, into: &mut Vec<u64>) {
        let before = into.len();
        for zone in self.mine_first() {
            take_of(zone, &mut zone.frames.lock(), want, into);
            if into.len() > before {
                return;
            }
        }
    }

    /// Takes up to `want` zeroed frames from this thread's zone, or with `elsewhere` from the first zone that
    /// has any; returns whether there was one.
    pub(super) fn take_zeroed(&self, want: usize, elsewhere: bool, into: &mut Vec<u64>) -> bool {
        for zone in self.mine_first().take(if elsewhere { usize::MAX } else { 1 }) {
            if zone.zeroed.load(Relaxed) == 0 {
                continue;
            }
            let mut frames = zone.frames.lock();
            let left = frames.zeroed.len().saturating_sub(want);
            into.extend(frames.zeroed.drain(left..));
            zone.zeroed.store(left as u64, Relaxed);
            if !into.is_empty() {
                return true;
            }
        }
        false
    }

    /// Takes up to `want` single frames to zero, from the zone with the fewest zeroed frames among those with
    /// more than `spare` free.
    pub(super) fn take_to_zero(&self, want: usize, spare: u64, into: &mut Vec<u64>) {
        let mut zones: Vec<&Zone> = self.zones.iter().collect();
        zones.sort_by_key(|zone| zone.zeroed.load(Relaxed));
        for zone in zones {
            let mut frames = zone.frames.lock();
            if frames.free.free() > spare {
                return take_of(zone, &mut frames, want, into);
            }
        }
    }

    /// Offers frames of one zone as zeroed.
    pub(super) fn give_zeroed(&self, frames: &[u64]) {
        let Some(&frame) = frames.first() else { return };
        let zone = self.zone_of(frame);
        let mut of_zone = zone.frames.lock();
        of_zone.zeroed.extend(frames.iter().rev()); // lowest first
        zone.zeroed.store(of_zone.zeroed.len() as u64, Relaxed);
    }

    /// Takes a unit and returns its first frame.
    pub(super) fn take(&self, unit: Unit) -> Option<u64> {
        self.mine_first().find_map(|zone| zone.frames.lock().free.take(unit).map(|frame| zone.first + frame))
    }

    /// Frees a run of frames.
    pub(super) fn give(&self, mut frames: Range<u64>) {
        while !frames.is_empty() {
            let zone = self.zone_of(frames.start);
            let end = frames.end.min(zone.first + self.each);
            zone.frames.lock().free.give(frames.start - zone.first..end - zone.first);
            frames.start = end;
        }
    }

    /// Frees single frames; takes the lock of each zone once.
    pub(super) fn give_each(&self, frames: &mut [u64]) {
        frames.sort_unstable();
        for frames in frames.chunk_by(|one, next| one / self.each == next / self.each) {
            let zone = self.zone_of(frames[0]);
            let mut of_zone = zone.frames.lock();
            frames.iter().map(|frame| frame - zone.first).for_each(|at| of_zone.free.give(at..at + 1));
        }
    }

    /// Locks all zones.
    pub(super) fn lock_all(&self) -> AllZones<'_> {
        AllZones { zones: self.zones.iter().map(Zone::lock).collect(), each: self.each }
    }

    /// Returns each zone with its first frame.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Mutex<Frames>)> {
        self.zones.iter().map(|zone| (zone.first, &zone.frames))
    }
}

/// Takes up to `want` single frames of a zone.
fn take_of(zone: &Zone, frames: &mut Frames, want: usize, into: &mut Vec<u64>) {
    let before = into.len();
    frames.free.take_frames(want, into);
    into[before..].iter_mut().for_each(|frame| *frame += zone.first);
}

impl AllZones<'_> {
    /// Frees single frames.
    pub(super) fn give_each(&mut self, frames: &[u64]) {
        for frame in frames {
            let at = frame % self.each;
            self.zones[(frame / self.each) as usize].free.give(at..at + 1);
        }
    }

    /// Takes a single frame.
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

    /// Returns what `take` gets from the first zone that has it.
    fn first(&mut self, mut take: impl FnMut(&mut FreeFrames) -> Option<u64>) -> Option<u64> {
        let mut zones = (0..).step_by(self.each as usize).zip(&mut self.zones);
        zones.find_map(|(first, frames)| Some(first + take(&mut frames.free)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all frames, one by one.
    fn all(zones: &Zones) -> Vec<u64> {
        let mut all = Vec::new();
        let mut before = usize::MAX;
        while before != all.len() {
            before = all.len();
            zones.take_frames(100, &mut all);
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
    fn frames_that_one_zone_lacks_come_from_the_next_and_go_back_there() {
        // The last zone has one block.
        let zones = Zones::with(7, 2);
        assert_eq!(zones.iter().map(|(first, _)| first / BLOCK).collect::<Vec<_>>(), [0, 2, 4, 6]);
        let mut taken = all(&zones);
        assert_eq!((taken.len() as u64, zones.free()), (7 * BLOCK, 0));
        assert_eq!((zones.take(Unit::Chunk), zones.lock_all().take_frame()), (None, None));
        taken.reverse();
        zones.give_each(&mut taken);
        assert!(taken.iter().copied().eq(0..7 * BLOCK), "each frame was taken once");
        let free: Vec<_> = zones.iter().map(|(_, zone)| zone.lock().free.free() / BLOCK).collect();
        assert_eq!(free, [2, 2, 2, 1]);
        let mut blocks: Vec<_> = std::iter::from_fn(|| zones.take(Unit::Block)).collect();
        blocks.sort_unstable();
        assert!(blocks.iter().copied().eq((0..7).map(|block| block * BLOCK)), "the blocks are whole again");
        // Over the ends of three zones.
        zones.give(BLOCK..6 * BLOCK + 1);
        let free: Vec<_> = zones.iter().map(|(_, zone)| zone.lock().free.free()).collect();
        assert_eq!(free, [BLOCK, 2 * BLOCK, 2 * BLOCK, 1]);
        let mut locked = zones.lock_all();
        locked.give_each(&[0, 6 * BLOCK + 1]);
        assert_eq!(locked.take_frame(), Some(0));
        assert_eq!(locked.take(Unit::Block), Some(BLOCK));
        drop(locked);
        assert_eq!(zones.free(), 4 * BLOCK + 2);
    }

    #[test]
    fn frames_to_zero_come_from_the_zone_with_the_fewest_zeroes_unless_it_has_to_spare_its_own() {
        let zones = Zones::with(2, 1);
        let mut taken = Vec::new();
        let mut zero = |spare| {
            taken.clear();
            zones.take_to_zero(4, spare, &mut taken);
            zones.give_zeroed(&taken);
            taken.iter().map(|frame| frame / BLOCK).collect::<Vec<_>>()
        };
        assert_eq!([zero(0), zero(0), zero(0)], [[0; 4], [1; 4], [0; 4]]);
        assert_eq!(zero(BLOCK - 4), [0; 0], "no zone has so many");
        assert_eq!((zones.zeroed(), zones.free()), (12, 2 * BLOCK));
        zones.give(zones.take(Unit::Chunk).map(|chunk| chunk..chunk + 64).unwrap());
        let mut all = Vec::new();
        assert!(zones.take_zeroed(100, false, &mut all) || zones.take_zeroed(100, true, &mut all));
        while zones.take_zeroed(100, true, &mut all) && all.len() < 12 {}
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4, 5, 6, 7, BLOCK, BLOCK + 1, BLOCK + 2, BLOCK + 3]);
        assert_eq!(zones.zeroed(), 0);
    }

    #[test]
    fn zeroed_frames_are_as_free_as_others_where_all_zones_are_locked() {
        let zones = Zones::with(2, 1);
        let mut taken = Vec::new();
        for _ in 0..8 {
            taken.clear();
            zones.take_to_zero(32, 0, &mut taken);
            zones.give_zeroed(&taken);
        }
        assert_eq!((zones.zeroed(), zones.take(Unit::Block)), (256, None));
        let mut locked = zones.lock_all();
        assert_eq!([(); 3].map(|()| locked.take(Unit::Block)), [Some(0), Some(BLOCK), None]);
        drop(locked);
        assert_eq!((zones.zeroed(), zones.free()), (0, 0));
    }
}
