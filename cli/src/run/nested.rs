//! `--nested`: the traces run in L2, a guest of the guest. L1, its hypervisor, runs on the machine's vCPUs and keeps
//! L2's tables in its own memory. It changes them at random ([`slat_vcpu::nested`]).

use super::args::NestedArgs;
use super::guest_vm::Machine;
use crate::error::Error;
use slat::{Format, Gfn, Idle, PAGE_SIZE, Span, VcpuId};
use slat_mm::HostView;
use slat_vcpu::guest::{Layout, Replay};
use slat_vcpu::nested::{Ended, L1, L1Counts, L1Settings, L1Vcpu, Mistake, Nest, Platform};
use slat_vcpu::{Cpu, Exit};
use std::io::Write;

impl NestedArgs {
    /// Builds L1, if `--nested` is set.
    pub fn l1<F: Nest>(&self, vcpus: u32, seed: u64) -> Option<L1<F>> {
        let mistake = self.sabotage_l1_flushes.then_some(Mistake::FlushesIgnored);
        let steps = self.l1_edits.unwrap_or(5000);
        let settings = L1Settings { steps, seed, mistake, late: 64, ..L1Settings::default() };
        self.nested.then(|| L1::new(vcpus, settings))
    }
}

/// The guest of one vCPU that replays traces.
pub enum Runs<'r, 'vm, F: Nest, H: slat::Host> {
    /// The machine's own guest.
    Own(Box<Cpu<'vm, F, H>>),
    /// L2.
    L2(Box<L1Vcpu<'r, 'vm, F, H>>),
}

impl<'r, 'vm, F: Nest, H: slat::Host> Runs<'r, 'vm, F, H> {
    /// Wraps a vCPU, with L1 where `--nested` is set.
    pub fn new(cpu: Cpu<'vm, F, H>, id: VcpuId, l1: Option<&'r L1<F>>, args: &NestedArgs) -> Self {
        let cpu = if args.sabotage_l2_tag { cpu.keeping_l2() } else { cpu };
        match l1 {
            Some(l1) => Self::L2(Box::new(L1Vcpu::new(l1, id.0, cpu))),
            None => Self::Own(Box::new(cpu)),
        }
    }

    /// The underlying vCPU.
    pub fn cpu(&self) -> &Cpu<'vm, F, H> {
        match self {
            Self::Own(cpu) => cpu,
            Self::L2(vcpu) => &vcpu.cpu,
        }
    }
}

/// The machine as L1 sees it from one vCPU.
pub struct Wires<'m, F: Format> {
    pub machine: &'m Machine<F>,
    pub id: VcpuId,
    /// Times that the vCPU found its ring full.
    pub ring_full: u64,
}

impl<F: Format> Platform for Wires<'_, F> {
    type Error = Error;

    fn exit(&mut self, idle: &mut Idle, exit: Exit) -> Result<(), Error> {
        match exit {
            Exit::Stopped => Ok(()),
            Exit::RingFull => {
                // Drains the ring into the slots' bitmaps for the next harvest, without waiting for that harvest.
                self.machine.vm.harvest_ring(idle, self.id)?.give_back();
                self.ring_full += 1;
                Ok(())
            }
            Exit::Mmio(fault) => {
                Err(Error::Machine(format!("no memslot at {}, where one was placed", fault.gpa)))
            }
            Exit::Failed(fault, error) => Err(self.machine.failed(fault.gpa, error)),
        }
    }

    fn memory(&mut self, idle: &mut Idle) -> Result<Span<Gfn>, Error> {
        let first = self.machine.place(idle)?.gfn();
        Ok(Span::sized(first, Layout::REGION / PAGE_SIZE))
    }

    fn no_memory(&mut self) -> Error {
        Error::Machine("no memory for the tables of the inner guest".into())
    }
}

impl<F: Nest> Runs<'_, '_, F, HostView<Option<super::events::Events>>> {
    /// Runs the replay until it needs a region or a batch, or until L1 has found an impossible state.
    pub fn run(
        &mut self,
        idle: &mut Idle,
        wires: &mut Wires<'_, F>,
        replay: &mut Replay,
    ) -> Result<Ended, Error> {
        match self {
            Self::Own(cpu) => loop {
                match cpu.run(idle, replay) {
                    Exit::Stopped => return Ok(Ended::Stopped),
                    exit => wires.exit(idle, exit)?,
                }
            },
            Self::L2(vcpu) => vcpu.run(idle, wires, replay),
        }
    }
}

/// L1 compares all pages that it watches after the vCPUs have stopped. Returns what it has done and found.
pub fn compare<F: Nest>(machine: &Machine<F>, l1: &L1<F>) -> Result<L1Counts, Error> {
    let mut idle = crate::thread::idle()?;
    let id = VcpuId(0);
    let vcpu = machine.vm.vcpu(id).ok_or_else(|| Error::Machine("vCPU 0 is in use".into()))?;
    let mut vcpu = L1Vcpu::new(l1, id.0, Cpu::new(vcpu, machine.window()));
    vcpu.check_all(&mut idle, &mut Wires { machine, id, ring_full: 0 })?;
    Ok(l1.counts())
}

/// The lines of the report.
pub fn page(counts: &L1Counts, out: &mut impl Write) -> std::io::Result<()> {
    let L1Counts { refused, protected, cleaned, aged, moved, swapped, relocated, split, .. } = counts;
    let L1Counts { flushed_frames, flushed_table, flushed_all, checked, .. } = counts;
    writeln!(
        out,
        "nested    L1's tables refused {refused} accesses; flushed: {flushed_frames} times frames, {flushed_table} tables, {flushed_all} all"
    )?;
    writeln!(
        out,
        "          L1 protected {protected} pages, moved {moved}, swapped out {swapped}; cleared D of {cleaned}, A of {aged}; moved {relocated} tables, split {split}"
    )?;
    let L1Counts { stored_protected, stored_clean, wrong, .. } = counts;
    writeln!(
        out,
        "          L1 compared {checked} pages: {stored_protected} written though protected, {stored_clean} with D clear; {wrong} impossible exits"
    )
}
