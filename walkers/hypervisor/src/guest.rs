//! The loop around the guest: in, out, why, and in again. This is where slat is wired to a processor.

use crate::Error;
use crate::chores::Chores;
use crate::clock::Clock;
use crate::instruction::{Kind, Move};
use crate::layout::Layout;
use crate::memory::Machine;
use crate::moves::Mover;
use crate::nested::Nested;
use crate::options::{Options, Wanted};
use crate::{apic, identify, power, record, second};
use alloc::format;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use slat::{
    CpuId, Done, Fault, Format, Gfn, Go, Gpa, Idle, Level, Span, Token, Translations, Vcpu, VcpuId, Vm,
};
use slat_walker_x86::cpu;
use slat_walker_x86::guest::{Exit, MemoryFault, Processor, Registers, WRMSR_BYTES};
use slat_walker_x86::println;

/// A guest: what its processors share.
pub struct Guest<F: Format> {
    /// Its memory.
    pub vm: Vm<F, Machine>,
    /// What is wanted of it.
    pub options: Options,
    /// Writes to this port end it.
    pub power: Option<u16>,
    /// What is done to its memory.
    pub chores: Chores,
    /// How often each of its processors has met memory without a translation.
    pub faults: [AtomicU64; 2],
}

/// One processor of a guest.
pub struct Cpu<'g, P, F: Format> {
    pub guest: &'g Guest<F>,
    pub vcpu: Vcpu<'g, F, Machine>,
    /// What it has of SVM, where it may run guests of its own.
    pub nested: Option<Nested>,
    clock: Clock<'g, F>,
    /// What runs it.
    pub processor: P,
    /// What it has in its registers while it is out.
    pub registers: Registers,
}

/// What comes after an exit.
pub enum After {
    /// The guest, again.
    Again,
    /// The guest is done with the machine.
    End,
    /// It has touched its interrupt controller, for which there is no memory.
    Controller(MemoryFault),
    /// Another vCPU, or nothing, until the page of this token is there.
    Wait(Token),
}

/// The processor's cached translations, as slat asks for them to be forgotten. Both makers can forget all that a guest
/// has cached, and little that is finer: INVEPT has no range, INVLPGA takes guest-virtual addresses. The number is the
/// processor's: a vCPU never moves to another one here; if it did, `enter` would have this forget all.
pub struct Cached<'p, P>(pub &'p mut P, pub CpuId);

impl<P: Processor> Translations for Cached<'_, P> {
    fn cpu(&self) -> CpuId {
        self.1
    }

    fn flush_all(&mut self) {
        self.0.flush();
    }

    fn flush(&mut self, _: Span<Gfn>) {
        self.0.flush();
    }
}

impl<F: Format> Guest<F> {
    /// What each processor of it is asked to bring out.
    pub fn prepare(&self, processor: &mut impl Processor) {
        processor.exit_on_interrupt(self.options.chores != Wanted::default());
        if self.options.svm {
            processor.exit_on_svm();
        }
        if let Some(port) = self.power {
            processor.exit_on_port_write(port);
        }
        if self.options.processors > 1 {
            processor.exit_on_kick();
            processor.exit_on_identify();
        }
    }

    /// Says what has happened, in lines that begin with `report:`. An error where a clock that was offered was not taken.
    pub fn report(&self) -> Result<(), Error> {
        let faults = self.faults.each_ref().map(|faults| faults.load(Relaxed));
        println!("report: {} faults", faults.iter().sum::<u64>());
        if self.options.cpus > 1 {
            for (cpu, faults) in faults.iter().enumerate() {
                println!("report: {faults} faults of CPU {cpu}");
            }
            println!("report: {} kicks", self.vm.host().kicks.load(Relaxed));
        }
        self.chores.report(&self.vm);
        // An image is offered clocks, and need not take them.
        if self.options.image.1 > 0 { Ok(()) } else { self.vm.host().clocks.report(self.options.cpus) }
    }
}

impl<'g, P: Processor, F: Format> Cpu<'g, P, F> {
    /// A processor that has run nothing yet.
    pub fn new(
        guest: &'g Guest<F>,
        id: VcpuId,
        mut processor: P,
        registers: Registers,
    ) -> Result<Self, Error> {
        let vcpu = guest.vm.vcpu(id).ok_or("the vCPU is taken")?;
        guest.prepare(&mut processor);
        let nested = guest.options.svm.then(|| Nested::new(id, guest.options.chores.mistake));
        Ok(Self { guest, vcpu, nested, clock: Clock::new(id.0), processor, registers })
    }

    /// Its number.
    pub fn id(&self) -> VcpuId {
        self.vcpu.id()
    }

    /// Runs the guest until it is done with the machine.
    pub fn run(mut self, idle: &mut Idle) -> Result<(), Error> {
        loop {
            let exit = self.once(idle)?;
            match self.handle(idle, exit)? {
                After::Again => {}
                After::End => break,
                After::Controller(fault) => self.write_apic(idle, fault.gpa)?,
                After::Wait(token) => return Err(format!("{token:x?} is not to be waited for").into()),
            }
        }
        self.guest.chores.finish(&self.guest.vm, idle)?;
        self.guest.report()
    }

    /// A page that it waited for, or that was to be mapped ahead, and that is there now.
    pub fn take_ready(&mut self) -> Option<Token> {
        self.vcpu.take_ready()
    }

    /// In, and out again.
    pub fn once(&mut self, idle: &mut Idle) -> Result<Exit, Error> {
        self.clock.write(&self.guest.vm, idle)?;
        // Processors are as many as vCPUs, or one.
        let number = CpuId(if self.guest.options.processors > 1 { self.vcpu.id().0.into() } else { 0 });
        if self.nested.as_ref().is_some_and(Nested::is_in_l2) {
            return self.run_l2(idle, number);
        }
        loop {
            // From here until the guard is dropped slat takes this vCPU to be using the tables.
            let ready = self.vcpu.enter(idle, &mut Cached(&mut self.processor, number));
            self.processor.set_root::<F>(ready.root());
            // Kicks are NMIs, and wait whenever the guest is not in.
            let Go::In(inside, ()) = ready.go(|| ()) else { continue };
            let exit = self.processor.run(&mut self.registers);
            drop(inside);
            return Ok(exit);
        }
    }

    /// Does what the exit asks for.
    pub fn handle(&mut self, idle: &mut Idle, exit: Exit) -> Result<After, Error> {
        match exit {
            Exit::Memory(fault) => return self.fault(idle, fault),
            Exit::Interrupt => self.guest.chores.run(&self.guest.vm, idle)?,
            // Being out of the guest is all that was asked for.
            Exit::Kick => {}
            Exit::Identify => {
                let shares = self.guest.options.is_shared().then(|| self.id());
                let has_svm = self.guest.options.svm;
                identify::answer(&mut self.registers, self.processor.state().1, shares, has_svm);
            }
            Exit::Nested => return self.l2_exit(idle),
            Exit::Other { code, info } if self.l1_exit(idle, code, info)? => {}
            Exit::PortWrite { port: power::VERDICT, value } => {
                power::judge(value)?;
                return Ok(After::End);
            }
            Exit::PortWrite { value, .. } if power::is_the_end(value) => return Ok(After::End),
            // SAFETY: the guest may write to all ports, and would have written this to this one.
            Exit::PortWrite { port, value } => unsafe { cpu::outw(port, value as u16) },
            // How it resets the machine where there is no ACPI.
            Exit::RegisterWrite { register, value } => {
                if !self.clock.set(&self.guest.vm, idle, register, value)? {
                    self.processor.set_rip(self.processor.rip() - WRMSR_BYTES);
                }
            }
            Exit::Shutdown if self.guest.power.is_none() => return Ok(After::End),
            Exit::Shutdown => {
                // Where it wrote to frames that the host had taken back, that is why.
                Mover::finish(self.guest.vm.host())?;
                return Err(format!("a triple fault at {:#x}", self.processor.rip()).into());
            }
            exit => return Err(format!("{exit:x?} at {:#x}", self.processor.rip()).into()),
        }
        Ok(After::Again)
    }

    /// The tables did not let the guest through: slat makes them, or knows that there is nothing.
    fn fault(&mut self, idle: &mut Idle, fault: MemoryFault) -> Result<After, Error> {
        let MemoryFault { gpa, access, .. } = fault;
        let Guest { vm, options, faults, .. } = self.guest;
        faults[self.vcpu.id().0 as usize].fetch_add(1, Relaxed);
        if options.record && vm.host().layout.ram().contains(gpa.gfn()) {
            record::tell(gpa, access);
        }
        let done = self.vcpu.fault(idle, Fault { gpa, access })?;
        match done {
            Done::Pending => {
                let token = self.vcpu.pending_token().ok_or("a page is pending, and has no token")?;
                Ok(After::Wait(token))
            }
            Done::Mmio if gpa.gfn() == apic::PAGE => Ok(After::Controller(fault)),
            Done::Mmio => {
                Err(format!("{fault:x?}: there is no memory; at {:#x}", self.processor.rip()).into())
            }
            Done::Mapped(Level::K4) if options.around > 1 => {
                let first = Gfn(gpa.gfn().0 & !(options.around - 1));
                // As far as there is memory: only the frame itself had to be mapped.
                let _ = self.vcpu.prefault(idle, Span::sized(first, options.around));
                Ok(After::Again)
            }
            _ => Ok(After::Again),
        }
    }

    /// The guest writes to its interrupt controller, and has not started its second processor yet.
    fn write_apic(&mut self, idle: &mut Idle, gpa: Gpa) -> Result<(), Error> {
        let rip = self.processor.rip();
        let found =
            Move::at(rip, self.processor.tables(), self.guest.vm.host(), &self.registers).and_then(|found| {
                if let Kind::Store(value) = found.kind { Some((found.next, value)) } else { None }
            });
        let (next, value) = found.ok_or_else(|| format!("no plain store to {gpa:x?}, at {rip:#x}"))?;
        self.processor.set_rip(next);
        match apic::Write::of(gpa, value) {
            apic::Write::Init => {}
            apic::Write::Startup(page) => {
                second::start(page);
                self.guest.vm.slots().commit(idle, |tx| {
                    tx.delete(Layout::apic().id)?;
                    tx.create(Layout::apic())
                })?;
            }
            apic::Write::Other => apic::write(gpa, value),
        }
        Ok(())
    }
}
