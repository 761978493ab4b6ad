//! The loop of an emulator on slat: it enters the guest, exits when an access misses the TLB, serves the fault, and
//! enters again.

use crate::slat_memory::SlatMemory;
use crate::tlb::{NO_ENTRY, Tlb};
use ckb_vm::decoder::{Decoder, build_decoder};
use ckb_vm::instructions::{Rtype, execute};
use ckb_vm::{CoreMachine, DefaultCoreMachine, DefaultMachine, Error};
use ckb_vm::{RISCV_GENERAL_REGISTER_NUMBER, SupportMachine};
use slat::{Access, FaultError, Gfn, HostError, Idle, InGuest, Mapping, Next, Span, Translations, VcpuId};

/// An unmodified ckb-vm machine with this memory.
pub type Machine = DefaultMachine<DefaultCoreMachine<u64, SlatMemory>>;

/// This processor's caches, which a flush empties: translations, and instructions decoded from executable pages.
struct Caches<'a>(&'a mut Tlb, &'a mut Decoder);

impl Translations for Caches<'_> {
    fn flush_all(&mut self) {
        self.0.fill(NO_ENTRY);
        self.1.reset_instructions_cache();
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        let covered = |page: u64| gfns.contains(Gfn(page)) && !mistake!(FlushLeftOut);
        self.0
            .iter_mut()
            .filter(|entry| entry.0.into_iter().any(covered))
            .for_each(|entry| *entry = NO_ENTRY);
        self.1.reset_instructions_cache();
    }
}

/// Runs the guest until it exits, fails, or has used up its cycles: ckb-vm's `DefaultMachine::run`, with faults.
pub fn run(machine: &mut Machine) -> Result<i8, Error> {
    let mut idle = Idle::take().ok_or(Error::Unexpected("a guest runs on this thread".into()))?;
    let vm = machine.memory().vm.clone();
    let mut vcpu = vm.vcpu(VcpuId(0)).ok_or(Error::Unexpected("another thread runs this guest".into()))?;
    let mut decoder = build_decoder::<u64>(machine.isa(), machine.version());
    machine.set_running(true);
    loop {
        let guest = vcpu.enter(&mut idle, &mut Caches(&mut machine.memory_mut().tlb, &mut decoder)).poll();
        let exit = stay(machine, &mut decoder, guest);
        let Some(fault) = machine.memory_mut().missed.take() else {
            machine.memory_mut().tlb.fill(NO_ENTRY);
            return exit.map(|()| machine.exit_code());
        };
        machine.memory_mut().refused = match vcpu.fault(&mut idle, fault) {
            Ok(Next::Resume(_)) => {
                let mapped = vm.memory().translate(&mut idle, fault.gpa.gfn());
                mapped.inspect(|mapped| fill(machine.memory_mut(), mapped));
                None
            }
            Ok(_) => Some(Error::MemOutOfBound), // there is no memslot
            Err(FaultError::Host(HostError::Fault)) => Some(Error::MemWriteOnExecutablePage),
            Err(error) => Some(Error::External(error.to_string())),
        };
    }
}

/// Caches a translation, for the accesses that it allows.
fn fill(memory: &mut SlatMemory, Mapping { gfns, leaf, .. }: &Mapping) {
    let allows = |access| leaf.perms.allows(access) || mistake!(LoadAllowsStore) && access == Access::Write;
    let pages = [Access::Read, Access::Write, Access::Fetch]
        .map(|access| if allows(access) { gfns.start.0 } else { u64::MAX });
    let at = gfns.start.0 as usize % memory.tlb.len();
    memory.tlb[at] = (pages, memory.vm.host().page(leaf.pfn.0));
}

/// Runs in the guest. A flush waits until this loop answers it or leaves the guest, so the loop checks between
/// instructions.
fn stay(machine: &mut Machine, decoder: &mut Decoder, mut guest: InGuest<'_>) -> Result<(), Error> {
    machine.memory_mut().in_guest = true;
    let exit = loop {
        if guest.kicked() {
            guest.answer(&mut Caches(&mut machine.memory_mut().tlb, decoder));
        }
        match step(machine, decoder) {
            Ok(()) if machine.running() => {}
            exit => break exit,
        }
    };
    machine.memory_mut().in_guest = false;
    exit
}

/// Runs one instruction. If an access misses the TLB, the instruction has no effect, and runs again.
fn step(machine: &mut Machine, decoder: &mut Decoder) -> Result<(), Error> {
    let (pc, cycles) = (*machine.pc(), machine.cycles());
    let instruction = decoder.decode(machine.memory_mut(), pc)?;
    machine.add_cycles(machine.instruction_cycle_func()(instruction))?;
    // ckb-vm's atomic instructions write their register before they store.
    let register = Rtype(instruction).rd() % RISCV_GENERAL_REGISTER_NUMBER;
    let value = machine.registers()[register];
    let done = execute(instruction, machine);
    if done.is_err() && machine.memory().missed.is_some() {
        machine.set_cycles(cycles);
        machine.update_pc(pc);
        machine.commit_pc();
        if !mistake!(RegisterKept) {
            machine.set_register(register, value);
        }
    }
    done
}
