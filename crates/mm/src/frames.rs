//! Free frames: blocks of 2 MiB, and a bit for each frame of partly used blocks.
//!
//! ```text
//! block = 8 words of 64 bits, a bit for each free frame of 4 KiB
//!         a bit   one frame
//!         a word  a chunk of table pages (256 KiB)       found by one comparison
//!         all     a huge frame (2 MiB)
//! ```
//! There is no explicit split or merge: a block's bits say what it can give, and three ordered sets list which
//! blocks can give what. Each set is searched lowest first, so use collects at the bottom of the arena and
//! blocks at the top become whole again. Small requests go to partly used blocks, and in them to partly used
//! words.

use std::collections::BTreeSet;
use std::ops::Range;

/// Number of frames in a block.
pub(crate) const BLOCK: u64 = 512;
const WORD: u64 = u64::BITS as u64;
const WHOLE: [u64; 8] = [u64::MAX; 8];

/// A size to allocate, aligned to itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    /// 64 frames: the engine's unit of table memory.
    Chunk,
    /// 512 frames: a huge page.
    Block,
}

/// The free frames of an arena, numbered from zero.
#[derive(Debug)]
pub(crate) struct FreeFrames {
    /// Blocks used so far; further blocks are added on demand.
    blocks: Vec<[u64; 8]>,
    /// Number of frames in all blocks. The last block may be shorter.
    frames: u64,
    whole: BTreeSet<usize>,
    broken: BTreeSet<usize>,
    /// Partly used blocks with a whole word.
    chunky: BTreeSet<usize>,
    free: u64,
}

impl FreeFrames {
    /// Starts with `limit` free blocks. Memory is allocated only for blocks that have been used.
    pub(crate) fn new(limit: usize) -> Self {
        Self::of(limit as u64 * BLOCK)
    }

    /// Starts with `frames` free frames.
    pub(crate) fn of(frames: u64) -> Self {
        let none = BTreeSet::new;
        Self { blocks: Vec::new(), frames, whole: none(), broken: none(), chunky: none(), free: frames }
    }

    /// Returns the number of free frames.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Takes `want` single frames, or as many as are free.
    pub(crate) fn take_frames(&mut self, want: usize, into: &mut Vec<u64>) {
        let full = into.len() + want;
        while into.len() < full {
            let Some(block) = self.broken.first().copied().or_else(|| self.whole_block()) else {
                // The last block may be incomplete from the start.
                if self.broken.is_empty() {
                    return;
                }
                continue;
            };
            while into.len() < full {
                let words = &mut self.blocks[block];
                let broken = words.iter().position(|&word| word != 0 && word != u64::MAX);
                let Some(index) = broken.or_else(|| words.iter().position(|&word| word != 0)) else { break };
                let bit = u64::from(words[index].trailing_zeros());
                words[index] &= words[index] - 1;
                into.push(block as u64 * BLOCK + index as u64 * WORD + bit);
                self.free -= 1;
            }
            self.sort(block);
        }
    }

    /// Takes a unit and returns its first frame.
    pub(crate) fn take(&mut self, unit: Unit) -> Option<u64> {
        let block = match unit {
            Unit::Chunk => self.chunky.first().copied().or_else(|| self.whole_block())?,
            Unit::Block => self.whole_block()?,
        };
        let words = &mut self.blocks[block];
        let taken = match unit {
            Unit::Chunk => words.iter().position(|&word| word == u64::MAX).map(|index| index..index + 1)?,
            Unit::Block => 0..words.len(),
        };
        words[taken.clone()].fill(0);
        self.free -= taken.len() as u64 * WORD;
        self.sort(block);
        Some(block as u64 * BLOCK + taken.start as u64 * WORD)
    }

    /// Frees frames, in any grouping.
    pub(crate) fn give(&mut self, frames: Range<u64>) {
        let mut at = frames.start;
        while at < frames.end {
            let block = (at / BLOCK) as usize;
            let end = frames.end.min((block as u64 + 1) * BLOCK);
            for frame in at..end {
                let word = &mut self.blocks[block][(frame % BLOCK / WORD) as usize];
                let bit = 1 << (frame % WORD);
                debug_assert!(*word & bit == 0, "frame {frame} is free already");
                *word |= bit;
            }
            self.free += end - at;
            self.sort(block);
            at = end;
        }
    }

    /// Returns the number of blocks that have been used.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the free frames of one block as runs.
    pub(crate) fn runs(&self, block: usize) -> impl Iterator<Item = Range<u64>> {
        let words = self.blocks.get(block).copied().unwrap_or_default();
        let is_free = move |frame: &u64| words[(frame / WORD) as usize] >> (frame % WORD) & 1 != 0;
        let first = block as u64 * BLOCK;
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = (at..BLOCK).find(is_free)?;
            let end = (start..BLOCK).find(|frame| !is_free(frame)).unwrap_or(BLOCK);
            at = end;
            Some(first + start..first + end)
        })
    }

    /// Returns the lowest whole block; adds a new block if there is none.
    fn whole_block(&mut self) -> Option<usize> {
        let number = self.blocks.len();
        let left = self.frames.saturating_sub(number as u64 * BLOCK);
        if self.whole.is_empty() && left > 0 {
            let bits = |word: u64| match left.saturating_sub(word * WORD) {
                left @ 0..WORD => (1 << left) - 1,
                _ => u64::MAX,
            };
            self.blocks.push(std::array::from_fn(|word| bits(word as u64)));
            self.sort(number);
        }
        self.whole.first().copied()
    }

    /// Updates the sets from the bits of a block.
    fn sort(&mut self, block: usize) {
        let words = self.blocks[block];
        let whole = words == WHOLE;
        for (set, belongs) in [
            (&mut self.whole, whole),
            (&mut self.broken, !whole && words != [0; 8]),
            (&mut self.chunky, !whole && words.contains(&u64::MAX)),
        ] {
            if belongs {
                set.insert(block)
            } else {
                set.remove(&block)
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(free: &mut FreeFrames) -> Option<u64> {
        let mut got = Vec::new();
        free.take_frames(1, &mut got);
        got.pop()
    }

    #[test]
    fn small_requests_spare_whole_blocks_and_whole_words() {
        let mut free = FreeFrames::new(3);
        assert_eq!(free.take(Unit::Block), Some(0));
        assert_eq!(one(&mut free), Some(512));
        assert_eq!(free.take(Unit::Chunk), Some(512 + 64), "skips the partly used word");
        assert_eq!(one(&mut free), Some(513), "uses that word first");
        assert_eq!(free.take(Unit::Block), Some(1024));
        assert_eq!(free.take(Unit::Block), None);
        free.give(512..514);
        free.give(576..640);
        assert_eq!(free.take(Unit::Block), Some(512), "whole again");
        assert_eq!((one(&mut free), free.free()), (None, 0));
    }

    #[test]
    fn free_frames_of_a_block_are_listed_as_runs() {
        let mut free = FreeFrames::new(2);
        assert_eq!(free.runs(0).count(), 0, "never used");
        let mut held = Vec::new();
        free.take_frames(70, &mut held);
        free.give(3..5);
        free.give(64..65);
        assert!(free.runs(0).eq([3..5, 64..65, 70..512]));
        free.give(0..3);
        free.give(5..64);
        free.give(65..70);
        assert_eq!(free.runs(0).collect::<Vec<_>>(), vec![Range { start: 0, end: 512 }]);
        assert_eq!((free.blocks(), free.runs(1).count()), (1, 0));
    }

    proptest! {
        /// After any sequence of takes and gives, no frame is given out twice, and in the end all blocks are
        /// whole.
        #[test]
        fn no_frame_is_given_out_twice(steps in prop::collection::vec((0u8..4, any::<prop::sample::Index>()), 1..300)) {
            let mut free = FreeFrames::new(4);
            let mut held: Vec<Range<u64>> = Vec::new();
            for (what, which) in steps {
                let taken = match what {
                    0 => one(&mut free).map(|frame| frame..frame + 1),
                    1 => free.take(Unit::Chunk).map(|frame| frame..frame + 64),
                    2 => free.take(Unit::Block).map(|frame| frame..frame + 512),
                    _ if held.is_empty() => None,
                    _ => {
                        free.give(held.swap_remove(which.index(held.len())));
                        None
                    }
                };
                if let Some(taken) = taken {
                    prop_assert_eq!(taken.start % (taken.end - taken.start), 0);
                    prop_assert!(held.iter().all(|other| other.end <= taken.start || taken.end <= other.start));
                    held.push(taken);
                }
                let out: u64 = held.iter().map(|frames| frames.end - frames.start).sum();
                prop_assert_eq!(free.free() + out, 4 * BLOCK);
            }
            for frames in held {
                free.give(frames);
            }
            for _ in 0..4 {
                prop_assert!(free.take(Unit::Block).is_some());
            }
        }
    }
}
