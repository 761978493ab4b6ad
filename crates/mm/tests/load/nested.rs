//! A guest of a guest. A hypervisor on two vCPUs of a third VM keeps its tables and its guest in the same
//! memory. The host takes, moves, merges, shares and balances this memory like that of the other guests.
//!
//! Both vCPUs run the inner guest on the same tables, so the faults and flushes of one meet those of the other.
//! Each vCPU has its own word in each page. Nothing is dropped there, so each word must be the last one stored.

use crate::groups::with_room;
use crate::random::Random;
use crate::stage::{NESTED, NESTED_PAGES, Primary, Stage};
use slat::{
    Fault, FaultError, Format, Gfn, Host, HostError, Idle, Level, PAGE_SIZE, Slot, SlotId, Span, VcpuId, Vm,
};
use slat_vcpu::cpu::{Core, Program, Step};
use slat_vcpu::nested::{Ended, L1, L1Settings, L1Vcpu, Nest, Platform};
use slat_vcpu::{Cpu, Exit, Window};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread;

/// vCPUs of the hypervisor.
pub const VCPUS: u32 = 2;

/// Pages that the inner guest uses.
const PAGES: u64 = 96;
/// The inner guest's accesses between two checks whether the world is over.
const STAY: u64 = 256;
/// About how many accesses the inner guest makes between two changes of its hypervisor.
const EDITS: u64 = 400;
/// The most steps that a kicked vCPU takes before it answers.
const LATEST: u64 = 64;
/// After the end of the world, how often an access is repeated for which the host has no room.
const ATTEMPTS: u32 = 1_000_000;

/// The VM of the hypervisor. It is told of changes, unless it `is_deaf`.
pub fn vm<F: Format>(idle: &mut Idle, stage: &Stage, is_deaf: bool) -> Arc<Vm<F, Primary>> {
    let builder = Vm::<F, _>::builder(Primary::new(stage)).vcpus(VCPUS);
    let vm = Arc::new(builder.build().expect("the arena is large"));
    if !is_deaf {
        stage.space.register(&vm);
    }
    let slot = Slot::new(SlotId(0), Gfn(0), NESTED_PAGES, NESTED);
    vm.memory().commit(idle, |tx| tx.create(slot)).unwrap();
    vm
}

/// The value that the inner guest last stored in each of its pages on this vCPU, and its next step.
struct Inner<'a> {
    stage: &'a Stage,
    vcpu: u32,
    random: Random,
    words: Vec<u64>,
    left: u64,
    /// The guest only checks its pages, beginning with the last, and stores nothing.
    looks: bool,
}

impl Program for Inner<'_> {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        if self.left == 0 {
            return Ok(Step::Stop);
        }
        // After a fault the same access runs again. The guest keeps no state before the access is done.
        let mut random = self.random.clone();
        let page = if self.looks { self.left - 1 } else { random.below(PAGES) };
        let at = Gfn(page).gpa() + page * 8 + u64::from(self.vcpu) * PAGE_SIZE / 2;
        let word = &mut self.words[page as usize];
        if !self.looks && random.one_in(2) {
            let next = random.0.u64(..);
            core.store(at, &next.to_le_bytes())?;
            *word = next;
        } else {
            let mut found = [0; 8];
            core.load(at, &mut found)?;
            let (found, expected) = (u64::from_le_bytes(found), *word);
            if found != expected {
                self.stage
                    .wrong(|| format!("the inner guest reads {found:x} instead of {expected:x} at {at}"));
            }
        }
        self.random = random;
        self.left -= 1;
        Ok(Step::Next)
    }
}

/// The hypervisor's machine, as one of its vCPUs sees it.
struct Machine<'a> {
    stage: &'a Stage,
    /// Memory that the hypervisor does not have yet.
    memory: &'a Mutex<Span<Gfn>>,
    attempts: u32,
}

impl Platform for Machine<'_> {
    type Error = ();

    fn exit(&mut self, _: &mut Idle, exit: Exit) -> Result<(), ()> {
        match exit {
            Exit::Stopped => Ok(()),
            // The group can evict nothing at the moment: other threads evict its pages, or have just used them.
            Exit::Failed(_, FaultError::Host(HostError::NoMemory)) if self.attempts > 0 => {
                self.attempts -= u32::from(self.stage.is_over());
                thread::yield_now();
                Ok(())
            }
            exit => {
                self.stage.wrong(|| format!("the hypervisor meets {exit:?}"));
                Err(())
            }
        }
    }

    fn memory(&mut self, _: &mut Idle) -> Result<Span<Gfn>, ()> {
        let mut all = self.memory.lock().unwrap();
        let part = Span::sized(all.start, Level::M2.pages().min(all.len()));
        all.start = part.end;
        if part.is_empty() { Err(()) } else { Ok(part) }
    }

    fn no_memory(&mut self) {
        self.stage.wrong(|| "no memory for shadows".into());
    }
}

/// Runs these vCPUs until the meddlers are done. In the end the host moves all memory between two checks of it.
pub fn run<F: Nest>(stage: &Stage, vm: &Vm<F, Primary>, window: Window, vcpus: Range<u32>) {
    let settings = L1Settings { steps: EDITS, seed: stage.seed, late: LATEST, ..L1Settings::default() };
    let l1 = L1::new(VCPUS, settings);
    let memory = Mutex::new(Span::new(Gfn(0), Gfn(NESTED_PAGES)));
    let machine = || Machine { stage, memory: &memory, attempts: ATTEMPTS };
    let cpu = |id: u32| {
        let late = stage.seed << 8 ^ 9 ^ u64::from(id) << 56;
        L1Vcpu::new(
            &l1,
            id,
            Cpu::new(vm.vcpu(VcpuId(id)).unwrap(), window).untimed().answering_late(late, LATEST),
        )
    };
    thread::scope(|scope| {
        for id in vcpus {
            let (machine, vcpu) = (machine(), cpu(id));
            scope.spawn(move || run_on(stage, id, vcpu, machine));
        }
    });
    let mut idle = Idle::take().expect("the thread is this function's own");
    let _ = cpu(0).check_all(&mut idle, &mut machine());
    if l1.counts().mistakes() > 0 {
        stage.wrong(|| format!("its hypervisor says: {:?}", l1.counts()));
    }
}

/// The same for one vCPU.
fn run_on<F: Nest>(stage: &Stage, id: u32, mut vcpu: L1Vcpu<'_, '_, F, Primary>, mut machine: Machine<'_>) {
    let mut idle = Idle::take().expect("the vCPU has its own thread");
    let random = Random::new(stage.seed ^ 9 << 48 ^ u64::from(id) << 32);
    let words = vec![0; PAGES as usize];
    let mut inner = Inner { stage, vcpu: id, random, words, left: 0, looks: false };
    let mut stay = |idle: &mut Idle, looks: bool| {
        (inner.looks, inner.left) = (looks, if looks { PAGES } else { STAY });
        vcpu.run(idle, &mut machine, &mut inner) == Ok(Ended::Stopped)
    };
    let mut goes_on = stay(&mut idle, false);
    // Without memory for more tables, the vCPU rests.
    while goes_on && !stage.is_over() {
        goes_on = stay(&mut idle, false);
    }
    if goes_on && stay(&mut idle, true) {
        with_room(stage.space.migrate(&mut idle, Span::sized(NESTED, NESTED_PAGES * PAGE_SIZE)));
        stay(&mut idle, true);
    }
}
