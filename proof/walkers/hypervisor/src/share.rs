//! Two vCPUs on one processor, which runs one of them at a time.
//!
//! ```text
//!   a vCPU runs until ── HLT, PAUSE, or a tick of the machine's timer ─▶ the other's turn, if it has anything to do
//!     │ its controller's page            ▶ `local`, one for each
//!     │ an interrupt of the machine      ▶ the first vCPU, past its controller
//!     │ memory that comes late           ▶ `late`: the other's turn, until the page is there
//!     ▼ memory, ports, …                 ▶ as where a vCPU has its processor to itself (`guest`)
//! ```
//! Each vCPU keeps an ASID of its own, so the other vCPU uses none of its translations. Both report processor 0 to the
//! engine, so neither forgets translations when it comes back. A vCPU carries out missed flushes when it enters.

use crate::error::Error;
use crate::guest_loop::{After, Cpu, Guest};
use crate::instruction::{Code, Kind, Move};
use crate::local::{Command, Local};
use crate::nested::Nested;
use crate::platform::CPUS;
use crate::primary_mmu;
use alloc::format;
use core::sync::atomic::Ordering::Relaxed;
use slat::{Format, Gpa, Idle, PAGE_SIZE, Token, VcpuId};
use slat_walker_x86::cpu::ticks;
use slat_walker_x86::extended::{self, Extended};
use slat_walker_x86::interrupts::{self, Taken};
use slat_walker_x86::println;
use slat_walker_x86::processor::{Exit, Processor, Registers};

/// Period of a tick: the clock of QEMU's controller counts nanoseconds, so this is a millisecond.
const TICK: u32 = 1_000_000;
/// Number of ticks between two turns of chores.
const CHORES: u32 = 4;
/// Number of ticks after which a pending page counts as lost.
const IN_VAIN: u32 = 1000;

/// A vCPU, and its state for sharing.
struct Sharer<'g, P, F: Format> {
    cpu: Cpu<'g, P, F>,
    local: Local,
    extended: Extended,
    /// It waits for an interrupt: it halted, or has not been started.
    idle: bool,
    started: bool,
    /// The page that it waits for, and since which tick.
    waits: Option<(Token, u32)>,
    /// The next interrupt for it; and the same, if that is the machine's and not its controller's.
    offered: Option<u8>,
    external: Option<u8>,
}

/// Both, and the machine's interrupts.
pub struct Share<'g, P, F: Format> {
    guest: &'g Guest<F>,
    all: [Sharer<'g, P, F>; CPUS as usize],
    current: usize,
    ticks: u32,
    /// Pending vectors of the machine's interrupts for the first vCPU.
    external: u64,
    /// Number of switches; and number of those because a vCPU waits for a page.
    switches: u64,
    meanwhile: u64,
    /// Number of faults with a late page, and of tokens that the vCPUs have taken.
    pending: u64,
    ready: u64,
}

impl<'g, P: Processor, F: Format> Share<'g, P, F> {
    /// Makes both vCPUs: the first begins with these registers, the second waits for STARTUP.
    pub fn new(guest: &'g Guest<F>, first: P, registers: Registers) -> Result<Self, Error> {
        let second = P::started(0).ok_or("no guest of this maker's begins in real mode here")?;
        let sharer = |id: u32, processor: P, registers| -> Result<_, Error> {
            let mut cpu = Cpu::new(guest, VcpuId(id), processor, registers)?;
            if !cpu.processor.share(id) {
                return Err("no guests of this maker's share a processor here".into());
            }
            let (local, extended) = (Local::new(id), Extended::new());
            Ok(Sharer {
                cpu,
                local,
                extended,
                idle: id > 0,
                started: id == 0,
                waits: None,
                offered: None,
                external: None,
            })
        };
        let all = [sharer(0, first, registers)?, sharer(1, second, Registers::default())?];
        extended::enable();
        interrupts::begin(TICK);
        let [switches, meanwhile, pending, ready] = [0; 4];
        Ok(Self { guest, all, current: 0, ticks: 0, external: 0, switches, meanwhile, pending, ready })
    }

    /// Runs them until the guest ends.
    pub fn run(mut self, idle: &mut Idle) -> Result<(), Error> {
        self.all[self.current].extended.load();
        loop {
            self.offer();
            let current = &mut self.all[self.current];
            let exit = current.cpu.once(idle)?;
            self.look();
            let current = &mut self.all[self.current];
            match exit {
                Exit::Interrupt => self.interrupted(idle, interrupts::take())?,
                Exit::Halt => {
                    current.idle = true;
                    self.rest(idle)?;
                }
                Exit::Pause => self.switch(),
                exit => match current.cpu.handle(idle, exit)? {
                    After::Again => {}
                    After::End => break,
                    After::Controller(gpa) => self.controller(gpa)?,
                    After::Wait(token) => {
                        current.waits = Some((token, self.ticks));
                        self.pending += 1;
                        let before = self.current;
                        self.rest(idle)?;
                        self.meanwhile += u64::from(self.current != before);
                    }
                },
            }
        }
        self.guest.chores.finish(&self.guest.vm, idle)?;
        self.guest.report()?;
        self.report()
    }

    /// Prints the counts. Fails if the number of wake-ups differs from that of tokens.
    fn report(&mut self) -> Result<(), Error> {
        self.take_ready();
        let Self { switches, meanwhile, pending, ready, .. } = *self;
        let (late, host) = (&self.guest.vm.host().frames.lock().late, self.guest.vm.host());
        let (woken, kicks) = (late.woken, host.kicks.load(Relaxed));
        if woken != ready || woken != kicks {
            return Err(format!(
                "a wake-up is lost: {woken} by the engine, {kicks} by the host, {ready} tokens taken"
            )
            .into());
        }
        println!("report: {switches} switches");
        println!("report: {} pages came late", late.asked);
        println!("report: {pending} faults waited for them");
        println!("report: {meanwhile} of these beside the other vCPU");
        println!("report: {ready} tokens ready");
        self.all.iter().filter_map(|sharer| sharer.cpu.nested.as_ref()).for_each(Nested::report);
        Ok(())
    }

    /// Takes ready pages: a vCPU that waits for one continues.
    fn take_ready(&mut self) {
        for sharer in &mut self.all {
            while let Some(token) = sharer.cpu.take_ready() {
                self.ready += 1;
                sharer.waits.take_if(|(waited, _)| *waited == token);
            }
        }
    }

    /// Fires timers, and offers each vCPU its next interrupt. A vCPU with an interrupt is no longer idle.
    fn offer(&mut self) {
        self.take_ready();
        let now = ticks();
        for (sharer, is_first) in self.all.iter_mut().zip([true, false]) {
            if !sharer.started {
                continue;
            }
            sharer.local.tick(now);
            sharer.external =
                is_first.then(|| self.external.checked_ilog2()).flatten().map(|bit| bit as u8 + 32);
            let next = sharer.external.or(sharer.local.next());
            let takes = sharer.cpu.nested.as_mut().is_none_or(|nested| nested.interrupt(next.is_some()));
            sharer.offered = next.filter(|_| takes);
            sharer.cpu.processor.offer(sharer.offered);
            sharer.idle &= next.is_none();
        }
    }

    /// Notes whether the current vCPU has taken its offered interrupt.
    fn look(&mut self) {
        let current = &mut self.all[self.current];
        if let Some(vector) = current.offered.filter(|_| current.cpu.processor.offered().is_none()) {
            match current.external {
                Some(_) => self.external &= !(1 << (vector - 32)),
                None => current.local.taken(vector),
            }
            current.offered = None;
        }
    }

    /// Handles interrupts of the machine that brought the guest out.
    fn interrupted(&mut self, idle: &mut Idle, taken: Taken) -> Result<(), Error> {
        for vector in taken.devices().filter(|vector| *vector < 96) {
            self.external |= 1 << (vector - 32);
        }
        if taken.is_tick() {
            self.ticks += 1;
            primary_mmu::deliver(&self.guest.vm)?;
            for (token, since) in self.all.iter().filter_map(|sharer| sharer.waits) {
                if self.ticks - since > IN_VAIN {
                    return Err(format!("a vCPU waits in vain: {token:x?} is not ready").into());
                }
            }
            if self.ticks.is_multiple_of(CHORES) {
                self.guest.chores.run(&self.guest.vm, idle)?;
            }
            self.switch();
        }
        Ok(())
    }

    /// Switches to the other vCPU, if it has work.
    fn switch(&mut self) {
        self.offer();
        let other = 1 - self.current;
        if self.all[other].can_run() {
            self.all[self.current].extended.save();
            self.all[other].extended.load();
            self.current = other;
            self.switches += 1;
        }
    }

    /// The current vCPU is idle, or waits for a page: switches to the other one, or lets the machine sleep.
    fn rest(&mut self, idle: &mut Idle) -> Result<(), Error> {
        self.switch();
        while !self.all[self.current].can_run() {
            let taken = interrupts::wait();
            self.interrupted(idle, taken)?;
            self.switch();
        }
        Ok(())
    }

    /// Handles an access of the current vCPU to its controller.
    fn controller(&mut self, gpa: Gpa) -> Result<(), Error> {
        let (now, at) = (ticks(), gpa.0 & 0xff0);
        let logical = self.all.each_ref().map(|sharer| sharer.local.logical());
        let Sharer { cpu, local, .. } = &mut self.all[self.current];
        let vm = &self.guest.vm;
        let (rip, tables, table) = match &cpu.nested {
            Some(Nested { ours, l2: Some(l2), .. }) => (ours.rip(), ours.tables(), Some(l2.table)),
            _ => (cpu.processor.rip(), cpu.processor.tables(), None),
        };
        let in_l1 = |at: u64| match table {
            None => Some(at),
            Some(table) => {
                let leaf = vm.memory().look_l1(&table, Gpa(at)).ok()?;
                Some(leaf.gfn.gpa().0 + at % PAGE_SIZE)
            }
        };
        let code = Code { host: vm.host(), tables, in_l1: &in_l1, at: rip };
        let found = Move::of(code, &cpu.registers).ok_or_else(|| {
            format!(
                "not supported: at {rip:#x} the guest accesses {gpa:x?} of its interrupt controller by an instruction that \
                 is no 32-bit move of 64-bit code: {:02x?}",
                code.bytes()
            )
        })?;
        match &mut cpu.nested {
            Some(Nested { ours, l2: Some(_), .. }) => ours.set_rip(found.next),
            _ => cpu.processor.set_rip(found.next),
        }
        let commanded = match found.kind {
            Kind::Load(register) => {
                register.set(&mut cpu.registers, u64::from(local.read(at, now)));
                None
            }
            Kind::Store(value) => local.write(at, value, now, logical),
        };
        if let Some((command, targets)) = commanded {
            for (sharer, _) in self.all.iter_mut().zip(0..).filter(|(_, id)| targets >> id & 1 == 1) {
                sharer.hear(self.guest, command)?;
            }
        }
        Ok(())
    }
}

impl<'g, P: Processor, F: Format> Sharer<'g, P, F> {
    /// Returns whether it has work, and does not wait for a page.
    fn can_run(&self) -> bool {
        !self.idle && self.waits.is_none()
    }

    /// Handles a command of a vCPU.
    fn hear(&mut self, guest: &'g Guest<F>, command: Command) -> Result<(), Error> {
        match command {
            Command::Take(vector) => self.local.ask(vector),
            // Linux sends it twice.
            Command::Startup(page) if !self.started => {
                let mut processor =
                    P::started(page).ok_or("no guest of this maker's begins in real mode here")?;
                let id = self.cpu.id().0;
                guest.prepare(&mut processor);
                processor.share(id);
                self.cpu.processor = processor;
                (self.started, self.idle) = (true, false);
            }
            Command::Startup(_) | Command::Other => {}
        }
        Ok(())
    }
}
