//! vCPUs on threads of their own, that go over their parts of memory together, as often as they are told to.
//!
//! The first one's thread leads: between passes it does what the test does with the log, and the others sleep, so that
//! no other thread disturbs it. They keep their TLBs from pass to pass: a flush that is missing would let a store by unseen.
//! The guest's memory is not there: loads read ones, stores are lost; the engine does not care.

use super::host::{Machine, Pages};
use super::reported::Reported;
use super::sweep::{Pass, Sweep};
use crate::bench::harness::Line;
use crate::bench::machine::pin;
use parking_lot::Mutex;
use slat::table::formats::Ept4;
use slat::{Gfn, Idle, Span, VcpuId};
use slat_cli::error::Error;
use slat_cli::thread::{idle, joined};
use slat_vcpu::{Cpu, Exit, Window};
use std::ptr::NonNull;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// What all members have in common.
struct Shared<'vm> {
    vm: &'vm Machine,
    /// What was in rings that were full.
    told: &'vm Reported,
    rings_full: AtomicU64,
    /// What an exit takes.
    exit: Duration,
    /// Where they sleep between passes.
    gate: Barrier,
    /// Where a pass begins.
    line: Line,
    /// The pass that is due; none: all threads may go.
    pass: Mutex<Option<Pass>>,
    times: Mutex<Vec<(Instant, Instant)>>,
}

/// One vCPU with the frames that are its own, in its thread.
struct Member<'t> {
    shared: &'t Shared<'t>,
    id: VcpuId,
    cpu: Cpu<'t, Ept4, Pages>,
    pages: Span<Gfn>,
    idle: Idle,
}

/// The first vCPU's thread.
pub struct Lead<'t> {
    pub vm: &'t Machine,
    pub told: &'t Reported,
    member: Member<'t>,
}

/// Does `work` with a vCPU for each of `parts`, numbered from 0, whose exits take so long each; what is in a ring that is
/// full goes to `told`.
pub fn with_team<R: Send>(
    vm: &Machine,
    (parts, exit): (&[Span<Gfn>], Duration),
    told: &Reported,
    work: impl FnOnce(&mut Lead<'_>) -> Result<R, Error> + Send,
) -> Result<R, Error> {
    let shared = &Shared {
        vm,
        told,
        rings_full: AtomicU64::new(0),
        exit,
        gate: Barrier::new(parts.len()),
        line: Line::new(parts.len()),
        pass: Mutex::new(None),
        times: Mutex::new(Vec::new()),
    };
    thread::scope(|scope| {
        let others = (0..).zip(parts).skip(1);
        let others: Vec<_> = others
            .map(|(number, &pages)| slat_cli::thread::start(scope, move || shared.follow(number, pages)))
            .collect();
        let lead = slat_cli::thread::start(scope, || {
            let work =
                Member::new(shared, 0, parts[0]).and_then(|member| work(&mut Lead { vm, told, member }));
            *shared.pass.lock() = None;
            shared.gate.wait();
            work
        });
        let work = joined(lead.join());
        // A vCPU's own reason comes before the lead's, who only missed it.
        for other in others {
            joined(other.join())?;
        }
        work
    })
}

impl Shared<'_> {
    /// The thread of any vCPU but the first. Whatever goes wrong, no thread waits for it in vain.
    fn follow(&self, number: u32, pages: Span<Gfn>) -> Result<(), Error> {
        let mut member = Member::new(self, number, pages);
        loop {
            self.gate.wait();
            let Some(pass) = *self.pass.lock() else { return member.map(drop) };
            self.line.cross();
            if let Ok(one) = &mut member {
                match one.pass(pass) {
                    Ok(times) => self.times.lock().push(times),
                    Err(error) => member = Err(error),
                }
            }
            self.gate.wait();
        }
    }
}

impl Lead<'_> {
    /// This thread's.
    pub fn idle(&mut self) -> &mut Idle {
        &mut self.member.idle
    }

    /// One pass of all vCPUs: from when the first began until the last was done.
    pub fn pass(&mut self, pass: Pass) -> Result<Duration, Error> {
        let shared = self.member.shared;
        *shared.pass.lock() = Some(pass);
        shared.gate.wait();
        shared.line.cross();
        let mine = self.member.pass(pass);
        shared.gate.wait();
        let (mut began, mut done) = mine?;
        for (start, end) in shared.times.lock().drain(..) {
            (began, done) = (began.min(start), done.max(end));
        }
        Ok(done - began)
    }

    /// How often a ring was full so far.
    pub fn rings_full(&self) -> u64 {
        self.member.shared.rings_full.load(Relaxed)
    }
}

impl<'t> Member<'t> {
    fn new(shared: &'t Shared<'_>, number: u32, pages: Span<Gfn>) -> Result<Self, Error> {
        pin(number as usize);
        let id = VcpuId(number);
        let vcpu = shared.vm.vcpu(id);
        let vcpu = vcpu.ok_or_else(|| Error::Machine(format!("vCPU {number} is in use")))?;
        // SAFETY: no frame is in it.
        let nothing = unsafe { Window::new(NonNull::dangling(), 0) };
        let cpu = Cpu::new(vcpu, nothing).untimed().with_exits_of(shared.exit);
        Ok(Self { shared, id, cpu, pages, idle: idle()? })
    }

    fn pass(&mut self, pass: Pass) -> Result<(Instant, Instant), Error> {
        let mut sweep = Sweep { pages: self.pages, pass };
        let began = Instant::now();
        loop {
            match self.cpu.run(&mut self.idle, &mut sweep) {
                Exit::Stopped => return Ok((began, Instant::now())),
                Exit::RingFull => {
                    let Shared { vm, told, rings_full, .. } = self.shared;
                    let harvest = vm.harvest_ring(&mut self.idle, self.id)?;
                    harvest.words().for_each(|word| told.add(word.first.gfn, word.bits));
                    harvest.commit();
                    rings_full.fetch_add(1, Relaxed);
                }
                Exit::Mmio(fault) => return Err(Error::Machine(format!("no memory at {}", fault.gpa))),
                Exit::Failed(fault, error) => {
                    return Err(Error::Machine(format!("guest address {}: {error}", fault.gpa)));
                }
            }
        }
    }
}
