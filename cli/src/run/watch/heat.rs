//! A map of guest memory in use: for each page the time of its last use, summed up in blocks.
//!
//! ```text
//! a look: region after region of guest memory, from where the last look stopped, until enough pages were looked at
//!   Accessed bits, cleared ─▶ the number of this round for each page          without an LRU
//!   the LRU's generations ──▶ the page's generation                           with one: it owns the bits
//!   leaf entries ───────────▶ mapped, large, written (D bits, or pages in the dirty log)
//! ```
//! A guest of up to 512 MiB is scanned whole at each look; a larger one takes several looks. The map takes a
//! thousandth of guest memory, from the first look on.

use crate::live::Live;
use crate::run::guest_vm::Machine;
use crate::sample::{Age, Ages, AgesBy, Heat as Cells};
use slat::{Format, Gfn, Idle, Level, PAGE_SIZE, SecondaryMmu, Span};
use slat_mm::Lru;
use slat_vcpu::guest::Layout;
use std::iter;
use std::time::{Duration, Instant};

/// Pages per block: the least that one cell shows.
const BLOCK: u64 = 64;
/// Maximum number of cells: more than a terminal is wide.
const CELLS: usize = 400;
/// Pages per look, rounded up to the end of a region: about a millisecond.
const LOOK: u64 = 128 << 10;
/// Frames per region.
const REGION: u64 = Layout::REGION / PAGE_SIZE;
/// The shortest time between two looks, for any number of watchers.
const PERIOD: Duration = Duration::from_millis(200);

/// The limits of the age classes in milliseconds, where there is no LRU. The first class is "used since the last
/// look"; the last one is everything older.
const WITHIN: [u32; 4] = [1_000, 4_000, 16_000, 64_000];
/// The number of age classes, or of generations.
const AGES: usize = WITHIN.len() + 2;
/// The warmth of a page of each class, 0 to 9.
const WARMTH: [u32; AGES] = [9, 7, 5, 3, 2, 1];

/// Mapped pages of a block by age, and how many of them are large or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Block {
    ages: [u32; AGES],
    large: u32,
    written: u32,
}

/// The map.
pub struct Heat {
    began: Instant,
    /// The time of the last look, and of the one before it, in milliseconds.
    looked: Option<(Instant, u32)>,
    /// The look at which each page was last in use, counted from 1; 0 for never.
    used: Vec<u32>,
    blocks: Vec<Block>,
    /// The region with which the next look begins.
    hand: u64,
    by: AgesBy,
    /// Number and age of each generation, youngest first.
    generations: Vec<(u64, u64)>,
}

impl Heat {
    /// An empty map.
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            looked: None,
            used: Vec::new(),
            blocks: Vec::new(),
            hand: 0,
            by: AgesBy::Unknown,
            generations: Vec::new(),
        }
    }

    /// Looks, unless the last look is too recent.
    pub fn look<F: Format>(&mut self, idle: &mut Idle, machine: &Machine<F>, live: &Live) {
        let last = self.looked.map_or(self.began, |(last, _)| last);
        if self.looked.is_some() && last.elapsed() < PERIOD {
            return;
        }
        self.looked = Some((Instant::now(), last.elapsed().as_millis() as u32));
        let frames = machine.hvas().len() / PAGE_SIZE;
        self.used.resize(frames as usize, 0);
        self.blocks.resize((frames / BLOCK) as usize, Block::default());
        self.by = match machine.space.lru() {
            Some(_) => AgesBy::Generation,
            None if F::HARDWARE_AD => AgesBy::Accessed,
            // Clearing Accessed bits here would cost the guest a fault per page.
            None => AgesBy::Unknown,
        };
        self.generations = machine.space.lru().map(generations).unwrap_or_default();
        let regions = frames / REGION;
        let (mut looked, mut done) = (0, 0);
        while looked < LOOK && done < regions {
            self.hand %= regions;
            looked += self.look_at(idle, machine, live, Gfn(self.hand * REGION));
            self.hand += 1;
            done += 1;
        }
        if self.by == AgesBy::Accessed && done > 0 {
            // The TLBs must drop the pages: a processor sets no Accessed bit on a TLB hit.
            machine.vm.forget(idle, machine.hvas());
        }
    }

    /// Looks at the region that begins at `first`. Returns the number of mapped pages.
    fn look_at<F: Format>(&mut self, idle: &mut Idle, machine: &Machine<F>, live: &Live, first: Gfn) -> u64 {
        let gfns = Span::sized(first, REGION);
        let now = self.began.elapsed().as_millis() as u32 + 1;
        let mut ages = [0u8; REGION as usize];
        match machine.space.lru() {
            Some(lru) => {
                let hvas = machine.hvas();
                let hvas = Span::sized(hvas.start + first.0 * PAGE_SIZE, Layout::REGION);
                lru.for_each_page(hvas, |hva, seq| {
                    let age = self.generations.iter().position(|(of, _)| *of <= seq);
                    ages[((hva.0 - hvas.start.0) / PAGE_SIZE) as usize] =
                        age.unwrap_or(AGES - 1).min(AGES - 1) as u8;
                });
            }
            None if self.by == AgesBy::Accessed => {
                machine.vm.memory().lockless(idle).age(gfns, |seen| {
                    seen.pages().for_each(|page| self.used[page.0 as usize] = now);
                });
                let used = &self.used[first.0 as usize..];
                ages.iter_mut().zip(used).for_each(|(age, used)| *age = age_of(now, *used) as u8);
            }
            None => {}
        }
        let range = (first.0 / BLOCK) as usize..((first.0 + REGION) / BLOCK) as usize;
        let blocks = &mut self.blocks[range];
        blocks.fill(Block::default());
        let mut mapped = 0;
        machine.vm.memory().lockless(idle).for_each(gfns, |mapping| {
            let (leaf, part) = (mapping.leaf, mapping.gfns.clamp(&gfns));
            for page in part.start.0 - first.0..part.end.0 - first.0 {
                let block = &mut blocks[(page / BLOCK) as usize];
                // The LRU may not know it yet; its next pass will find the page in use.
                let young = self.by == AgesBy::Generation && leaf.accessed;
                block.ages[if young { 0 } else { usize::from(ages[page as usize]) }] += 1;
                block.large += u32::from(mapping.level > Level::K4);
                block.written += u32::from(leaf.dirty && !machine.logs);
            }
            mapped += part.len();
        });
        if machine.logs {
            for (block, at) in blocks.iter_mut().zip((first.0..).step_by(BLOCK as usize)) {
                // A page may have been unmapped since it was written.
                block.written = live.take_written(Gfn(at)).count_ones().min(block.mapped());
            }
        }
        mapped
    }

    /// Pages with a Dirty bit at the last look, where no dirty log is on.
    pub fn dirty(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.written)).sum()
    }

    /// Pages by age, youngest first.
    pub fn ages(&self) -> Ages {
        let pages = |age: usize| self.blocks.iter().map(|block| u64::from(block.ages[age])).sum();
        let of = match self.by {
            AgesBy::Unknown => Vec::new(),
            AgesBy::Generation => {
                let age =
                    |(at, &(seq, ms))| Age { generation: Some(seq), within_ms: Some(ms), pages: pages(at) };
                self.generations.iter().take(AGES).enumerate().map(age).collect()
            }
            AgesBy::Accessed => {
                let last = self.looked.map_or(0, |(_, since)| since);
                let within = iter::once(last).chain(WITHIN).map(|ms| Some(u64::from(ms))).chain([None]);
                let age = |(at, within_ms)| Age { generation: None, within_ms, pages: pages(at) };
                within.enumerate().map(age).collect()
            }
        };
        Ages { by: self.by, of }
    }

    /// The state of each part of guest memory.
    pub fn cells(&self) -> Cells {
        let blocks = self.blocks.len().div_ceil(CELLS).next_power_of_two();
        let cells: Vec<Block> = self
            .blocks
            .chunks(blocks)
            .map(|blocks| blocks.iter().fold(Block::default(), Block::with))
            .collect();
        let digits = |of: fn(&Block) -> Digit| cells.iter().map(|cell| char_of(of(cell))).collect();
        Cells {
            frames: self.used.len() as u64,
            frames_per_cell: blocks as u64 * BLOCK,
            used: if self.by == AgesBy::Unknown { String::new() } else { digits(Block::used) },
            written: digits(Block::share_written),
            large: digits(Block::share_large),
        }
    }
}

/// Up to 9 in a block with mapped pages.
type Digit = Option<u32>;

fn char_of(digit: Digit) -> char {
    digit.and_then(|digit| char::from_digit(digit, 10)).unwrap_or(Cells::NOTHING)
}

impl Block {
    fn with(self, other: &Self) -> Self {
        Self {
            ages: std::array::from_fn(|age| self.ages[age] + other.ages[age]),
            large: self.large + other.large,
            written: self.written + other.written,
        }
    }

    fn mapped(&self) -> u32 {
        self.ages.iter().sum()
    }

    /// The mean warmth of the block's pages.
    fn used(&self) -> Digit {
        let warmth: u32 = self.ages.iter().zip(WARMTH).map(|(pages, warmth)| pages * warmth).sum();
        (2 * warmth + self.mapped()).checked_div(2 * self.mapped())
    }

    /// 0 for no page; at least 1 otherwise.
    fn share_written(&self) -> Digit {
        (9 * self.written).checked_next_multiple_of(self.mapped())?.checked_div(self.mapped())
    }

    fn share_large(&self) -> Digit {
        (9 * self.large).checked_div(self.mapped())
    }
}

fn age_of(now: u32, used: u32) -> usize {
    match now - used {
        _ if used == 0 => AGES - 1,
        0 => 0,
        ago => 1 + WITHIN.iter().take_while(|within| ago > **within).count(),
    }
}

/// Number and age in milliseconds of each generation, youngest first. All nodes have the same youngest one; the node
/// with most generations is shown.
fn generations(lru: &Lru) -> Vec<(u64, u64)> {
    let all = lru.generations().into_iter().map(|node| node.generations).max_by_key(Vec::len);
    let of = |found: &slat_mm::Generation| (found.seq, found.age.as_millis() as u64);
    all.unwrap_or_default().iter().rev().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_apart() {
        let now = 100_000;
        let ages = [now, now - 1, now - 1_000, now - 1_001, now - 16_000, now - 64_000, now - 64_001, 1, 0];
        assert_eq!(ages.map(|used| age_of(now, used)), [0, 1, 1, 2, 3, 4, 5, 5, 5]);
        assert_eq!(age_of(1, 1), 0, "the first look");
    }

    #[test]
    fn a_block_is_as_warm_as_its_pages_all_in_all() {
        let block =
            |young, old, written| Block { ages: [young, 0, 0, 0, 0, old], written, ..Block::default() };
        for (block, used, written) in [
            (block(64, 0, 64), Some(9), Some(9)),
            (block(0, 64, 1), Some(1), Some(1)),
            (block(32, 32, 0), Some(5), Some(0)),
            (block(1, 0, 0), Some(9), Some(0)),
            (block(0, 0, 0), None, None),
        ] {
            assert_eq!((block.used(), block.share_written()), (used, written), "{block:?}");
        }
    }

    #[test]
    fn cells_are_no_more_than_can_be_shown_and_cover_everything() {
        let mut heat = Heat::new();
        heat.by = AgesBy::Accessed;
        for regions in [0, 1, 25, 1000] {
            heat.used.resize((regions * REGION) as usize, 0);
            heat.blocks.resize((regions * REGION / BLOCK) as usize, Block::default());
            let cells = heat.cells();
            assert_eq!(cells.frames, regions * REGION);
            assert_eq!(cells.used.len() as u64, cells.frames.div_ceil(cells.frames_per_cell));
            assert!(cells.used.len() <= CELLS && cells.used.chars().all(|cell| cell == Cells::NOTHING));
        }
        heat.blocks[0].ages[0] = 5;
        assert!(heat.cells().used.starts_with("9."));
    }
}
