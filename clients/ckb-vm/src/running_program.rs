//! A program on a ckb-vm machine, and its system calls: the same code for each kind of memory.

use crate::run;
use crate::slat_memory::SlatMemory;
use ckb_vm::cost_model::estimate_cycles;
use ckb_vm::machine::VERSION2;
use ckb_vm::memory::{FLAG_DIRTY, FLAG_EXECUTABLE};
use ckb_vm::registers::{A0, A1, A2, A7};
use ckb_vm::{Bytes, CoreMachine, DefaultCoreMachine, DefaultMachine, DefaultMachineBuilder, Error};
use ckb_vm::{FlatMemory, ISA_A, ISA_IMC, Memory, RISCV_MAX_MEMORY, SparseMemory, SupportMachine, Syscalls};
use ckb_vm::{RISCV_PAGESIZE, WXorXMemory};
use std::iter::empty;

/// ckb-vm's flat memory, with its own check of write XOR execute.
pub type Flat = WXorXMemory<FlatMemory<u64>>;
/// ckb-vm's sparse memory, allocated page by page, with the same check.
pub type Sparse = WXorXMemory<SparseMemory<u64>>;

type Core<M> = DefaultCoreMachine<u64, M>;

/// A memory, and the run loop of machines with it.
pub trait Runs: Memory<REG = u64> + Sized {
    fn run(machine: &mut DefaultMachine<Core<Self>>) -> Result<i8, Error>;
}

impl Runs for SlatMemory {
    fn run(machine: &mut DefaultMachine<Core<Self>>) -> Result<i8, Error> {
        run::run(machine)
    }
}

impl Runs for Flat {
    fn run(machine: &mut DefaultMachine<Core<Self>>) -> Result<i8, Error> {
        machine.run()
    }
}

impl Runs for Sparse {
    fn run(machine: &mut DefaultMachine<Core<Self>>) -> Result<i8, Error> {
        machine.run()
    }
}

const FILL: u64 = 1000;
const RIGHTS: u64 = 1001;

/// Ends the run at a call of `programs/guest.h`: [`Guest::run_until`] answers the call outside the guest.
struct Calls;

impl<M: Memory<REG = u64>> Syscalls<Core<M>> for Calls {
    fn initialize(&mut self, _: &mut Core<M>) -> Result<(), Error> {
        Ok(())
    }

    fn ecall(&mut self, machine: &mut Core<M>) -> Result<bool, Error> {
        if matches!(machine.registers()[A7], FILL | RIGHTS) { Err(Error::Yield) } else { Ok(false) }
    }
}

/// The end of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    Exited(i8),
    Failed(Error),
    /// The guest has used up its cycles.
    Stopped,
}

/// The complete state of a guest.
#[derive(Clone, PartialEq, Eq)]
pub struct State {
    pub registers: Vec<u64>,
    pub pc: u64,
    pub cycles: u64,
    pub reservation: u64,
    pub memory: Bytes,
    pub flags: Vec<u8>,
}

/// A running program.
pub struct Guest<M: Runs> {
    pub machine: DefaultMachine<Core<M>>,
}

impl<M: Runs> Guest<M> {
    /// An empty machine.
    pub fn empty() -> Self {
        let core = Core::<M>::new_with_memory(ISA_IMC | ISA_A, VERSION2, u64::MAX, RISCV_MAX_MEMORY);
        let builder = DefaultMachineBuilder::new(core).instruction_cycle_func(Box::new(estimate_cycles));
        Self { machine: builder.syscall(Box::new(Calls)).build() }
    }

    /// A machine at the beginning of a program, with the program's argument.
    pub fn load(program: &Bytes, which: u64) -> Result<Self, Error> {
        let mut guest = Self::empty();
        guest.machine.load_program(program, empty())?;
        guest.machine.set_register(A0, which);
        Ok(guest)
    }

    /// Runs the program until it exits, fails, or has run this many cycles since its beginning.
    pub fn run_until(&mut self, cycles: u64) -> End {
        self.machine.inner_mut().set_max_cycles(cycles);
        loop {
            match M::run(&mut self.machine) {
                Ok(code) => return End::Exited(code),
                Err(Error::CyclesExceeded) => return End::Stopped,
                Err(Error::Yield) => {
                    if let Err(error) = self.answer() {
                        return End::Failed(error);
                    }
                }
                Err(error) => return End::Failed(error),
            }
        }
    }

    /// Answers the guest's call.
    fn answer(&mut self) -> Result<(), Error> {
        let [call, addr, value, seed] = [A7, A0, A1, A2].map(|register| self.machine.registers()[register]);
        let (memory, page) = (self.machine.memory_mut(), addr / RISCV_PAGESIZE as u64);
        match (call, value) {
            (FILL, bytes) => {
                let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                let mut next = || {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    random as u8
                };
                memory.store_bytes(addr, &(0..bytes).map(|_| next()).collect::<Vec<_>>())?;
            }
            (_, 0) => memory.clear_flag(page, FLAG_EXECUTABLE)?,
            _ => memory.set_flag(page, FLAG_EXECUTABLE)?,
        }
        self.machine.set_register(A0, 0);
        Ok(())
    }

    /// The state of the stopped guest.
    pub fn state(&mut self) -> Result<State, Error> {
        let (registers, pc) = (self.machine.registers().to_vec(), *self.machine.pc());
        let cycles = self.machine.cycles();
        let memory = self.machine.memory_mut();
        let bytes = memory.load_bytes(0, RISCV_MAX_MEMORY as u64)?;
        let pages = 0..memory.memory_pages() as u64;
        let flags =
            pages.map(|page| Ok(memory.fetch_flag(page)? & !FLAG_DIRTY)).collect::<Result<_, Error>>()?;
        Ok(State { registers, pc, cycles, reservation: *memory.lr(), memory: bytes, flags })
    }

    /// The pages that were written since the machine was made, or since the last cleaning.
    pub fn dirty(&mut self) -> Result<Vec<u64>, Error> {
        let memory = self.machine.memory_mut();
        let pages = (0..memory.memory_pages() as u64).map(|page| Ok((page, memory.fetch_flag(page)?)));
        let dirty = pages.filter(|page| page.as_ref().is_ok_and(|(_, flags)| flags & FLAG_DIRTY != 0));
        dirty.map(|page| page.map(|(page, _)| page)).collect()
    }
}

impl State {
    /// The first difference of two states, in words.
    pub fn differs(&self, other: &Self) -> Option<String> {
        let register = self.registers.iter().zip(&other.registers).position(|(a, b)| a != b);
        let byte = self.memory.iter().zip(&other.memory).position(|(a, b)| a != b);
        let flags = self.flags.iter().zip(&other.flags).position(|(a, b)| a != b);
        if let Some(register) = register {
            return Some(format!("register x{register}"));
        }
        if let Some(byte) = byte {
            return Some(format!("memory from {byte:#x} on"));
        }
        if let Some(page) = flags {
            return Some(format!("the flags of page {page:#x}"));
        }
        if self.cycles != other.cycles {
            return Some(format!("cycles: {} and {}", self.cycles, other.cycles));
        }
        (self != other).then(|| "pc or reservation".into())
    }
}
