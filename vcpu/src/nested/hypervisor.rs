//! L1: a hypervisor whose guest's memory is mapped page by page, and changed at random ([`super::edits`]).
//!
//! All vCPUs share one table, and one lock of L1's own. The lock is held while L1's code runs, and while it waits for vCPUs that are in
//! L2; those leave without it.

use super::code::{L1Code, Platform};
use super::edits::{Counts, L1Counts};
use super::faults::Dealt;
use super::memory::Memory;
use super::tables::{L1Tables, Nest};
use super::vcpus::{Scope, Vcpus};
use crate::cpu::{Core, L2Exit, Program, Step};
use crate::{Cpu, Exit};
use fastrand::Rng;
use slat::{Fault, Format, Gfn, Host, Idle, SpaceId, Span, Token};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A step left out on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// The engine is not told of L1's flushes.
    FlushesIgnored,
    /// L1 does not flush after it has taken something from L2.
    FlushesLeftOut,
}

/// How L1 behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct L1Settings {
    /// Steps of L2 between two changes that L1 makes on a vCPU, about; 0: it makes none.
    pub steps: u64,
    /// Of whatever is drawn by lot.
    pub seed: u64,
    /// Steps that a vCPU takes in L2 after it was interrupted, at most.
    pub late: u64,
    /// Whether L1 maps new memory by 2 MiB now and then.
    pub large: bool,
    /// What it does wrong.
    pub mistake: Option<Mistake>,
}

impl Default for L1Settings {
    fn default() -> Self {
        Self { steps: 5000, seed: 1, late: 0, large: true, mistake: None }
    }
}

/// L1's hypervisor, for all its vCPUs. See the module's header.
#[derive(Debug)]
pub struct L1<F: Nest> {
    pub(super) settings: L1Settings,
    pub(super) vcpus: Vcpus,
    /// The table that L2 is entered on; none before the first entry.
    table: Mutex<Option<F::Table>>,
    memory: Mutex<Option<Memory<F::Table>>>,
    pub(super) counts: Counts,
}

/// Refusals of one vCPU in a row that L1 knows no reason for.
const IN_VAIN: u32 = 1000;

/// Faults of a step in a row that no table of L1's accounts for: the engine has dealt with each, and the access does not come through.
const FAULTS: u32 = 500_000;

/// How a stay of L2 ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The program stopped.
    Stopped,
    /// L1 has found that something is wrong: what its tables say cannot lead here.
    Wrong,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: Nest> L1<F> {
    /// A hypervisor with so many vCPUs.
    pub fn new(vcpus: u32, settings: L1Settings) -> Self {
        Self {
            settings,
            vcpus: Vcpus::new(vcpus),
            table: Mutex::default(),
            memory: Mutex::default(),
            counts: Counts::default(),
        }
    }

    /// What it has done, and found.
    pub fn counts(&self) -> L1Counts {
        self.counts.read()
    }

    /// vCPUs enter L2 on this table from now on.
    pub(super) fn enter_on(&self, table: F::Table) {
        *lock(&self.table) = Some(table);
    }

    /// Whether it leaves out, or the engine, what this mistake leaves out.
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

/// What runs in L2 until L1 wants to have its say.
struct Slice<'p, P> {
    program: &'p mut P,
    vcpus: &'p Vcpus,
    id: usize,
    /// Until the next edit; none comes where this is the largest number.
    left: &'p mut u64,
    late: u64,
    /// Faults in a row.
    faults: u32,
    /// The program itself has stopped.
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
        if *self.left == 0 || self.faults == FAULTS {
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
    /// The vCPU of that number, from 0.
    pub fn new(l1: &'l L1<F>, id: u32, cpu: Cpu<'vm, F, H>) -> Self {
        let random = Rng::with_seed(l1.settings.seed << 16 | u64::from(id));
        Self { l1, id: id as usize, cpu, random }
    }

    /// Runs `program` in L2 until it stops. What L1 and its hardware have to do meanwhile is done.
    pub fn run<P: Platform>(
        &mut self,
        idle: &mut Idle,
        platform: &mut P,
        program: &mut impl Program,
    ) -> Result<Ended, P::Error> {
        let (mut left, mut in_vain) = (self.until_next_edit(), 0);
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
                L2Exit::Stopped if faults == FAULTS => {
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
                    let dealt = self.with_memory(idle, platform, |l1, code, memory, random| {
                        l1.deal_with(code, memory, random, &fault)
                    })?;
                    in_vain = if dealt == Dealt::Nothing { in_vain + 1 } else { 0 };
                    // L1 has mapped it, and T refuses it all the same.
                    if dealt == Dealt::Wrong || in_vain == IN_VAIN {
                        self.l1.counts.wrong();
                        return Ok(Ended::Wrong);
                    }
                }
                // There is memory behind whatever L1 maps.
                L2Exit::Own(Exit::Mmio(_)) => {
                    self.l1.counts.wrong();
                    return Ok(Ended::Wrong);
                }
                L2Exit::Own(exit) => platform.exit(idle, exit)?,
            }
        }
    }

    /// What L1 believes of the pages that it watches, compared: for when all is over.
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

    /// The last step of L1 before L2: nothing is left to be flushed. Returns the table.
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

/// Whether a flush reaches what hardware has of `other`, where `table` is the one in use.
fn covers<T: L1Tables>(scope: Scope, table: Option<T>, other: &T) -> bool {
    match scope {
        Scope::Frames(_) | Scope::Table => Some(*other) == table,
        Scope::Root => table.is_some_and(|table| other.root() == table.root()),
        Scope::All => true,
    }
}

impl<F: Nest> L1<F> {
    /// L1 flushes, on all its vCPUs: nothing that was taken from L2 before is used when this returns.
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
