//! The vCPU threads: each runs its guest on the machine that it is told to, until it is told to stand still.
//!
//! An order is a message, and so is the answer that the guest stands still; between the two the thread owns
//! the guest's own state; outside of them the holder of its lock does. A thread stays the same vCPU on both machines: what a VMM would
//! send along with the last round, its registers, is the guest itself here, and is handed over in the process.

use super::checked_guest::Guest;
use super::endpoint::Machine;
use parking_lot::Mutex;
use slat::table::formats::Npt4;
use slat::{Idle, VcpuId};
use slat_cli::error::Error;
use slat_cli::thread::idle;
use slat_mm::HostView;
use slat_vcpu::cpu::Program;
use slat_vcpu::{Cpu, Exit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;
use std::time::Instant;

/// What a vCPU is to do.
#[derive(Clone, Debug)]
enum Order {
    /// Fill the guest's memory.
    Fill(Arc<Machine>),
    /// Run for so many accesses, or until all are halted.
    Run(Arc<Machine>, u64),
}

/// What all vCPUs share.
#[derive(Debug)]
pub struct Shared {
    /// The guests, by number.
    pub guests: Vec<Mutex<Guest>>,
    halt: AtomicBool,
    /// Times that a vCPU has found its ring full.
    pub ring_full: AtomicU64,
}

impl Shared {
    pub fn new(guests: impl IntoIterator<Item = Guest>) -> Self {
        let guests = guests.into_iter().map(Mutex::new).collect();
        Self { guests, halt: AtomicBool::new(false), ring_full: AtomicU64::new(0) }
    }
}

/// The threads, from outside. They end when this is dropped, at their next halt.
#[derive(Debug)]
pub struct Vcpus<'s> {
    shared: &'s Shared,
    orders: Vec<SyncSender<Order>>,
    stood: Receiver<Result<Instant, Error>>,
}

impl<'s> Vcpus<'s> {
    /// Starts a thread for each guest, which waits.
    pub fn start<'scope>(scope: &'scope Scope<'scope, '_>, shared: &'s Shared) -> Self
    where
        's: 'scope,
    {
        let (report, stood) = sync_channel(shared.guests.len());
        let orders = (0..shared.guests.len()).map(|number| {
            let (send, orders) = sync_channel(1);
            let report = report.clone();
            slat_cli::thread::start(scope, move || serve(shared, number, &orders, &report));
            send
        });
        Self { shared, orders: orders.collect(), stood }
    }

    /// Has every guest fill its memory, and waits for it.
    pub fn fill(&self, machine: &Arc<Machine>) -> Result<(), Error> {
        self.order(&Order::Fill(machine.clone()));
        self.wait().map(drop)
    }

    /// Lets every guest run.
    pub fn run(&self, machine: &Arc<Machine>) {
        self.shared.halt.store(false, Relaxed);
        self.order(&Order::Run(machine.clone(), u64::MAX));
    }

    /// Lets every guest run for so many accesses, waits for it, and says when the last one had made its first.
    pub fn run_for(&self, machine: &Arc<Machine>, accesses: u64) -> Result<Instant, Error> {
        self.shared.halt.store(false, Relaxed);
        self.order(&Order::Run(machine.clone(), accesses));
        self.wait()
    }

    /// Has every guest stand still, outside of guest mode and of faults.
    pub fn halt(&self) -> Result<(), Error> {
        self.shared.halt.store(true, Relaxed);
        self.wait().map(drop)
    }

    fn order(&self, order: &Order) {
        for orders in &self.orders {
            // A thread that is gone has panicked: the scope says so.
            let _ = orders.send(order.clone());
        }
    }

    /// Waits for all, and says when the last of them had made its first access.
    fn wait(&self) -> Result<Instant, Error> {
        let gone = || Error::Machine("a vCPU's thread is gone".into());
        // All of them, whatever one says: no vCPU runs any more then.
        let stood: Vec<_> = self.orders.iter().map(|_| self.stood.recv().map_err(|_| gone())).collect();
        let mut latest = None;
        for stood in stood {
            latest = latest.max(Some(stood??));
        }
        latest.ok_or_else(gone)
    }
}

impl Drop for Vcpus<'_> {
    fn drop(&mut self) {
        self.shared.halt.store(true, Relaxed);
    }
}

/// One thread: order by order, until there are no more.
fn serve(
    shared: &Shared,
    number: usize,
    orders: &Receiver<Order>,
    report: &SyncSender<Result<Instant, Error>>,
) {
    let _last = LastWord(report);
    let mut idle = idle();
    while let Ok(order) = orders.recv() {
        let done = match &mut idle {
            Ok(idle) => carry_out(shared, number, idle, &order),
            Err(_) => Err(Error::Machine("a vCPU's thread runs another one".into())),
        };
        if report.send(done).is_err() {
            break;
        }
    }
}

/// A thread that panics says so: a caller that waits until all vCPUs stand still waits for it too.
struct LastWord<'t>(&'t SyncSender<Result<Instant, Error>>);

impl Drop for LastWord<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.send(Err(Error::Machine("a vCPU's thread has panicked".into())));
        }
    }
}

/// Carries out one order, and says when the guest's first access was done.
fn carry_out(shared: &Shared, number: usize, idle: &mut Idle, order: &Order) -> Result<Instant, Error> {
    let guest = &mut *shared.guests[number].lock();
    let (Order::Fill(machine) | Order::Run(machine, _)) = order;
    let id = VcpuId(number as u32);
    let vcpu = machine.vm.vcpu(id).ok_or_else(|| Error::Machine(format!("vCPU {number} is in use")))?;
    let mut on = On { cpu: Cpu::new(vcpu, machine.window()).untimed(), machine, id, shared };
    match *order {
        Order::Fill(_) => {
            on.run(idle, &mut guest.fill())?;
            Ok(Instant::now())
        }
        Order::Run(_, accesses) => {
            on.run(idle, &mut guest.run(1, &shared.halt))?;
            let first = Instant::now();
            on.run(idle, &mut guest.run(accesses - 1, &shared.halt))?;
            Ok(first)
        }
    }
}

/// A vCPU on its machine.
struct On<'m> {
    cpu: Cpu<'m, Npt4, HostView>,
    machine: &'m Machine,
    id: VcpuId,
    shared: &'m Shared,
}

impl On<'_> {
    /// Runs `program` until it stops by itself.
    fn run(&mut self, idle: &mut Idle, program: &mut impl Program) -> Result<(), Error> {
        loop {
            match self.cpu.run(idle, program) {
                Exit::Stopped => return Ok(()),
                Exit::RingFull => {
                    // Into the slots' bitmaps, for the next harvest: this vCPU does not wait for it.
                    self.shared.ring_full.fetch_add(1, Relaxed);
                    self.machine.vm.harvest_ring(idle, self.id)?.give_back();
                }
                Exit::Mmio(fault) => return Err(Error::Machine(format!("no memslot at {}", fault.gpa))),
                Exit::Failed(fault, error) => {
                    return Err(Error::Machine(format!("guest address {}: {error}", fault.gpa)));
                }
            }
        }
    }
}
