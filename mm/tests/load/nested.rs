//! A guest of a guest: a hypervisor on two vCPUs of a third VM keeps tables in memory that the host takes, moves, merges, shares and
//! balances as the other guests' memory, and so does what runs on them. Both vCPUs run the inner guest on the same tables: the faults and
//! flushes of one meet those of the other. Each has a word of its own in each page. Nothing there is thrown away: each word is what was
//! stored last.

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
/// Its accesses until it looks whether it is over.
const STAY: u64 = 256;
/// Its accesses between two changes of its hypervisor's, about.
const EDITS: u64 = 400;
/// Steps that a kicked vCPU takes before it answers, at most.
const LATEST: u64 = 64;
/// An access that the host has no room for is made so often again when all is over.
const ATTEMPTS: u32 = 1_000_000;

/// The VM of the hypervisor, which is told of changes.
pub fn vm<F: Format>(idle: &mut Idle, stage: &Stage, sabotaged: bool) -> Arc<Vm<F, Primary>> {
    let builder = Vm::<F, _>::builder(Primary::new(stage)).vcpus(VCPUS);
    let builder = if sabotaged { builder.sabotage_reverse_map() } else { builder };
    let vm = Arc::new(builder.build().expect("the arena is large"));
    stage.space.register(&vm);
    let slot = Slot::new(SlotId(0), Gfn(0), NESTED_PAGES, NESTED);
    vm.slots().commit(idle, |tx| tx.create(slot)).unwrap();
    vm
}

/// What the inner guest stored last in each of its pages on this vCPU, and what it does next.
struct Inner<'a> {
    stage: &'a Stage,
    vcpu: u32,
    random: Random,
    words: Vec<u64>,
    left: u64,
    /// It looks at each of its pages, from the last one on, and stores no more.
    looks: bool,
}

impl Program for Inner<'_> {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        if self.left == 0 {
            return Ok(Step::Stop);
        }
        // A fault runs the same access again: nothing is kept before it is done.
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

/// The hypervisor's machine, to one of its vCPUs.
struct Machine<'a> {
    stage: &'a Stage,
    /// Memory that it has not got yet.
    memory: &'a Mutex<Span<Gfn>>,
    attempts: u32,
}

impl Platform for Machine<'_> {
    type Error = ();

    fn exit(&mut self, _: &mut Idle, exit: Exit) -> Result<(), ()> {
        match exit {
            Exit::Stopped => Ok(()),
            // Nothing can go of the group's for the moment: other threads have it in hand, or have just used it.
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

/// Runs these vCPUs until the meddlers are done. In the end the host moves all that there is, between two looks at all of it.
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
    let mut idle = Idle::take().expect("a thread of its own");
    let _ = cpu(0).check_all(&mut idle, &mut machine());
    if l1.counts().mistakes() > 0 {
        stage.wrong(|| format!("its hypervisor says: {:?}", l1.counts()));
    }
}

/// The same of one vCPU.
fn run_on<F: Nest>(stage: &Stage, id: u32, mut vcpu: L1Vcpu<'_, '_, F, Primary>, mut machine: Machine<'_>) {
    let mut idle = Idle::take().expect("a thread of its own");
    let random = Random::new(stage.seed ^ 9 << 48 ^ u64::from(id) << 32);
    let words = vec![0; PAGES as usize];
    let mut inner = Inner { stage, vcpu: id, random, words, left: 0, looks: false };
    let mut stay = |idle: &mut Idle, looks: bool| {
        (inner.looks, inner.left) = (looks, if looks { PAGES } else { STAY });
        vcpu.run(idle, &mut machine, &mut inner) == Ok(Ended::Stopped)
    };
    let mut goes_on = stay(&mut idle, false);
    // Without memory for more tables it rests.
    while goes_on && !stage.is_over() {
        goes_on = stay(&mut idle, false);
    }
    if goes_on && stay(&mut idle, true) {
        with_room(stage.space.migrate(&mut idle, Span::sized(NESTED, NESTED_PAGES * PAGE_SIZE)));
        stay(&mut idle, true);
    }
}
