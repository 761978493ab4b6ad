//! A copy of a running machine, made by harvests: any thread calls [`Snapshot::harvest`] while the guest runs, as often
//! as it wants. Then the guest stops, and the last harvest is short.

use crate::ram::{RAM, Ram};
use crate::run::Machine;
use ckb_vm::{CoreMachine, Error, Memory, SupportMachine};
use slat::{DirtyError, Idle, PAGE_SIZE, Vm, table::formats::Ept4};
use std::collections::BTreeMap;

/// The pages that were written since the machine was made and, after it has [stopped](Self::stop), the processor's
/// state.
#[derive(Clone, Default)]
pub struct Snapshot {
    pages: BTreeMap<u64, Box<[u8]>>,
    flags: Vec<u8>,
    registers: Vec<u64>,
    pc: u64,
    cycles: u64,
    reservation: u64,
}

impl Snapshot {
    /// Copies the pages that were written since the last harvest, and returns their number. While the guest runs: the
    /// log has a store again that the guest makes after its answer to the harvest's flush, whether or not this copy has
    /// it.
    pub fn harvest(&mut self, vm: &Vm<Ept4, Ram>, idle: &mut Idle) -> Result<u64, DirtyError> {
        let harvest = vm.memory().harvest(idle, RAM)?;
        for page in harvest.iter().skip(usize::from(mistake!(PageSkipped))) {
            let mut copy = vec![0; PAGE_SIZE as usize];
            // SAFETY: the page is in RAM, and `copy` has room for it.
            unsafe { vm.host().page(page.page).copy_to_nonoverlapping(copy.as_mut_ptr(), copy.len()) };
            self.pages.insert(page.page, copy.into());
        }
        let pages = harvest.pages();
        harvest.commit();
        Ok(pages)
    }

    /// Makes the last harvest of a machine that has stopped, and saves the processor's state.
    pub fn stop(&mut self, machine: &mut Machine) -> Result<u64, Error> {
        let vm = machine.memory().vm.clone();
        let mut idle = Idle::take().ok_or(Error::Unexpected("a guest runs on this thread".into()))?;
        let pages = self.harvest(&vm, &mut idle).map_err(|error| Error::External(error.to_string()))?;
        let memory = machine.memory_mut();
        self.flags = (0..memory.memory_pages() as u64)
            .map(|page| memory.fetch_flag(page))
            .collect::<Result<_, _>>()?;
        self.reservation = *memory.lr();
        (self.registers, self.pc, self.cycles) =
            (machine.registers().to_vec(), *machine.pc(), machine.cycles());
        Ok(pages)
    }

    /// Gives a fresh machine the state in which the other one stopped.
    pub fn restore(&self, machine: &mut Machine) -> Result<(), Error> {
        for (&page, bytes) in &self.pages {
            machine.memory_mut().store_bytes(page * PAGE_SIZE, bytes)?;
        }
        for (page, &flags) in (0..).zip(&self.flags) {
            machine.memory_mut().set_flag(page, flags)?;
        }
        machine.memory_mut().set_lr(&self.reservation);
        (0..).zip(&self.registers).for_each(|(register, &value)| machine.set_register(register, value));
        machine.update_pc(self.pc);
        machine.commit_pc();
        machine.set_cycles(self.cycles);
        Ok(())
    }
}
