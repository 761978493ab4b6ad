//! The free frames of one node: a lock, and a small list for each of a few threads before it.
//!
//! Single frames go through the lists; all else, and what a list lacks or has too much of, comes from
//! [`FreeFrames`] under the lock. When that is empty the lists are emptied too, so a node is out of memory only
//! when it is.

use crate::frames::{BLOCK, FreeFrames, Unit};
use crate::prim::{Mutex, MutexGuard};
use crate::shards::Shards;
use slat::{Level, Pfn, Span};
use std::ops::Range;

/// A thread's list is filled by this many frames, and emptied by as many when it has twice that.
const BATCH: usize = 32;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct NodeFrames {
    frames: Span<Pfn>,
    /// Numbered from the node's first frame.
    free: Mutex<FreeFrames>,
    lists: Shards<Mutex<Vec<u64>>>,
}

impl NodeFrames {
    /// All of these blocks of an arena, free.
    pub(crate) fn new(blocks: Range<u64>) -> Self {
        let count = blocks.end - blocks.start;
        Self {
            // No frame lies in the first 2 MiB of the memory.
            frames: Span::sized(Pfn((blocks.start + 1) * BLOCK), count * BLOCK),
            free: Mutex::new(FreeFrames::new(count as usize)),
            lists: Shards::new(),
        }
    }

    /// The frames that are this node's, free or not.
    pub(crate) fn frames(&self) -> Span<Pfn> {
        self.frames
    }

    /// How many are free.
    pub(crate) fn free(&self) -> u64 {
        let listed: u64 = self.lists.iter().map(|list| list.lock().len() as u64).sum();
        self.free.lock().free() + listed
    }

    /// Takes a page of 4 KiB or 2 MiB; there are no others.
    pub(crate) fn take_page(&self, level: Level) -> Option<Pfn> {
        match level {
            Level::K4 => self.take_frame(),
            Level::M2 => self.take_unit(Unit::Block),
            _ => None,
        }
    }

    fn take_frame(&self) -> Option<Pfn> {
        let mut list = self.lists.mine().lock();
        if list.is_empty() {
            self.free.lock().take_frames(BATCH, &mut list);
            list.reverse(); // lowest first
        }
        let frame = list.pop().or_else(|| {
            drop(list);
            let mut one = Vec::with_capacity(1);
            self.gather().take_frames(1, &mut one);
            one.pop()
        })?;
        Some(self.frames.start + frame)
    }

    /// Takes a unit and returns its first frame.
    pub(crate) fn take_unit(&self, unit: Unit) -> Option<Pfn> {
        let first = self.free.lock().take(unit);
        first.or_else(|| self.gather().take(unit)).map(|frame| self.frames.start + frame)
    }

    /// Empties every thread's list, and returns all that is free under its lock.
    #[cold]
    fn gather(&self) -> MutexGuard<'_, FreeFrames> {
        // The lock of a list comes before the lock of all: they are never wanted the other way round.
        let listed: Vec<u64> = self.lists.iter().flat_map(|list| std::mem::take(&mut *list.lock())).collect();
        let mut free = self.free.lock();
        for frame in listed {
            free.give(frame..frame + 1);
        }
        free
    }

    /// Calls `with` with free frames, neighbours of one block together. No thread can take them until `with` returns. It is called
    /// with all that were free at the beginning, and maybe with some that became free since. The lock is let go after each block.
    pub(crate) fn with_free<E>(&self, mut with: impl FnMut(Span<Pfn>) -> Result<(), E>) -> Result<(), E> {
        let mut free = self.gather();
        let mut block = 0;
        while block < free.blocks() {
            if seeded!(TrimmedUnlocked) {
                let runs: Vec<_> = free.runs(block).collect();
                MutexGuard::unlocked(&mut free, || {
                    runs.iter().try_for_each(|run| {
                        with(Span::sized(self.frames.start + run.start, run.end - run.start))
                    })
                })?;
                block += 1;
                continue;
            }
            for run in free.runs(block) {
                with(Span::sized(self.frames.start + run.start, run.end - run.start))?;
            }
            block += 1;
            MutexGuard::bump(&mut free);
        }
        Ok(())
    }

    /// Takes frames of this node back, however they were taken.
    pub(crate) fn give(&self, frames: Span<Pfn>) {
        let (start, end) = (frames.start.0 - self.frames.start.0, frames.end.0 - self.frames.start.0);
        if end - start > 1 {
            return self.free.lock().give(start..end);
        }
        let mut list = self.lists.mine().lock();
        list.push(start);
        if list.len() == 2 * BATCH {
            let mut free = self.free.lock();
            list.drain(..BATCH).for_each(|frame| free.give(frame..frame + 1));
        }
    }
}
