//! The vCPU threads: each runs its guest on one of the two machines until it is halted.
//!
//! A guest's own state, such as its registers, stays in the process: what a VMM would send along with the last round is the guest
//! itself here, which the same thread number runs on both machines. While a guest runs its thread holds the guest's lock.

use super::checked_guest::Guest;
use super::endpoint::Machine;
use crate::scenarios::threads_prelude::*;
use slat_cli::thread::start_free;
use std::thread::JoinHandle;

/// The state that all vCPUs share.
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
    running: Mutex<Vec<JoinHandle<Result<Instant>>>>,
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

    /// Lets every guest run for so many accesses, waits for it, and says when the last one had made its first. A guest
    /// that has not run before fills its memory first.
    pub fn run_for(&self, machine: &Arc<Machine>, accesses: u64) -> Result<Instant> {
        self.start(machine, accesses);
        self.wait()
    }

    /// Has every guest stand still, outside of guest mode and of faults.
    pub fn halt(&self) -> Result<()> {
        self.shared.halt.store(true, Relaxed);
        self.wait().map(drop)
    }

    /// Starts a thread for each guest, which runs for so many accesses or until it is halted, and says when the first one
    /// was done.
    pub fn start(&self, machine: &Arc<Machine>, accesses: u64) {
        self.shared.halt.store(false, Relaxed);
        let start = |number| {
            let (machine, shared) = (machine.clone(), self.shared.clone());
            start_free(move || {
                let mut cpu = Cpu::new(vcpu(&machine.vm, number)?, machine.window()).untimed();
                let (idle, guest) = (&mut idle()?, &mut *shared.guests[number as usize].lock());
                let mut run = |accesses| {
                    run_until_stopped(&mut cpu, idle, &mut guest.run(accesses, &shared.halt), |idle| {
                        // Into the slots' bitmaps, for the next harvest: this vCPU does not wait for it.
                        shared.ring_full.fetch_add(1, Relaxed);
                        machine.vm.harvest_ring(idle, VcpuId(number))?.give_back();
                        Ok(())
                    })
                };
                run(accesses.min(1))?;
                let first = Instant::now();
                run(accesses.saturating_sub(1))?;
                Ok(first)
            })
        };
        self.running.lock().extend((0..self.guests().len() as u32).map(start));
    }

    /// Waits for all, and says when the last of them had made its first access.
    fn wait(&self) -> Result<Instant> {
        // All of them, whatever one says: no vCPU runs any more then.
        let running = std::mem::take(&mut *self.running.lock());
        let stood: Vec<_> = running.into_iter().map(|thread| joined(thread.join())).collect();
        let stood = stood.into_iter().collect::<Result<Vec<Instant>>>()?;
        stood.into_iter().max().ok_or_else(|| machine_error("no vCPU ran"))
    }
}

impl Drop for Vcpus {
    /// No vCPU runs any more when it is gone.
    fn drop(&mut self) {
        let _ = self.halt();
    }
}
