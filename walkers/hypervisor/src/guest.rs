//! The loop around the guest: in, out, why, and in again. This is where slat is wired to a processor.

use crate::Error;
use crate::chores::Chores;
use crate::linux::Start;
use crate::memory::{Layout, Machine};
use crate::options::{Options, Wanted};
use crate::{power, record};
use alloc::format;
use slat::{Done, Fault, Format, Gfn, Idle, Level, Span, Translations, Vcpu};
use slat_walker_x86::cpu;
use slat_walker_x86::guest::{Exit, MemoryFault, Processor, Registers};
use slat_walker_x86::println;

/// One guest with one processor.
pub struct Guest<'vm, P, F: Format> {
    vcpu: Vcpu<'vm, F, Machine>,
    processor: P,
    registers: Registers,
    options: Options,
    layout: Layout,
    chores: Chores,
    faults: u64,
}

/// The processor's cached translations, as slat asks for them to be forgotten. Both makers can forget all that a guest
/// has cached, and little that is finer: INVEPT has no range, INVLPGA takes guest-virtual addresses.
struct Cached<'p, P>(&'p mut P);

impl<P: Processor> Translations for Cached<'_, P> {
    fn flush_all(&mut self) {
        self.0.flush();
    }

    fn flush(&mut self, _: Span<Gfn>) {
        self.0.flush();
    }
}

impl<'vm, P: Processor, F: Format> Guest<'vm, P, F> {
    /// A guest that has run nothing yet. Writes to `power` end it.
    pub fn new(
        vcpu: Vcpu<'vm, F, Machine>,
        start: &Start,
        options: Options,
        layout: Layout,
        power: Option<u16>,
    ) -> Self {
        let mut processor = P::new(&start.mode);
        processor.exit_on_interrupt(options.chores != Wanted::default());
        if let Some(port) = power {
            processor.exit_on_port_write(port);
        }
        let chores = Chores::new(options.chores, layout);
        Self { vcpu, processor, registers: start.registers, options, layout, chores, faults: 0 }
    }

    /// Runs the guest until it is done with the machine.
    pub fn run(mut self, idle: &mut Idle) -> Result<(), Error> {
        loop {
            // From here until the guard is dropped slat takes this vCPU to be using the tables.
            let inside = self.vcpu.enter(idle, &mut Cached(&mut self.processor));
            self.processor.set_root::<F>(inside.root());
            let exit = self.processor.run(&mut self.registers);
            drop(inside);
            match exit {
                Exit::Memory(fault) => self.fault(idle, fault)?,
                Exit::Interrupt => self.chores.run(self.vcpu.vm(), idle)?,
                Exit::PortWrite { value, .. } if power::is_the_end(value) => break,
                // SAFETY: the guest may write to all ports, and would have written this to this one.
                Exit::PortWrite { port, value } => unsafe { cpu::outw(port, value as u16) },
                // Where there is no ACPI, this is how it resets the machine.
                Exit::Shutdown => break,
                exit => return Err(format!("{exit:x?} at {:#x}", self.processor.rip()).into()),
            }
        }
        println!("report: {} faults", self.faults);
        self.chores.report(self.vcpu.vm());
        Ok(())
    }

    /// The tables did not let the guest through: slat makes them, or knows that there is nothing.
    fn fault(&mut self, idle: &mut Idle, fault: MemoryFault) -> Result<(), Error> {
        let MemoryFault { gpa, access, .. } = fault;
        self.faults += 1;
        if self.options.record && self.layout.ram().contains(gpa.gfn()) {
            record::tell(gpa, access);
        }
        let done = self.vcpu.fault(idle, Fault { gpa, access })?;
        match done {
            Done::Mmio => {
                Err(format!("{fault:x?}: there is no memory; at {:#x}", self.processor.rip()).into())
            }
            Done::Mapped(Level::K4) if self.options.around > 1 => {
                let first = Gfn(gpa.gfn().0 & !(self.options.around - 1));
                // As far as there is memory: only the frame itself had to be mapped.
                let _ = self.vcpu.prefault(idle, Span::sized(first, self.options.around));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
