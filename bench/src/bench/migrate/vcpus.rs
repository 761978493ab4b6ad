//! The vCPU threads: each runs its guest on one of the two machines until it is halted.
//!
//! A guest's own state, such as its registers, stays in the process: what a VMM would send along with the last round is the guest
//! itself here, which the same thread number runs on both machines. While a guest runs its thread holds the guest's lock.

use super::checked_guest::Guest;
use super::endpoint::Machine;
use crate::bench::machine_error;
use crate::bench::software_vcpu::{run_until_stopped, vcpu};
use parking_lot::Mutex;
use slat::table::formats::Npt4;
use slat::{Idle, VcpuId};
use slat_cli::error::Error;
use slat_cli::thread::{idle, joined, start_free};
use slat_mm::HostView;
use slat_vcpu::Cpu;
use slat_vcpu::cpu::Program;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Instant;

/// What all vCPUs share.
#[derive(Debug)]
struct Shared {
    guests: Vec<Mutex<Guest>>,
    halt: AtomicBool,
    ring_full: AtomicU64,
}

/// The threads that run, a vCPU each.
#[derive(Debug)]
pub struct Vcpus {
    shared: Arc<Shared>,
    running: Mutex<Vec<JoinHandle<Result<Instant, Error>>>>,
}

impl Vcpus {
    /// A vCPU for each guest; none runs yet.
    pub fn new(guests: impl IntoIterator<Item = Guest>) -> Self {
        let guests = guests.into_iter().map(Mutex::new).collect();
        let shared = Shared { guests, halt: AtomicBool::new(false), ring_full: AtomicU64::new(0) };
        Self { shared: Arc::new(shared), running: Mutex::default() }
    }

    /// The guests, by number.
    pub fn guests(&self) -> &[Mutex<Guest>] {
        &self.shared.guests
    }

    /// Times that a vCPU has found its ring full.
    pub fn ring_full(&self) -> u64 {
        self.shared.ring_full.load(Relaxed)
    }

    /// Has every guest fill its memory, and waits for it.
    pub fn fill(&self, machine: &Arc<Machine>) -> Result<(), Error> {
        self.start(machine, |on, guest| on.run(&mut guest.fill()).map(|()| Instant::now()));
        self.wait().map(drop)
    }

    /// Lets every guest run.
    pub fn run(&self, machine: &Arc<Machine>) {
        self.start_run(machine, u64::MAX);
    }

    /// Lets every guest run for so many accesses, waits for it, and says when the last one had made its first.
    pub fn run_for(&self, machine: &Arc<Machine>, accesses: u64) -> Result<Instant, Error> {
        self.start_run(machine, accesses);
        self.wait()
    }

    /// Has every guest stand still, outside of guest mode and of faults.
    pub fn halt(&self) -> Result<(), Error> {
        self.shared.halt.store(true, Relaxed);
        self.wait().map(drop)
    }

    fn start_run(&self, machine: &Arc<Machine>, accesses: u64) {
        self.shared.halt.store(false, Relaxed);
        self.start(machine, move |on, guest| {
            let halt = &on.shared.clone().halt;
            on.run(&mut guest.run(1, halt))?;
            let first = Instant::now();
            on.run(&mut guest.run(accesses - 1, halt))?;
            Ok(first)
        });
    }

    /// Starts a thread for each guest, which does `work` on the machine, and says when the guest's first access was done.
    fn start(
        &self,
        machine: &Arc<Machine>,
        work: impl Fn(&mut On<'_>, &mut Guest) -> Result<Instant, Error> + Copy + Send + 'static,
    ) {
        let start = |number| {
            let (machine, shared) = (machine.clone(), self.shared.clone());
            start_free(move || {
                let cpu = Cpu::new(vcpu(&machine.vm, number)?, machine.window()).untimed();
                let mut on =
                    On { cpu, idle: idle()?, machine: &machine, id: VcpuId(number), shared: &shared };
                work(&mut on, &mut shared.guests[number as usize].lock())
            })
        };
        self.running.lock().extend((0..self.guests().len() as u32).map(start));
    }

    /// Waits for all, and says when the last of them had made its first access.
    fn wait(&self) -> Result<Instant, Error> {
        // All of them, whatever one says: no vCPU runs any more then.
        let running = std::mem::take(&mut *self.running.lock());
        let stood: Vec<_> = running.into_iter().map(|thread| joined(thread.join())).collect();
        let stood = stood.into_iter().collect::<Result<Vec<Instant>, Error>>()?;
        stood.into_iter().max().ok_or_else(|| machine_error("no vCPU ran"))
    }
}

impl Drop for Vcpus {
    /// No vCPU runs any more when it is gone.
    fn drop(&mut self) {
        let _ = self.halt();
    }
}

/// A vCPU on its machine.
struct On<'m> {
    cpu: Cpu<'m, Npt4, HostView>,
    idle: Idle,
    machine: &'m Machine,
    id: VcpuId,
    shared: &'m Arc<Shared>,
}

impl On<'_> {
    /// Runs `program` until it stops by itself.
    fn run(&mut self, program: &mut impl Program) -> Result<(), Error> {
        run_until_stopped(&mut self.cpu, &mut self.idle, program, |idle| {
            // Into the slots' bitmaps, for the next harvest: this vCPU does not wait for it.
            self.shared.ring_full.fetch_add(1, Relaxed);
            self.machine.vm.harvest_ring(idle, self.id)?.give_back();
            Ok(())
        })
    }
}
