//! How old guest memory is: rows of guest frames, a column for each aging pass.
//!
//! A page's age is the number of passes since one found it in use: the LRU's generations say which pages those are, and
//! here it is remembered, for longer than there are generations.

use crate::threads::traces::Trace;
use serde::{Deserialize, Serialize};
use slat::{Hva, Level, PAGE_SIZE};
use slat_mm::AddressSpace;
use std::collections::BTreeSet;

/// Rows at most.
const ROWS: usize = 96;

/// See the module's header.
#[derive(Debug, Serialize, Deserialize)]
pub struct Heat {
    /// Pages in each row, but for the last one.
    pub pages_per_row: usize,
    /// For each row its first guest frame.
    pub first: Vec<u64>,
    /// For each column, for each row: the mean age of the pages that are in memory, in passes; none where fewer than
    /// half are.
    pub ages: Vec<Vec<Option<f32>>>,
}

/// Ages, as they become known.
pub struct Ages<'f> {
    frames: &'f [u64],
    /// For each frame: the last pass that found it in use; none while it is not in memory.
    used: Vec<Option<usize>>,
    pages_per_row: usize,
    columns: Vec<Vec<Option<f32>>>,
}

impl<'f> Ages<'f> {
    pub fn new(frames: &'f [u64]) -> Self {
        let pages_per_row = frames.len().div_ceil(ROWS).max(1);
        Self { frames, used: vec![None; frames.len()], pages_per_row, columns: Vec::new() }
    }

    /// A pass was made: asks about each page.
    pub fn look(&mut self, space: &AddressSpace, base: Hva) {
        let now = self.columns.len();
        let youngest = space.lru().and_then(|lru| lru.generations().first()?.generations.last().copied());
        let youngest = youngest.map_or(0, |generation| generation.seq);
        for (frame, used) in self.frames.iter().zip(&mut self.used) {
            // Pages in use are of the last generation but one when the pass ends.
            *used = space.generation(base + frame * PAGE_SIZE).map(|seq| match used {
                Some(used) if seq + 1 < youngest => *used,
                _ => now,
            });
        }
        let mean = |row: &[Option<usize>]| {
            let ages: Vec<f32> = row.iter().flatten().map(|&used| (now - used) as f32).collect();
            let mean = ages.iter().sum::<f32>() / ages.len().max(1) as f32;
            (2 * ages.len() >= row.len()).then_some((mean * 10.0).round() / 10.0)
        };
        self.columns.push(self.used.chunks(self.pages_per_row).map(mean).collect());
    }

    /// Pages in memory.
    pub fn resident(&self) -> u64 {
        self.used.iter().flatten().count() as u64
    }

    pub fn heat(self) -> Heat {
        let first = self.frames.iter().step_by(self.pages_per_row).copied().collect();
        Heat { pages_per_row: self.pages_per_row, first, ages: self.columns }
    }
}

/// The guest frames that a trace touches, in order.
pub fn frames(trace: &Trace) -> Vec<u64> {
    let frames: BTreeSet<u64> = trace.touched().map(|(_, gfn)| gfn.0).collect();
    frames.into_iter().collect()
}

/// Leaf tables that map these frames.
pub fn tables(frames: &[u64]) -> u64 {
    frames.chunk_by(|a, b| a / Level::M2.pages() == b / Level::M2.pages()).count() as u64
}
