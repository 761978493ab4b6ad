//! The guest: it loads and stores its lines in all of memory, through a TLB that uses its entries until a
//! flush.

use crate::oracle::{LINE, Lane};
use crate::random::Random;
use crate::stage::{HOT, NODES, PAGES, Stage, count};
use slat::{Fault, FaultError, Format, Gfn, Host, HostError, Idle, Vcpu};
use slat_mm::Node;
use slat_vcpu::cpu::{Core, Program, Step};
use slat_vcpu::{Cpu, Exit, Window};
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

/// Accesses between two checks whether the world is over.
const STAY: u64 = 256;
/// The most steps that a kicked vCPU takes before it answers.
const LATEST: u64 = 64;

pub struct Guest<'a> {
    stage: &'a Stage,
    lane: Lane,
    random: Random,
    left: u64,
}

impl Program for Guest<'_> {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        // Without flushes, an access may fault forever: its walk uses unlinked tables.
        if self.left == 0 || self.stage.is_over() {
            self.left = STAY;
            return Ok(Step::Stop);
        }
        // After a fault the same access runs again. The guest keeps no state before the access is done.
        let mut random = self.random.clone();
        let place = random.below(HOT as u64) as usize;
        let fresh = random.one_in(16).then(|| random.below(PAGES));
        let page = fresh.unwrap_or_else(|| self.stage.hot[place].load(Relaxed));
        let at = Gfn(page).gpa() + self.lane.offset();
        let stage = self.stage;
        let ledger = &stage.ledger;
        if self.lane.owns(ledger, page) && random.one_in(2) {
            self.lane.store(ledger, page, |line| core.store(at, line))?;
        } else if random.one_in(4) {
            let lane = random.below(stage.lanes);
            let at = Gfn(page).gpa() + lane * LINE as u64;
            if let Err(wrong) = ledger.peek(page, lane, |line| core.load(at, line))? {
                stage.wrong(|| format!("a guest sees {wrong}"));
                return Ok(Step::Stop);
            }
        } else if let Err(wrong) = self.lane.load(ledger, page, |line| core.load(at, line))? {
            stage.wrong(|| format!("a guest reads {wrong}"));
            return Ok(Step::Stop);
        }
        if fresh.is_some() && random.one_in(16) {
            stage.hot[place].store(page, Relaxed);
        }
        self.random = random;
        self.left -= 1;
        Ok(Step::Next)
    }
}

impl<'a> Guest<'a> {
    pub fn new(stage: &'a Stage, number: u64) -> Self {
        let random = Random::new(stage.seed ^ (number + 1) << 32);
        Self { stage, lane: Lane::new(number, PAGES), random, left: STAY }
    }

    /// Continues with another access: this one is not possible at the moment.
    fn skip(&mut self) {
        self.random.0.u64(..);
    }
}

/// Runs a vCPU until the meddlers are done. Returns its lane.
pub fn run<F: Format, H: Host>(stage: &Stage, vcpu: Vcpu<'_, F, H>, window: Window, number: u64) -> Lane {
    Node((number % u64::from(NODES)) as u8).run_here();
    let mut idle = Idle::take().expect("the vCPU has its own thread");
    let mut guest = Guest::new(stage, number);
    let mut cpu = Cpu::new(vcpu, window).untimed().answering_late(stage.seed << 8 ^ number, LATEST);
    debug_assert!(LINE as u64 * stage.lanes <= slat::PAGE_SIZE);
    while !stage.is_over() {
        match cpu.run(&mut idle, &mut guest) {
            Exit::Stopped => {}
            // The page is unmapped or protected at the moment, or the group can evict nothing while children
            // share it.
            Exit::Failed(_, FaultError::Host(HostError::Fault | HostError::NoMemory)) => {
                count(&stage.counts.refused);
                guest.skip();
                thread::yield_now();
            }
            Exit::Failed(fault, FaultError::Host(error)) => {
                stage.wrong(|| format!("a guest cannot have {}: {error}", fault.gpa));
            }
            exit => panic!("{exit:?}"),
        }
    }
    guest.lane
}
