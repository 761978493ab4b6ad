//! What a guest does: it fills its memory, then reads all over it, and writes some of it again, while pages are merged.
//!
//! Each read is checked. A fault that found **no translation** while a change of the page's entry was going on is
//! counted: it is what the change-pte series is about. Found none means that even a read fails; a write to a read-only page is no
//! such fault, it is wanted.

use super::notified_vm::Watched;
use super::page_contents::{Size, Stage};
use slat::{Fault, Format, Gfn, Host, PAGE_SIZE, Span};
use slat_vcpu::cpu::{Core, Program, Step};

/// Reads between two pages that are written again.
const READS_PER_WRITE: u64 = 16;

/// One VM's guest.
pub struct Worker<'a> {
    pub watched: &'a Watched,
    pub size: Size,
    pub vm: u32,
    pub stage: Stage,
    pub seen: Seen,
    /// Its memory has been filled once.
    pub filled: bool,
    random: fastrand::Rng,
}

/// What a guest has seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub reads: u64,
    /// Reads of something else than was written.
    pub wrong: u64,
    /// Faults for want of a translation while the page's entry was being changed.
    pub in_window: u64,
    /// All faults for want of a translation, since the memory was filled for the first time.
    pub missing: u64,
}

impl Seen {
    /// Adds what another guest has seen.
    pub fn add(&mut self, other: Self) {
        self.reads += other.reads;
        self.wrong += other.wrong;
        self.in_window += other.in_window;
        self.missing += other.missing;
    }
}

impl<'a> Worker<'a> {
    pub fn new(watched: &'a Watched, size: Size, vm: u32) -> Self {
        let random = fastrand::Rng::with_seed(vm.into());
        Self { watched, size, vm, stage: Stage(0), seen: Seen::default(), filled: false, random }
    }

    /// Writes the stage's contents to `pages`, one after the other.
    pub fn fill(&mut self, pages: Span<Gfn>) -> Fill<'_, 'a> {
        Fill { worker: self, pages }
    }

    /// Reads `reads` times, and between them writes the next pages of `again`, which it shortens, as they are already.
    pub fn roam<'w>(&'w mut self, reads: u64, again: &'w mut Again) -> Roam<'w, 'a> {
        let at = self.next_read();
        Roam { worker: self, reads, again, at }
    }

    /// Any page, any byte.
    fn next_read(&mut self) -> (Gfn, u64) {
        (Gfn(self.random.u64(..self.size.pages_per_vm)), self.random.u64(..PAGE_SIZE))
    }

    /// Looks what the fault was for, and passes it on.
    fn note(&mut self, core: &mut Core<'_, impl Format, impl Host>, fault: Fault) -> Fault {
        let changing = self.watched.is_changing(fault.gpa.gfn());
        if (changing || self.filled) && core.load(fault.gpa, &mut [0]).is_err() {
            self.seen.in_window += u64::from(changing);
            self.seen.missing += u64::from(self.filled);
        }
        fault
    }

    fn store(&mut self, core: &mut Core<'_, impl Format, impl Host>, gfn: Gfn) -> Result<(), Fault> {
        let page = self.stage.page(self.size, self.vm, gfn);
        core.store(gfn.gpa(), &page).map_err(|fault| self.note(core, fault))
    }
}

/// See [`Worker::fill`].
pub struct Fill<'w, 'a> {
    worker: &'w mut Worker<'a>,
    pages: Span<Gfn>,
}

impl Program for Fill<'_, '_> {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        if self.pages.is_empty() {
            return Ok(Step::Stop);
        }
        self.worker.store(core, self.pages.start)?;
        self.pages.start = self.pages.start + 1;
        Ok(Step::Next)
    }
}

/// Pages that are written once more with what they hold: every `step`-th from the first.
#[derive(Clone, Copy, Debug)]
pub struct Again {
    pub next: u64,
    pub step: u64,
    pub end: u64,
}

impl Again {
    /// All `pages` of a VM, every `step`-th.
    pub fn every(step: u64, pages: u64) -> Self {
        Self { next: 0, step, end: pages }
    }

    /// Nothing.
    pub fn nothing() -> Self {
        Self { next: 0, step: 1, end: 0 }
    }

    /// How many are left.
    pub fn left(&self) -> u64 {
        self.end.saturating_sub(self.next).div_ceil(self.step)
    }
}

/// See [`Worker::roam`].
pub struct Roam<'w, 'a> {
    worker: &'w mut Worker<'a>,
    reads: u64,
    again: &'w mut Again,
    at: (Gfn, u64),
}

impl Program for Roam<'_, '_> {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        if self.reads == 0 {
            return Ok(Step::Stop);
        }
        if self.reads.is_multiple_of(READS_PER_WRITE) && self.again.left() > 0 {
            self.worker.store(core, Gfn(self.again.next))?;
            self.again.next += self.again.step;
        }
        let (gfn, offset) = self.at;
        let mut byte = [0];
        core.load(gfn.gpa() + offset, &mut byte).map_err(|fault| self.worker.note(core, fault))?;
        let Worker { size, vm, stage, .. } = *self.worker;
        let (all, last) = stage.bytes(size, vm, gfn);
        let expected = if offset + 1 == PAGE_SIZE { last } else { all };
        self.worker.seen.wrong += u64::from(byte[0] != expected);
        self.worker.seen.reads += 1;
        self.reads -= 1;
        self.at = self.worker.next_read();
        Ok(Step::Next)
    }
}
