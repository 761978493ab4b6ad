//! The loop around the guest: enter, exit, handle the exit, and enter again. This connects slat to a processor.

use crate::chores::Chores;
use crate::error::Error;
use crate::moves::Mover;
use crate::nested::Nested;
use crate::options::{Options, Wanted};
use crate::primary_mmu::Machine;
use crate::vcpu_clock::Clock;
use crate::{apic, identify, power, record};
use alloc::format;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use slat::entry::Go;
use slat::{
    CpuId, Emulate, Fault, Format, Gfn, Gpa, Idle, Leave, Level, Next, Prefault, Resume, Span, Token,
    Translations, Vcpu, VcpuId, Vm,
};
use slat_walker_x86::cpu;
use slat_walker_x86::println;
use slat_walker_x86::processor::{Exit, MemoryFault, Processor, Registers, WRMSR_BYTES};

/// A guest: the shared state of its processors.
pub struct Guest<F: Format> {
    /// Its memory.
    pub vm: Vm<F, Machine>,
    /// Its options.
    pub options: Options,
    /// Writes to this port end it.
    pub power: Option<u16>,
    /// The chores on its memory.
    pub chores: Chores,
    /// Number of memory faults of each of its processors.
    pub faults: [AtomicU64; 2],
}

/// One processor of a guest.
pub struct Cpu<'g, P, F: Format> {
    pub guest: &'g Guest<F>,
    pub vcpu: Vcpu<'g, F, Machine>,
    /// Its SVM state, if it may run guests of its own.
    pub nested: Option<Nested>,
    clock: Clock<'g, F>,
    /// The processor that runs it.
    pub processor: P,
    /// Its registers while it is out.
    pub registers: Registers,
}

/// Result of an exit.
pub enum After {
    /// Run the guest again.
    Again,
    /// The guest has ended.
    End,
    /// The guest, or L2, has accessed its interrupt controller at this address, which has no memory.
    Controller(Gpa),
    /// Run another vCPU, or nothing, until the page of this token is ready.
    Wait(Token),
}

/// The processor's translations, for slat's flushes. Both makers can forget all translations of a guest, and little
/// that is finer: INVEPT has no range, INVLPGA takes guest-virtual addresses. The number is the processor's: a vCPU
/// never moves to another one here; if it did, `enter` would make this forget all.
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
    /// Sets the exits of each of its processors.
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

    /// Prints the counts, in lines that begin with `report:`. Fails if the guest did not use an offered clock.
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
    /// Makes a processor that has not run yet.
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

    /// Returns its number.
    pub fn id(&self) -> VcpuId {
        self.vcpu.id()
    }

    /// Runs the guest until it ends.
    pub fn run(mut self, idle: &mut Idle) -> Result<(), Error> {
        loop {
            let exit = self.once(idle)?;
            match self.handle(idle, exit)? {
                After::Again => {}
                After::End => break,
                After::Controller(gpa) => self.write_apic(idle, gpa)?,
                After::Wait(token) => return Err(format!("{token:x?} is not to be waited for").into()),
            }
        }
        self.guest.chores.finish(&self.guest.vm, idle)?;
        self.guest.report()
    }

    /// Takes the token of a ready page for which it waited, or which was to be mapped ahead.
    pub fn take_ready(&mut self) -> Option<Token> {
        self.vcpu.take_ready()
    }

    /// Enters the guest and returns its exit.
    pub fn once(&mut self, idle: &mut Idle) -> Result<Exit, Error> {
        self.clock.write(&self.guest.vm, idle)?;
        // There are as many processors as vCPUs, or one.
        let number = CpuId(if self.guest.options.processors > 1 { self.vcpu.id().0.into() } else { 0 });
        if self.nested.as_ref().is_some_and(Nested::is_in_l2) {
            return self.run_l2(idle, number);
        }
        loop {
            // From here until the guard is dropped slat takes this vCPU to be using the tables.
            let ready = self.vcpu.enter(idle, &mut Cached(&mut self.processor, number));
            self.processor.set_root::<F>(ready.root());
            // Kicks are NMIs, which wait while the guest is out.
            let Go::In(inside, ()) = ready.go(|| ()) else { continue };
            let exit = self.processor.run(&mut self.registers);
            drop(inside);
            return Ok(exit);
        }
    }

    /// Handles an exit.
    pub fn handle(&mut self, idle: &mut Idle, exit: Exit) -> Result<After, Error> {
        match exit {
            Exit::Memory(fault) => return self.fault(idle, fault),
            Exit::Interrupt => self.guest.chores.run(&self.guest.vm, idle)?,
            // A kick only brings the guest out.
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
            // The reset of a machine without ACPI.
            Exit::RegisterWrite { register, value } => {
                if !self.clock.set(&self.guest.vm, idle, register, value)? {
                    self.processor.set_rip(self.processor.rip() - WRMSR_BYTES);
                }
            }
            Exit::Shutdown if self.guest.power.is_none() => return Ok(After::End),
            Exit::Shutdown => {
                // A write to frames that the host had taken back would be the reason.
                Mover::finish(self.guest.vm.host())?;
                return Err(format!("a triple fault at {:#x}", self.processor.rip()).into());
            }
            exit => return Err(format!("{exit:x?} at {:#x}", self.processor.rip()).into()),
        }
        Ok(After::Again)
    }

    /// Handles a memory fault: slat maps the page, or finds that there is no memory.
    fn fault(&mut self, idle: &mut Idle, fault: MemoryFault) -> Result<After, Error> {
        let MemoryFault { gpa, access, .. } = fault;
        let Guest { vm, options, faults, .. } = self.guest;
        faults[self.vcpu.id().0 as usize].fetch_add(1, Relaxed);
        if options.record && vm.host().layout.ram().contains(gpa.gfn()) {
            record::tell(gpa, access);
        }
        let done = self.vcpu.fault(idle, Fault { gpa, access })?;
        match done {
            Next::Leave(Leave::Pending(token)) => Ok(After::Wait(token)),
            Next::Emulate(Emulate::NoMemory) if gpa.gfn() == apic::PAGE => Ok(After::Controller(gpa)),
            Next::Emulate(Emulate::NoMemory | Emulate::ReadOnly) => {
                Err(format!("{fault:x?}: there is no memory; at {:#x}", self.processor.rip()).into())
            }
            Next::Resume(Resume::Mapped(Level::K4)) if options.around > 1 => {
                let first = Gfn(gpa.gfn().0 & !(options.around - 1));
                // An error can be ignored: only the frame itself had to be mapped.
                let _ = self.vcpu.prefault(idle, Span::sized(first, options.around), Prefault::OLD);
                Ok(After::Again)
            }
            _ => Ok(After::Again),
        }
    }
}
