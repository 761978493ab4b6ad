//! L1: a hypervisor that maps its guest's memory page by page, and edits its tables at random
//! ([`super::edits`]).
//!
//! All vCPUs share one table and one lock of L1. The lock is held while L1's code runs, and while it waits for
//! vCPUs to leave L2; leaving needs no lock.

use super::code::{L1Code, Platform};
use super::counts::{Counts, L1Counts};
use super::l1_memory::Memory;
use super::tables::{L1Tables, Nest};
use super::vcpus::{Scope, Vcpus};
use crate::cpu::{Core, L2Exit, Program, Step};
use crate::{Cpu, Exit};
use fastrand::Rng;
use slat::{Fault, Format, Gfn, Host, Idle, SpaceId, Span, Token};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Result of handling a refused access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FaultResult {
    /// T allows the access now.
    Mapped,
    /// T allowed it already: another vCPU was faster, or L1 has moved a table meanwhile.
    Nothing,
    /// The refusal is impossible.
    Wrong,
}

/// A seeded mistake: the step that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// The engine is not told of L1's flushes.
    FlushesIgnored,
    /// L1 does not flush after it has taken a mapping from L2.
    FlushesLeftOut,
}

/// Settings of L1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct L1Settings {
    /// Average steps of L2 between two edits on a vCPU; 0 for no edits.
    pub steps: u64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Most steps that a vCPU takes in L2 after an interrupt.
    pub late: u64,
    /// Whether L1 sometimes maps new memory by 2 MiB.
    pub large: bool,
    /// The seeded mistake, if any.
    pub mistake: Option<Mistake>,
}

impl Default for L1Settings {
    fn default() -> Self {
        Self { steps: 5000, seed: 1, late: 0, large: true, mistake: None }
    }
}

/// L1's hypervisor, for all its vCPUs.
#[derive(Debug)]
pub struct L1<F: Nest> {
    pub(super) settings: L1Settings,
    pub(super) vcpus: Vcpus,
    /// The table on which vCPUs enter L2; `None` before the first entry.
    table: Mutex<Option<F::Table>>,
    memory: Mutex<Option<Memory<F::Table>>>,
    pub(super) counts: Counts,
}

/// Consecutive refusals of a vCPU that L1 cannot explain, before it reports an error.
const MAX_UNEXPLAINED_REFUSALS: u32 = 1000;

/// Consecutive faults of a step, before L1 reports an error: the engine has handled each, and the access still
/// fails.
const MAX_FAULTS: u32 = 500_000;

/// The reason for which L2 has stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The program stopped.
    Stopped,
    /// L1 has found an error: its tables do not explain the exit.
    Wrong,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: Nest> L1<F> {
    /// Creates a hypervisor with this many vCPUs.
    pub fn new(vcpus: u32, settings: L1Settings) -> Self {
        Self {
            settings,
            vcpus: Vcpus::new(vcpus),
            table: Mutex::default(),
            memory: Mutex::default(),
            counts: Counts::default(),
        }
    }

    /// Returns the counts of its edits, flushes and errors.
    pub fn counts(&self) -> L1Counts {
        self.counts.read()
    }

    /// Makes vCPUs enter L2 on this table from now on.
    pub(super) fn enter_on(&self, table: F::Table) {
        *lock(&self.table) = Some(table);
    }

    /// Whether this mistake is seeded.
    pub(super) fn makes(&self, mistake: Mistake) -> bool {
        self.settings.mistake == Some(mistake)
    }
}

/// One of L1's vCPUs.
#[derive(Debug)]
pub struct L1Vcpu<'l, 'vm, F: Nest, H: Host> {
    l1: &'l L1<F>,
    id: usize,
    /// The vCPU.
    pub cpu: Cpu<'vm, F, H>,
    random: Rng,
}

/// Runs a program in L2 until L1 takes control.
struct Slice<'p, P> {
    program: &'p mut P,
    vcpus: &'p Vcpus,
    id: usize,
    /// Steps until the next edit; `u64::MAX` for no edits.
    left: &'p mut u64,
    late: u64,
    /// Consecutive faults.
    faults: u32,
    /// Whether the program itself has stopped.
    stopped: bool,
}

impl<P: Program> Program for Slice<'_, P> {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        if self.vcpus.is_interrupted(self.id) {
            if self.late == 0 {
                return Ok(Step::Stop);
            }
            self.late -= 1;
        }
        if *self.left == 0 || self.faults == MAX_FAULTS {
            return Ok(Step::Stop);
        }
        self.faults += 1;
        let step = self.program.step(core)?;
        self.faults = 0;
        *self.left -= 1;
        self.stopped = step == Step::Stop;
        Ok(step)
    }

    fn page_ready(&mut self, token: Token) {
        self.program.page_ready(token);
    }
}

impl<'l, 'vm, F: Nest, H: Host> L1Vcpu<'l, 'vm, F, H> {
    /// Creates vCPU number `id`, from 0.
    pub fn new(l1: &'l L1<F>, id: u32, cpu: Cpu<'vm, F, H>) -> Self {
        let random = Rng::with_seed(l1.settings.seed << 16 | u64::from(id));
        Self { l1, id: id as usize, cpu, random }
    }

    /// Runs `program` in L2 until it stops, and handles its exits as L1 and its hardware do.
    pub fn run<P: Platform>(
        &mut self,
        idle: &mut Idle,
        platform: &mut P,
        program: &mut impl Program,
    ) -> Result<Ended, P::Error> {
        let (mut left, mut unexplained) = (self.until_next_edit(), 0);
        loop {
            let table = self.enter(idle, platform)?;
            let late = if self.l1.settings.late == 0 { 0 } else { self.random.u64(..=self.l1.settings.late) };
            let (vcpus, id) = (&self.l1.vcpus, self.id);
            let mut slice = Slice { program, vcpus, id, left: &mut left, late, faults: 0, stopped: false };
            let exit = self.cpu.run_l2(idle, table, &mut slice);
            let (stopped, faults) = (slice.stopped, slice.faults);
            vcpus.leave(id);
            match exit.map_err(|_| platform.no_memory())? {
                L2Exit::Stopped if stopped => return Ok(Ended::Stopped),
                L2Exit::Stopped if faults == MAX_FAULTS => {
                    self.l1.counts.wrong();
                    return Ok(Ended::Wrong);
                }
                L2Exit::Stopped => {
                    if left == 0 {
                        left = self.until_next_edit();
                        self.with_memory(idle, platform, |l1, code, memory, random| {
                            l1.edit(code, memory, random)
                        })?;
                    }
                }
                L2Exit::ForL1(fault) => {
                    let result = self.with_memory(idle, platform, |l1, code, memory, random| {
                        l1.deal_with(code, memory, random, &fault)
                    })?;
                    unexplained = if result == FaultResult::Nothing { unexplained + 1 } else { 0 };
                    // L1 has mapped the page, and T still refuses the access.
                    if result == FaultResult::Wrong || unexplained == MAX_UNEXPLAINED_REFUSALS {
                        self.l1.counts.wrong();
                        return Ok(Ended::Wrong);
                    }
                }
                // There is memory behind everything that L1 maps.
                L2Exit::Own(Exit::Mmio(_)) => {
                    self.l1.counts.wrong();
                    return Ok(Ended::Wrong);
                }
                L2Exit::Own(exit) => platform.exit(idle, exit)?,
            }
        }
    }

    /// Checks all pages that L1 watches; called at the end.
    pub fn check_all<P: Platform>(&mut self, idle: &mut Idle, platform: &mut P) -> Result<(), P::Error> {
        if lock(&self.l1.table).is_none() {
            return Ok(());
        }
        self.with_memory(idle, platform, |l1, code, memory, _| {
            for g2 in memory.order.clone() {
                l1.check(code, memory, g2)?;
            }
            Ok(())
        })
    }

    fn until_next_edit(&mut self) -> u64 {
        match self.l1.settings.steps {
            0 => u64::MAX,
            steps => self.random.u64(1..=2 * steps),
        }
    }

    /// L1's last step before L2: executes pending flushes. Returns the table.
    fn enter<P: Platform>(&mut self, idle: &mut Idle, platform: &mut P) -> Result<F::Table, P::Error> {
        loop {
            let table = || *lock(&self.l1.table);
            match self.l1.vcpus.enter(self.id, table) {
                Ok(Some(table)) => return Ok(table),
                Ok(None) => {
                    self.l1.vcpus.leave(self.id);
                    self.with_memory(idle, platform, |_, _, _, _| Ok(()))?;
                }
                Err(noted) => {
                    let table = *lock(&self.l1.table);
                    for scope in noted.into_iter().filter(|_| !self.l1.makes(Mistake::FlushesIgnored)) {
                        self.cpu.l1_flushes(|other: &F::Table| covers(scope, table, other));
                    }
                }
            }
        }
    }

    /// Runs L1's code, under its lock.
    fn with_memory<P: Platform, R>(
        &mut self,
        idle: &mut Idle,
        platform: &mut P,
        work: impl FnOnce(
            &L1<F>,
            &mut L1Code<'_, 'vm, F, H, P>,
            &mut Memory<F::Table>,
            &mut Rng,
        ) -> Result<R, P::Error>,
    ) -> Result<R, P::Error> {
        let l1 = self.l1;
        let mut memory = lock(&l1.memory);
        let mut code = L1Code::new(&mut self.cpu, idle, platform);
        let memory = match &mut *memory {
            Some(memory) => memory,
            none => {
                let made = Memory::new::<F, H, P>(&mut code)?;
                l1.enter_on(made.table);
                none.insert(made)
            }
        };
        work(l1, &mut code, memory, &mut self.random)
    }
}

/// Whether a flush covers cached translations of `other`, when `table` is in use.
fn covers<T: L1Tables>(scope: Scope, table: Option<T>, other: &T) -> bool {
    match scope {
        Scope::Frames(_) | Scope::Table => Some(*other) == table,
        Scope::Root => table.is_some_and(|table| other.root() == table.root()),
        Scope::All => true,
    }
}

impl<F: Nest> L1<F> {
    /// Flushes on all vCPUs of L1: when this returns, no vCPU uses a mapping that was taken from L2 before.
    pub(super) fn flush<H: Host, P: Platform>(
        &self,
        code: &mut L1Code<'_, '_, F, H, P>,
        memory: &Memory<F::Table>,
        scope: Scope,
    ) {
        self.counts.flushed(scope);
        if self.makes(Mistake::FlushesLeftOut) {
            return;
        }
        if !F::Table::BROADCASTS {
            return self.vcpus.flush(scope);
        }
        if self.makes(Mistake::FlushesIgnored) {
            return;
        }
        let g2s =
            if let Scope::Frames(g2s) = scope { g2s } else { Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS)) };
        let table = Some(memory.table);
        let cover = |other: &F::Table| covers(scope, table, other);
        code.cpu.l1_broadcasts(code.idle, (SpaceId(0), g2s), cover);
    }
}
