//! The free frames of one node: zones, and in front of them a small list per shard of threads.
//!
//! ```text
//!                     a batch              a batch
//! the zeroer's      ◀─────────▶  zones,  ◀─────────▶  a thread's
//! thread               zeroed    a lock               own lists
//!                      ahead     for each
//! ```
//! Single frames go through the lists. Other requests, and batches that refill or drain a list, use the
//! [zones](Zones) under their locks. When the zones are empty the lists are emptied too, so a node reports no
//! memory only when no frame is free. A request for a zero page takes one that was [zeroed ahead](crate::zero),
//! if there is one.
//!
//! So threads that take and free single frames touch a shared cache line once per batch, with few other
//! threads. [`ListStats`] counts this.

use super::zones::{AllZones, Zones};
use crate::frames::{BLOCK, Unit};
use crate::prim::{Mutex, MutexGuard};
use crate::shards::Shards;
use slat::{Level, Pfn, Span};
use std::ops::Range;

/// Number of frames that refill a list, or leave it when it holds twice as many.
const BATCH: usize = 32;

/// A zone with at most this many free frames has none zeroed ahead.
const SPARE: u64 = 4 * BATCH as u64;

/// The frames in a thread's list.
#[derive(Debug, Default)]
struct List {
    frames: Vec<u64>,
    zeroed: Vec<u64>,
    done: ListStats,
}

/// Counts of single frames taken and freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ListStats {
    /// Frames taken.
    pub taken: u64,
    /// Frames among these that were zeroed ahead.
    pub zeroed: u64,
    /// Batches: times that a shared lock was taken.
    pub batches: u64,
    /// Times that a thread waited for a list that another thread was using.
    pub waits: u64,
}

/// The free frames of one node.
#[derive(Debug)]
pub(crate) struct NodeFrames {
    frames: Span<Pfn>,
    zones: Zones,
    lists: Shards<Mutex<List>>,
}

impl NodeFrames {
    /// Creates a node of these blocks of an arena, all free.
    pub(crate) fn new(blocks: Range<u64>) -> Self {
        let count = blocks.end - blocks.start;
        Self {
            // No frame is in the first 2 MiB of the memory.
            frames: Span::sized(Pfn((blocks.start + 1) * BLOCK), count * BLOCK),
            zones: Zones::new(count),
            lists: Shards::new(),
        }
    }

    /// Returns all frames of the node, free or not.
    pub(crate) fn frames(&self) -> Span<Pfn> {
        self.frames
    }

    /// Returns the number of free frames.
    pub(crate) fn free(&self) -> u64 {
        let len = |list: &Mutex<List>| {
            let list = list.lock();
            (list.frames.len() + list.zeroed.len()) as u64
        };
        let listed: u64 = self.lists.iter().map(len).sum();
        self.zones.free() + listed
    }

    /// Returns the counts of its lists.
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

    /// Takes a page of 4 KiB or 2 MiB; other sizes are not available. With `zero`, prefers a page zeroed ahead.
    pub(crate) fn take_page(&self, level: Level, zero: bool) -> Option<Pfn> {
        match level {
            Level::K4 => self.take_frame(zero),
            Level::M2 => self.take_unit(Unit::Block),
            _ => None,
        }
    }

    /// Locks this thread's list.
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
            // If the list has other frames, asking other zones would cost every fault a search.
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

    /// Empties all lists, and returns all free frames, locked.
    #[cold]
    fn gather(&self) -> AllZones<'_> {
        // Lock order: lists before zones.
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

    /// Calls `with` for runs of free frames of one block, which no thread can take until `with` returns. Covers
    /// all frames free at the start, and maybe some freed since. Releases the lock between blocks.
    pub(crate) fn with_free<E>(&self, mut with: impl FnMut(Span<Pfn>) -> Result<(), E>) -> Result<(), E> {
        drop(self.gather());
        for (first, zone) in self.zones.iter() {
            let mut zone = zone.lock();
            for block in 0..zone.free.blocks() {
                for run in zone.free.runs(block) {
                    with(Span::sized(self.frames.start + first + run.start, run.end - run.start))?;
                }
                MutexGuard::bump(&mut zone);
            }
        }
        Ok(())
    }

    /// Returns the number of frames zeroed ahead, without those in threads' lists.
    pub(crate) fn zeroed(&self) -> u64 {
        self.zones.zeroed()
    }

    /// Takes up to a batch of frames, zeroes them by `zero`, and offers them as zeroed; returns how many. Holds
    /// no lock meanwhile.
    pub(crate) fn zero_ahead(&self, most: u64, zero: impl Fn(Pfn)) -> u64 {
        let mut frames = Vec::new();
        // A small batch: this thread may be preempted, and others may need these frames.
        self.zones.take_to_zero(BATCH.min(most as usize), SPARE, &mut frames);
        for &frame in &frames {
            zero(self.frames.start + frame);
        }
        self.zones.give_zeroed(&frames);
        frames.len() as u64
    }

    /// Frees frames of this node, in any grouping.
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
