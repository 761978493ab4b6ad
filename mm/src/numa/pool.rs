//! The free frames of one node: zones, and a small list for each of a few threads before them.
//!
//! ```text
//!                     a batch              a batch
//! a thread with     ◀─────────▶  zones,  ◀─────────▶  a thread's
//! nothing else to do   zeroed    a lock               own lists
//!                      ahead     for each
//! ```
//! Single frames go through the lists; all else, and what a list lacks or has too much of, comes from the
//! [zones](Zones) under their locks. When those are empty the lists are emptied too, so a node is out of memory only
//! when it is. A thread that needs a page of zeroes takes one that was [zeroed ahead](crate::zero), if there is one.
//!
//! So threads that take and give back single frames share a line once in a batch, with a few others. [`ListStats`] counts.

use super::zones::{AllZones, Zones};
use crate::frames::{BLOCK, Unit};
use crate::prim::{Mutex, MutexGuard};
use crate::shards::Shards;
use slat::{Level, Pfn, Span};
use std::ops::Range;

/// A thread's list is filled by this many frames, and emptied by as many when it has twice that.
const BATCH: usize = 32;

/// A zone with fewer free frames than this, or as many, has none zeroed ahead.
const SPARE: u64 = 4 * BATCH as u64;

/// What a thread has at hand.
#[derive(Debug, Default)]
struct List {
    frames: Vec<u64>,
    zeroed: Vec<u64>,
    done: ListStats,
}

/// What became of requests for single frames, and of such frames that were given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ListStats {
    /// Frames that were taken.
    pub taken: u64,
    /// Of these, those that had been zeroed ahead.
    pub zeroed: u64,
    /// Batches: times that a lock was taken that threads share.
    pub batches: u64,
    /// Times that a thread waited for a list, which another one used.
    pub waits: u64,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct NodeFrames {
    frames: Span<Pfn>,
    zones: Zones,
    lists: Shards<Mutex<List>>,
}

impl NodeFrames {
    /// All of these blocks of an arena, free.
    pub(crate) fn new(blocks: Range<u64>) -> Self {
        let count = blocks.end - blocks.start;
        Self {
            // No frame lies in the first 2 MiB of the memory.
            frames: Span::sized(Pfn((blocks.start + 1) * BLOCK), count * BLOCK),
            zones: Zones::new(count),
            lists: Shards::new(),
        }
    }

    /// The frames that are this node's, free or not.
    pub(crate) fn frames(&self) -> Span<Pfn> {
        self.frames
    }

    /// How many are free.
    pub(crate) fn free(&self) -> u64 {
        let len = |list: &Mutex<List>| {
            let list = list.lock();
            (list.frames.len() + list.zeroed.len()) as u64
        };
        let listed: u64 = self.lists.iter().map(len).sum();
        self.zones.free() + listed
    }

    /// What its lists have done.
    pub(crate) fn list_stats(&self) -> ListStats {
        self.lists.iter().fold(ListStats::default(), |sum, list| {
            let done = list.lock().done;
            ListStats {
                taken: sum.taken + done.taken,
                zeroed: sum.zeroed + done.zeroed,
                batches: sum.batches + done.batches,
                waits: sum.waits + done.waits,
            }
        })
    }

    /// Takes a page of 4 KiB or 2 MiB; there are no others. One that is to hold zeroes may hold them already.
    pub(crate) fn take_page(&self, level: Level, zero: bool) -> Option<Pfn> {
        match level {
            Level::K4 => self.take_frame(zero),
            Level::M2 => self.take_unit(Unit::Block),
            _ => None,
        }
    }

    /// This thread's list.
    fn list(&self) -> MutexGuard<'_, List> {
        let list = self.lists.mine();
        list.try_lock().unwrap_or_else(|| {
            let mut list = list.lock();
            list.done.waits += 1;
            list
        })
    }

    fn take_frame(&self, zero: bool) -> Option<Pfn> {
        let mut list = self.list();
        list.done.taken += 1;
        if zero && list.zeroed.is_empty() {
            // Where the list has frames a look at other zones would be one for each fault.
            let elsewhere = list.frames.is_empty();
            list.done.batches += u64::from(self.zones.take_zeroed(BATCH, elsewhere, &mut list.zeroed));
        }
        if zero && let Some(frame) = list.zeroed.pop() {
            list.done.zeroed += 1;
            return Some(self.frames.start + frame);
        }
        if list.frames.is_empty() {
            list.done.batches += 1;
            self.zones.take_frames(BATCH, &mut list.frames);
            list.frames.reverse(); // lowest first
        }
        let frame = list.frames.pop().or_else(|| {
            drop(list);
            self.gather().take_frame()
        })?;
        Some(self.frames.start + frame)
    }

    /// Takes a unit and returns its first frame.
    pub(crate) fn take_unit(&self, unit: Unit) -> Option<Pfn> {
        let first = self.zones.take(unit);
        first.or_else(|| self.gather().take(unit)).map(|frame| self.frames.start + frame)
    }

    /// Empties every thread's lists, and returns all that is free, locked.
    #[cold]
    fn gather(&self) -> AllZones<'_> {
        // The lock of a list comes before those of the zones: they are never wanted the other way round.
        let mut listed: Vec<u64> = Vec::new();
        for list in self.lists.iter() {
            let mut list = list.lock();
            listed.append(&mut list.frames);
            listed.append(&mut list.zeroed);
        }
        let mut all = self.zones.lock_all();
        all.give_each(&listed);
        all
    }

    /// Calls `with` with free frames, neighbours of one block together. No thread can take them until `with` returns. It is called
    /// with all that were free at the beginning, and maybe with some that became free since. The lock is let go after each block.
    pub(crate) fn with_free<E>(&self, mut with: impl FnMut(Span<Pfn>) -> Result<(), E>) -> Result<(), E> {
        drop(self.gather());
        for (first, zone) in self.zones.iter() {
            let span =
                |run: &Range<u64>| Span::sized(self.frames.start + first + run.start, run.end - run.start);
            let mut zone = zone.lock();
            let mut block = 0;
            while block < zone.free.blocks() {
                if seeded!(TrimmedUnlocked) {
                    let runs: Vec<_> = zone.free.runs(block).collect();
                    MutexGuard::unlocked(&mut zone, || {
                        // Threads that were stopped meanwhile use some of them.
                        self.wait_until_taken(40);
                        runs.iter().try_for_each(|run| with(span(run)))
                    })?;
                    block += 1;
                    continue;
                }
                for run in zone.free.runs(block) {
                    with(span(&run))?;
                }
                block += 1;
                MutexGuard::bump(&mut zone);
            }
        }
        Ok(())
    }

    /// How many frames hold zeroes ahead of need, but for those that threads have at hand.
    pub(crate) fn zeroed(&self) -> u64 {
        self.zones.zeroed()
    }

    /// Takes up to a batch of frames, which `zero` makes hold zeroes, and offers them to threads that want such; how many. No lock
    /// is held meanwhile.
    pub(crate) fn zero_ahead(&self, most: u64, zero: impl Fn(Pfn)) -> u64 {
        let mut frames = Vec::new();
        // The thread may be kept from its processor: where memory is short others need these frames.
        self.zones.take_to_zero(BATCH.min(most as usize), SPARE, &mut frames);
        if seeded!(ZeroedLate) {
            self.zones.give_zeroed(frames.iter().copied());
            self.wait_until_taken(frames.len() as u64);
        }
        for &frame in &frames {
            zero(self.frames.start + frame);
        }
        if !seeded!(ZeroedLate) {
            self.zones.give_zeroed(frames.iter().copied());
        }
        frames.len() as u64
    }

    /// Waits until threads have taken one frame more than so many, or do not: those before it are in use by then.
    #[cold]
    fn wait_until_taken(&self, frames: u64) {
        let until = self.list_stats().taken + frames;
        let waits = (0..2000).take_while(|_| self.list_stats().taken <= until);
        waits.for_each(|_| std::thread::sleep(std::time::Duration::from_millis(1)));
    }

    /// Takes frames of this node back, however they were taken.
    pub(crate) fn give(&self, frames: Span<Pfn>) {
        let (start, end) = (frames.start.0 - self.frames.start.0, frames.end.0 - self.frames.start.0);
        if end - start > 1 {
            return self.zones.give(start..end);
        }
        let mut list = self.list();
        list.frames.push(start);
        if list.frames.len() == 2 * BATCH {
            list.done.batches += 1;
            self.zones.give_each(&mut list.frames[..BATCH]);
            list.frames.drain(..BATCH);
        }
    }
}
