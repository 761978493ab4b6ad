//! The threads that store: vCPUs through their TLBs, and a device that writes beside them and marks what it
//! wrote.
//!
//! Each word of memory has one owner, who numbers its stores. So no two stores are alike, and the order between
//! owners does not matter. The first and last words of a page belong to vCPU 0, which stores across the border.

use super::random::Random;
use super::world::{Around, HVA, Mistake, NEIGHBOUR_AT, NEIGHBOUR_PAGES, Other, PAGES, VCPUS, WORDS, World};
use slat::*;
use slat_mm::HostView;
use slat_vcpu::cpu::{Core, Program, Step};
use slat_vcpu::{Cpu, Exit};
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

/// Steps of one stay in the guest.
const STAY: u64 = 64;
/// The most stays of a round. They end a round in which a ring never tells anything.
const STAYS: u64 = 1 << 14;
/// The most steps that a kicked vCPU takes before it answers.
const LATEST: u64 = 16;
/// Pages used again and again. They are in the TLB, writable, when they are harvested.
const HOT: usize = 12;
const DEVICE: u64 = VCPUS;
const OWNERS: u64 = VCPUS + 1;

/// A random word of `owner` in some page.
fn some_word(random: &mut Random, owner: u64) -> u64 {
    let words = (WORDS - 2) / OWNERS;
    1 + owner + OWNERS * random.below(words)
}

/// The next number that `owner` stores. It is never zero.
fn next(count: &mut u64, owner: u64) -> u64 {
    *count += 1;
    *count << 8 | owner
}

/// The program of one vCPU.
pub struct Guest<'w, F: Format> {
    world: &'w World<F>,
    owner: u64,
    random: Random,
    hot: [u64; HOT],
    count: u64,
    left: u64,
}

/// The vCPU that the guest runs on.
pub fn cpu<F: Format>(world: &World<F>, id: u64) -> Cpu<'_, F, HostView> {
    let cpu = Cpu::new(world.vm.vcpu(VcpuId(id as u32)).unwrap(), world.window()).untimed();
    cpu.answering_late(world.setting.seed << 8 ^ id, LATEST)
}

impl<'w, F: Format> Guest<'w, F> {
    pub fn new(world: &'w World<F>, owner: u64) -> Self {
        let mut random = Random::new(world.setting.seed ^ (owner + 1) << 32);
        let hot = std::array::from_fn(|_| random.below(world.setting.pages_in_use()));
        Self { world, owner, random, hot, count: 0, left: 0 }
    }

    /// Runs for a round.
    pub fn round(&mut self, cpu: &mut Cpu<'_, F, HostView>, idle: &mut Idle) {
        let mut stays = 0;
        self.left = STAY;
        loop {
            match cpu.run(idle, self) {
                Exit::Stopped if stays == STAYS || self.world.is_round_over() => return,
                Exit::Stopped => {
                    stays += 1;
                    self.left = STAY;
                    thread::yield_now();
                }
                // The slot has moved, or the neighbour is away. The next attempt uses the new address.
                Exit::Mmio(_) => thread::yield_now(),
                // The collector will make room soon.
                Exit::RingFull => {
                    self.world.ring_full.fetch_add(1, SeqCst);
                    thread::yield_now();
                }
                // There is no table page, or the host's memory is read-only at the moment.
                Exit::Failed(_, FaultError::NoMemory | FaultError::Host(HostError::Fault)) => {
                    thread::yield_now();
                }
                exit @ Exit::Failed(..) => self.world.wrong(|| format!("{exit:?}")),
            }
        }
    }

    /// Records the stores of all these words, from `first` on.
    fn stored(&self, first: u64, values: &[u64], before: u64) {
        for (word, value) in (first..).zip(values) {
            self.world.image[word as usize].store(*value, SeqCst);
            self.world.record.stored(word / WORDS, before);
        }
    }
}

impl<F: Format> Program for Guest<'_, F> {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        let world = self.world;
        if self.left == 0 || world.is_over() {
            return Ok(Step::Stop);
        }
        // After a fault the same step runs again. The guest keeps no state before the step is done.
        let mut random = self.random.clone();
        let mut count = self.count;
        let place = random.below(HOT as u64) as usize;
        let page =
            if random.one_in(5) { random.below(world.setting.pages_in_use()) } else { self.hot[place] };
        let word = some_word(&mut random, self.owner);
        let base = Gfn(world.base.load(SeqCst));
        let at = |word: u64| base.gpa() + word * 8;
        let before = world.record.before_store();
        match random.below(16) {
            0 => {
                let gfn = NEIGHBOUR_AT + page % NEIGHBOUR_PAGES;
                core.store(gfn.gpa(), &next(&mut count, self.owner).to_le_bytes())?;
            }
            1..4 => {
                let first = page * WORDS + word;
                let mut bytes = [0; 8];
                if random.one_in(4) {
                    core.fetch(at(first), &mut bytes)?;
                }
                core.load(at(first), &mut bytes)?;
                let (found, stored) = (u64::from_le_bytes(bytes), world.image[first as usize].load(SeqCst));
                if found != stored {
                    world.wrong(|| format!("page {page}, word {word}: {found:#x} read, {stored:#x} stored"));
                }
            }
            4 if self.owner == 0 && page + 1 < PAGES => {
                let first = (page + 1) * WORDS - 1;
                let values = [(); 2].map(|()| next(&mut count, self.owner));
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&values[0].to_le_bytes());
                bytes[8..].copy_from_slice(&values[1].to_le_bytes());
                core.store(at(first), &bytes)?;
                self.stored(first, &values, before);
            }
            _ => {
                let first = page * WORDS + word;
                let value = next(&mut count, self.owner);
                core.store(at(first), &value.to_le_bytes())?;
                self.stored(first, &[value], before);
            }
        }
        self.hot[place] = page;
        (self.random, self.count) = (random, count);
        self.left -= 1;
        world.steps.fetch_add(1, SeqCst);
        Ok(Step::Next)
    }
}

/// Writes to the same memory as the host, and marks the pages as dirty.
pub struct Device<'w, F: Format> {
    world: &'w World<F>,
    random: Random,
    count: u64,
}

impl<'w, F: Format> Device<'w, F> {
    pub fn new(world: &'w World<F>) -> Self {
        Self { world, random: Random::new(world.setting.seed ^ (DEVICE + 1) << 32), count: 0 }
    }

    /// Writes sometimes while guests run.
    pub fn round(&mut self, idle: &mut Idle) {
        let world = self.world;
        if world.setting.around != Around::Everything {
            return;
        }
        while world.guests_at_work.load(SeqCst) > 0 && !world.is_over() {
            let first = self.random.below(PAGES - 2);
            let pages = first..first + 1 + self.random.below(3);
            let before = world.record.before_store();
            for page in pages.clone() {
                let word = page * WORDS + some_word(&mut self.random, DEVICE);
                let value = next(&mut self.count, DEVICE);
                // The memory may be read-only at the moment.
                while world.space.write(idle, HVA + word * 8, &value.to_le_bytes()).is_err()
                    && !world.is_over()
                {
                    thread::yield_now();
                }
                world.image[word as usize].store(value, SeqCst);
            }
            if world.setting.mistake != Mistake::SilentDevice {
                self.mark(&pages);
            }
            pages.for_each(|page| world.record.stored(page, before));
            world.had_a_turn(Other::Device);
            world.let_guests_run(self.random.below(200));
        }
    }

    fn mark(&mut self, pages: &Range<u64>) {
        let bytes = Span::new(HVA + pages.start * PAGE_SIZE, HVA + pages.end * PAGE_SIZE);
        self.world.vm.mark_dirty(bytes);
    }
}
