//! How the host moves pages and takes them, while the guest runs.
//!
//! ```text
//! turn   1 … 8   take pages of a block of 2 MiB, move pages of 4 KiB   they come back one by one, elsewhere
//!        8       gather a block that was taken from some turns ago     into 2 MiB that are free: moved as a whole
//! ```
//! Each follows the contract of [`Host`](slat::Host): the invalidation begins, no vCPU uses the pages any more, contents are
//! copied and entries changed, the invalidation ends. Pages are taken one by one ([`Why::Reclaim`]); a block moves at once
//! ([`Why::Migrate`]).

use crate::Error;
use crate::memory::{Behind, Frames, Machine, block_of, clear, copy, is_zero};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;
use slat::{
    Event, Format, Gfn, Hva, Idle, Level, PAGE_SHIFT, PAGE_SIZE, Pages, Pfn, SecondaryMmu, Span, Vm, Why,
};

/// Turns after which a block is gathered.
const ROUND: u64 = 8;
/// Blocks that pages have been taken from and that are not gathered yet.
const SCATTERED: usize = 4;
/// Pages that are taken in a turn, and those that are moved.
const TAKEN: u64 = 12;
const SHIFTED: u64 = 4;
const PAGES: u64 = Level::M2.pages();

/// What moves them: one for the guest, under a lock.
#[derive(Debug)]
pub struct Mover {
    /// A mistake on purpose: blocks are moved, and the engine is not told.
    untold: bool,
    turns: u64,
    /// The block that pages are taken from, and those that are to be gathered.
    scattered: VecDeque<Hva>,
    /// The next block, where no fault names one.
    hand: u64,
    dice: u64,
    /// The first frame of each block: where its pages are but for those that were brought back or moved.
    homes: Vec<Pfn>,
    /// Blocks moved as a whole, pages moved, pages taken, and those of them that had no contents but zeroes.
    pub counts: [u64; 4],
}

impl Mover {
    /// Nothing is moved yet.
    pub fn new(host: &Machine, untold: bool) -> Self {
        let homes = (0..host.layout.ram().end.0).step_by(PAGES as usize).map(Pfn).collect();
        let dice = 0x9e37_79b9_7f4a_7c15;
        Self { untold, turns: 0, scattered: VecDeque::new(), hand: 0, dice, homes, counts: [0; 4] }
    }

    /// What is done on one interrupt.
    pub fn turn<F: Format>(&mut self, vm: &Vm<F, Machine>, idle: &mut Idle) -> Result<(), Error> {
        let mut frames = vm.host().frames.lock();
        if self.turns.is_multiple_of(ROUND) {
            let block = self.next(vm.host());
            self.scattered.push_back(block);
            if self.scattered.len() > SCATTERED {
                // The first two megabytes are no block: they have holes.
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

    /// The guest is done: all free frames are looked at once more.
    pub fn finish(host: &Machine) -> Result<(), Error> {
        let mut frames = host.frames.lock();
        let in_blocks = frames.blocks.iter().flat_map(|first| (first.0..first.0 + PAGES).map(Pfn));
        let free: Vec<Pfn> = in_blocks.chain(frames.small.iter().copied()).collect();
        for pfn in free {
            frames.check(pfn);
        }
        frames.verdict()
    }

    /// A block that the guest uses, or every other time just the next one; the clock's each fourth time.
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

    /// So many pages of the block, anywhere in it, that are the guest's; and those that clocks are in, in turns for which this holds.
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

    /// From here on the engine maps the block's pages one by one.
    fn scatter(host: &Machine, block: Hva) {
        for page in pages_of(block) {
            if let Behind::Frame { pfn, whole: true } = host.behind(page) {
                host.set(page, Behind::Frame { pfn, whole: false });
            }
        }
    }

    /// The frame that a page has in its block's home.
    fn home(&self, page: Hva) -> Pfn {
        let number = page.0 >> PAGE_SHIFT;
        Pfn(self.homes[(number / PAGES) as usize].0 + number % PAGES)
    }

    /// A frame that is behind its page no more: one of the home waits for the block to be gathered.
    fn leave(&self, frames: &mut Frames, page: Hva, pfn: Pfn) {
        if pfn == self.home(page) { clear(pfn) } else { frames.free(pfn) }
    }

    /// Takes pages: their contents go to the reserve, and a fault brings them back.
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
        // A fault that brings one back needs a frame, too.
        pages.truncate(frames.small.len().saturating_sub(frames.stored) / 2);
        let mut change = |idle: &mut Idle, told: &mut dyn Pages| {
            for &page in &pages {
                let Behind::Frame { pfn, .. } = host.behind(page) else { continue };
                let Some(store) = frames.small.pop_front() else { break };
                // Until the lock is free no fault brings it back, nor believes what this says.
                host.set(page, Behind::Zeroes);
                told.changed(idle, Span::sized(page, PAGE_SIZE), None);
                // What is copied must not change any more.
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
        vm.around(idle, Event::new(block_of(block), Why::Reclaim), &mut change)?;
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
            let mut change = vm.invalidate(Span::sized(page, PAGE_SIZE), Why::Migrate);
            change.apply(idle).settle();
            frames.check(to);
            copy(from, to);
            host.set(page, Behind::Frame { pfn: to, whole: false });
            drop(change);
            self.leave(frames, page, from);
            self.counts[1] += 1;
        }
    }

    /// Moves all of a block to 2 MiB that are free, wherever its pages are.
    fn gather<F: Format>(&mut self, vm: &Vm<F, Machine>, idle: &mut Idle, frames: &mut Frames, block: Hva) {
        let host = vm.host();
        let Some(new) = frames.blocks.pop_front() else { return };
        // A page that is whole changes its frame like any other: nothing of it is believed meanwhile.
        let mut change = vm.invalidate(block_of(block), Why::Migrate);
        if !self.untold {
            change.apply(idle).settle();
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

/// The pages of a block.
fn pages_of(block: Hva) -> impl Iterator<Item = Hva> {
    let all: Range<u64> = 0..PAGES;
    all.map(move |page| block + page * PAGE_SIZE)
}

/// The host address of a guest frame.
fn hva_of(page: Gfn) -> Hva {
    Hva(page.0 << PAGE_SHIFT)
}
