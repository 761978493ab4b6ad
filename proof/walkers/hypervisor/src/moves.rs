//! Moves and takes pages while the guest runs.
//!
//! ```text
//! turn   1 … 8   take pages of a block of 2 MiB, move pages of 4 KiB   they come back one by one, elsewhere
//!        8       gather a block that was taken from some turns ago     into 2 MiB that are free: moved as a whole
//! ```
//! Each follows the contract of [`Host`](slat::Host): the invalidation begins and is settled, contents are copied and
//! entries changed, and the invalidation ends. Pages are taken one by one ([`Reason::Reclaim`]); a block moves at once
//! ([`Reason::Migrate`]).

use crate::error::Error;
use crate::primary_mmu::{Behind, Frames, Machine, block_of, clear, copy, is_zero};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;
use slat::{
    Event, Format, Gfn, Hva, Idle, Level, PAGE_SHIFT, PAGE_SIZE, Pages, Pfn, Reason, SecondaryMmu, Span, Vm,
};

/// Number of turns until a block is gathered.
const ROUND: u64 = 8;
/// Most blocks with taken pages that are not gathered yet.
const SCATTERED: usize = 4;
/// Number of pages taken in a turn, and of pages moved.
const TAKEN: u64 = 12;
const SHIFTED: u64 = 4;
const PAGES: u64 = Level::M2.pages();

/// The state of the moves, under a lock.
#[derive(Debug)]
pub struct Mover {
    /// A seeded mistake: moves of blocks without an invalidation.
    untold: bool,
    turns: u64,
    /// The block from which pages are taken, and those to gather.
    scattered: VecDeque<Hva>,
    /// The next block, if no fault names one.
    hand: u64,
    dice: u64,
    /// First frame of each block's home. Pages that were brought back or moved are elsewhere.
    homes: Vec<Pfn>,
    /// Number of blocks moved, of pages moved, of pages taken, and of taken pages of zeroes.
    pub counts: [u64; 4],
}

impl Mover {
    /// Makes the state without moves.
    pub fn new(host: &Machine, untold: bool) -> Self {
        let homes = (0..host.layout.ram().end.0).step_by(PAGES as usize).map(Pfn).collect();
        let dice = 0x9e37_79b9_7f4a_7c15;
        Self { untold, turns: 0, scattered: VecDeque::new(), hand: 0, dice, homes, counts: [0; 4] }
    }

    /// Does the work of one interrupt.
    pub fn turn<F: Format>(&mut self, vm: &Vm<F, Machine>, idle: &mut Idle) -> Result<(), Error> {
        let mut frames = vm.host().frames.lock();
        if self.turns.is_multiple_of(ROUND) {
            let block = self.next(vm.host());
            self.scattered.push_back(block);
            if self.scattered.len() > SCATTERED {
                // The first two megabytes have holes, and are never a block.
                let block = self.scattered.pop_front().unwrap_or_default();
                if vm.host().layout.is_ram(block_of(block)) {
                    self.gather(vm, idle, &mut frames, block);
                }
            }
        }
        self.turns += 1;
        if let Some(&block) = self.scattered.back() {
            self.take(vm, idle, &mut frames, block)?;
            self.shift(vm, idle, &mut frames, block);
        }
        frames.verdict()
    }

    /// After the guest's end: checks all free frames once more.
    pub fn finish(host: &Machine) -> Result<(), Error> {
        let mut frames = host.frames.lock();
        let in_blocks = frames.blocks.iter().flat_map(|first| (first.0..first.0 + PAGES).map(Pfn));
        let free: Vec<Pfn> = in_blocks.chain(frames.small.iter().copied()).collect();
        for pfn in free {
            frames.check(pfn);
        }
        frames.verdict()
    }

    /// Returns a block that the guest uses, or every other time the next one; each fourth time the clock's block.
    fn next(&mut self, host: &Machine) -> Hva {
        self.hand = (self.hand + Level::M2.bytes()) % host.layout.ram_end();
        let asked = block_of(host.asked()).start;
        let clock = host.clocks.pages().next().map_or(asked, |page| block_of(hva_of(page)).start);
        let block = match self.turns / ROUND % 4 {
            0 | 2 => Hva(self.hand),
            1 => asked,
            _ => clock,
        };
        if self.scattered.contains(&block) { Hva(self.hand) } else { block }
    }

    /// Returns `count` of the guest's pages anywhere in the block; with `with_clocks` also the pages of clocks.
    fn some(&mut self, host: &Machine, block: Hva, count: u64, with_clocks: bool) -> Vec<Hva> {
        let clocks =
            host.clocks.pages().map(hva_of).filter(|&page| with_clocks && block_of(page).start == block);
        let mut pages: Vec<Hva> = (0..count)
            .map(|_| {
                self.dice ^= self.dice << 13;
                self.dice ^= self.dice >> 7;
                self.dice ^= self.dice << 17;
                block + (self.dice >> 20) % PAGES * PAGE_SIZE
            })
            .chain(clocks)
            .filter(|&page| host.layout.is_ram(Span::sized(page, PAGE_SIZE)))
            .collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// Marks the block as scattered: the engine maps its pages one by one.
    fn scatter(host: &Machine, block: Hva) {
        for page in pages_of(block) {
            if let Behind::Frame { pfn, whole: true } = host.behind(page) {
                host.set(page, Behind::Frame { pfn, whole: false });
            }
        }
    }

    /// Returns the frame of a page in its block's home.
    fn home(&self, page: Hva) -> Pfn {
        let number = page.0 >> PAGE_SHIFT;
        Pfn(self.homes[(number / PAGES) as usize].0 + number % PAGES)
    }

    /// Releases a page's old frame. A frame of the home waits until the block is gathered.
    fn leave(&self, frames: &mut Frames, page: Hva, pfn: Pfn) {
        if pfn == self.home(page) { clear(pfn) } else { frames.free(pfn) }
    }

    /// Takes pages: stores their contents in the reserve, from which a fault brings them back.
    fn take<F: Format>(
        &mut self,
        vm: &Vm<F, Machine>,
        idle: &mut Idle,
        frames: &mut Frames,
        block: Hva,
    ) -> Result<(), Error> {
        let host = vm.host();
        Self::scatter(host, block);
        let mut pages = self.some(host, block, TAKEN, self.turns.is_multiple_of(2));
        // A fault that brings a page back needs a frame, too.
        pages.truncate(frames.small.len().saturating_sub(frames.stored) / 2);
        let mut change = |idle: &mut Idle, told: &mut dyn Pages| {
            for &page in &pages {
                let Behind::Frame { pfn, .. } = host.behind(page) else { continue };
                let Some(store) = frames.small.pop_front() else { break };
                // Until the lock is free no fault brings the page back, or uses this state.
                host.set(page, Behind::Zeroes);
                told.changed(idle, Span::sized(page, PAGE_SIZE), None);
                // The copied contents must not change any more.
                told.flush(idle);
                let is_zero = is_zero(pfn);
                if is_zero {
                    frames.small.push_front(store);
                } else {
                    frames.check(store);
                    copy(pfn, store);
                    frames.stored += 1;
                    host.set(page, Behind::Stored(store));
                }
                self.leave(frames, page, pfn);
                self.counts[2] += 1;
                self.counts[3] += u64::from(is_zero);
            }
        };
        vm.around(idle, Event::new(block_of(block), Reason::Reclaim), &mut change)?;
        Ok(())
    }

    /// Moves pages of 4 KiB: out of the block's home, or back.
    fn shift<F: Format>(&mut self, vm: &Vm<F, Machine>, idle: &mut Idle, frames: &mut Frames, block: Hva) {
        let host = vm.host();
        for page in self.some(host, block, SHIFTED, !self.turns.is_multiple_of(2)) {
            let Behind::Frame { pfn: from, .. } = host.behind(page) else { continue };
            let to = match self.home(page) {
                home if home != from => home,
                _ if frames.small.len() <= frames.stored => continue,
                _ => frames.small.pop_front().unwrap_or_default(),
            };
            let change = vm.invalidate(Span::sized(page, PAGE_SIZE), Reason::Migrate).apply(idle).settle();
            frames.check(to);
            copy(from, to);
            host.set(page, Behind::Frame { pfn: to, whole: false });
            drop(change);
            self.leave(frames, page, from);
            self.counts[1] += 1;
        }
    }

    /// Moves all pages of a block, wherever they are, to a free block of 2 MiB.
    fn gather<F: Format>(&mut self, vm: &Vm<F, Machine>, idle: &mut Idle, frames: &mut Frames, block: Hva) {
        let host = vm.host();
        let Some(new) = frames.blocks.pop_front() else { return };
        // A whole block changes its frames like any page, inside an invalidation.
        let mut change = vm.invalidate(block_of(block), Reason::Migrate);
        if !self.untold {
            change = change.apply(idle).settle();
        }
        let old = self.home(block);
        for (page, offset) in pages_of(block).zip(0..) {
            let (to, home, behind) = (Pfn(new.0 + offset), Pfn(old.0 + offset), host.behind(page));
            frames.check(to);
            frames.fill(behind, to);
            match behind {
                Behind::Frame { pfn, .. } if pfn == home => clear(home),
                Behind::Frame { pfn, .. } => {
                    frames.check(home);
                    frames.free(pfn);
                }
                Behind::Stored(_) | Behind::Zeroes => frames.check(home),
            }
            host.set(page, Behind::Frame { pfn: to, whole: true });
        }
        drop(change);
        self.homes[(block.0 / Level::M2.bytes()) as usize] = new;
        frames.blocks.push_back(old);
        self.counts[0] += 1;
    }
}

/// Returns the pages of a block.
fn pages_of(block: Hva) -> impl Iterator<Item = Hva> {
    let all: Range<u64> = 0..PAGES;
    all.map(move |page| block + page * PAGE_SIZE)
}

/// Returns the host address of a guest frame.
fn hva_of(page: Gfn) -> Hva {
    Hva(page.0 << PAGE_SHIFT)
}
