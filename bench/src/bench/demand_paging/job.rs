//! One sample: a machine built anew, its vCPUs touch all of its memory for the first time, and a look at what they
//! left.
//!
//! ```text
//! arena       the same frames for all samples: after the first round they are warm
//! └── space   one mapping: anonymous, or (minor faults) of a file whose pages are there, written through another
//!     └── vm  one memslot; the policy is the entrant
//!         ├── vCPUs     pinned, from one line; each has its part, or all of the memory
//!         └── handlers  one for each part, or one
//! ```
//! Timed is the stretch from the line until the last vCPU is done.

use super::guest::{GIVEN_AT, Touch, given, stored};
use super::handlers::Handlers;
use crate::bench::harness::Line;
use crate::bench::machine::pin;
use hdrhistogram::Histogram;
use slat::table::formats::Npt4;
use slat::{Access, Gfn, Hva, Idle, MmuLock, PAGE_SHIFT, PAGE_SIZE, Slot, SlotId, Span, VcpuId, Vm};
use slat_cli::error::Error;
use slat_cli::thread::{idle, joined, window};
use slat_mm::{AddressSpace, Arena, Backing, File, HostView, Place, Prot, Serve};
use slat_threads::benches::Tally;
use slat_vcpu::{Cpu, Exit, Window};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// Where guest memory lies in the host's address space.
const BASE: Hva = Hva(0x1000_0000_0000);
/// As much guest memory as fits there.
pub const MOST: u64 = 1 << 44;
/// Where the file of minor faults is mapped once more, for filling it.
const ALIAS: u64 = 1 << 45;

/// The address behind a guest frame.
pub fn hva_of(gfn: Gfn) -> Hva {
    BASE + (gfn.0 << PAGE_SHIFT)
}

/// What to do, the same for every entrant.
pub struct Job {
    pub vcpus: u32,
    /// Of each vCPU's part.
    pub pages_per_vcpu: u64,
    /// Every vCPU touches all parts.
    pub overlap: bool,
    /// Which faults handlers serve.
    pub serve: Option<Serve>,
    /// One handler for all parts.
    pub single: bool,
    /// The host has every page before.
    pub prefilled: bool,
    /// What handlers leave in a page.
    pub gives: fn(Gfn) -> u64,
    pub arena: Arc<Arena>,
}

/// What one sample yields.
pub struct Sample {
    /// From the line until the last vCPU was done, in nanoseconds.
    pub wall_ns: f64,
    /// How long each fault took.
    pub fault_ns: Histogram<u64>,
    /// How long vCPUs waited for the MMU lock, all together.
    pub lock_wait_ns: u64,
    /// What must hold.
    pub tally: Vec<Tally>,
}

impl Sample {
    /// The part of their fault time that vCPUs waited for the MMU lock, in percent.
    pub fn lock_share(&self) -> f64 {
        let all = self.fault_ns.mean() * self.fault_ns.len() as f64;
        if all > 0.0 { 100.0 * self.lock_wait_ns as f64 / all } else { 0.0 }
    }
}

impl Job {
    /// An arena with room for so many pages, their tables, and what threads keep at hand.
    pub fn arena(pages: u64, vcpus: u32) -> Result<Arc<Arena>, Error> {
        let bytes = pages * PAGE_SIZE;
        Ok(Arena::builder().limit(bytes + bytes / 64 + (u64::from(vcpus) << 20) + (64 << 20)).build()?)
    }

    /// All of guest memory.
    pub fn pages(&self) -> Span<Gfn> {
        Span::sized(Gfn(0), u64::from(self.vcpus) * self.pages_per_vcpu)
    }

    /// Each vCPU's part of it.
    pub fn parts(&self) -> Vec<Span<Gfn>> {
        let part = |vcpu| Span::sized(Gfn(u64::from(vcpu) * self.pages_per_vcpu), self.pages_per_vcpu);
        (0..self.vcpus).map(part).collect()
    }

    /// Whether pages come with a giver's word.
    fn filled(&self) -> bool {
        self.serve.is_some() || self.prefilled
    }

    /// One sample under `policy`.
    pub fn sample(&self, policy: MmuLock) -> Result<Sample, Error> {
        let idle = &mut idle()?;
        let space = self.memory(idle)?;
        let builder = Vm::<Npt4, _>::builder(HostView::new(&space)).vcpus(self.vcpus).mmu_lock(policy);
        let vm = Arc::new(builder.build().map_err(|error| Error::Machine(error.to_string()))?);
        space.register(&vm);
        let slot = Slot::new(SlotId(0), Gfn(0), self.pages().len(), BASE);
        vm.slots().commit(idle, |tx| tx.create(slot))?;
        let handlers = Handlers::new(self, &space)?;

        let line = &Line::new(self.vcpus as usize);
        let parts = if self.overlap { vec![self.pages(); self.vcpus as usize] } else { self.parts() };
        let (vcpus, served) = thread::scope(|scope| {
            let servers = handlers
                .queues()
                .iter()
                .map(|queue| slat_cli::thread::start(scope, || handlers.serve(queue)));
            let servers: Vec<_> = servers.collect();
            let vcpus = parts.iter().zip(0..).map(|(&pages, number)| {
                let vm = &vm;
                slat_cli::thread::start(scope, move || self.vcpu(vm, number, pages, line))
            });
            let vcpus: Vec<_> = vcpus.collect();
            let vcpus: Vec<_> = vcpus.into_iter().map(thread::ScopedJoinHandle::join).collect();
            handlers.close(idle);
            (vcpus, servers.into_iter().map(thread::ScopedJoinHandle::join).collect::<Vec<_>>())
        });
        let vcpus: Result<Vec<_>, _> = vcpus.into_iter().map(joined).collect();
        let served: Result<Vec<_>, _> = served.into_iter().map(joined).collect();
        self.count(idle, &vm, &vcpus?, served?.into_iter().sum())
    }

    /// Guest memory as the host sees it before the guest does.
    fn memory(&self, idle: &mut Idle) -> Result<Arc<AddressSpace>, Error> {
        let space = AddressSpace::builder(&self.arena).build()?;
        let bytes = self.pages().len() * PAGE_SIZE;
        let file = (self.serve == Some(Serve::Minor)).then(|| File::zeroed(&self.arena, bytes));
        let map = |at| {
            let backing = file.clone().map_or(Backing::Anonymous, |file| Backing::Shared { file, offset: 0 });
            space.mmap(Place::Fixed(at), bytes, Prot::ReadWrite, backing)
        };
        map(BASE)?;
        let shift = if file.is_some() { ALIAS } else { 0 };
        if file.is_some() {
            map(BASE + ALIAS)?;
        }
        if file.is_some() || self.prefilled {
            for gfn in (0..self.pages().len()).map(Gfn) {
                let word = (self.gives)(gfn).to_le_bytes();
                space.write(idle, hva_of(gfn) + shift + GIVEN_AT, &word)?;
            }
        }
        Ok(space)
    }

    /// What vCPU `number` does: when it began and ended, how long its faults took, and what it saw.
    fn vcpu(
        &self,
        vm: &Vm<Npt4, HostView>,
        number: u32,
        pages: Span<Gfn>,
        line: &Line,
    ) -> Result<Run, Error> {
        pin(number as usize);
        let (idle, vcpu) = (idle(), vm.vcpu(VcpuId(number)));
        let mut guest = Touch::new(pages, self.filled());
        // Whatever is missing, no thread may wait for this one at the line.
        line.cross();
        let began = Instant::now();
        let vcpu = vcpu.ok_or_else(|| Error::Machine(format!("vCPU {number} is in use")))?;
        let mut cpu = Cpu::new(vcpu, window(&self.arena));
        let ended = match cpu.run(&mut idle?, &mut guest) {
            Exit::Stopped => true,
            Exit::Mmio(_) | Exit::RingFull => false,
            Exit::Failed(fault, error) => {
                return Err(Error::Machine(format!("vCPU {number} at {}: {error}", fault.gpa)));
            }
        };
        Ok(Run { began, done: Instant::now(), fault_ns: cpu.fault_ns, ended, wrong: guest.wrong })
    }

    /// What all of it comes to.
    fn count(
        &self,
        idle: &mut Idle,
        vm: &Vm<Npt4, HostView>,
        runs: &[Run],
        served: u64,
    ) -> Result<Sample, Error> {
        let stats = vm.stats();
        let pages = self.pages().len();
        let touched = if self.overlap { pages * u64::from(self.vcpus) } else { pages };
        let begun = runs.iter().map(|run| run.began).min();
        let done = runs.iter().map(|run| run.done).max();
        let (Some(begun), Some(done)) = (begun, done) else {
            return Err(Error::Machine("no vCPU ran".into()));
        };
        let mut fault_ns = runs[0].fault_ns.clone();
        for run in &runs[1..] {
            fault_ns.add(&run.fault_ns).map_err(|error| Error::Machine(error.to_string()))?;
        }
        let wrong: u64 = runs.iter().map(|run| run.wrong).sum();
        let window = window(&self.arena);
        let right = (0..pages).map(Gfn).filter(|&gfn| self.is_right(idle, vm, window, gfn)).count() as u64;
        let ended = runs.iter().filter(|run| run.ended).count() as u64;
        let given = if self.serve.is_some() { pages } else { 0 };
        let tally = vec![
            ("every vCPU touched all of its pages", [ended, self.vcpus.into()]),
            ("every page was faulted in once", [stats.mapped_faults, pages]),
            ("vCPUs found in each page what it was given", [touched - wrong, touched]),
            ("every page is mapped and holds what it has to", [right, pages]),
            ("handlers gave every page that they had to, once", [served, given]),
        ];
        let wall_ns = (done - begun).as_nanos() as f64;
        Ok(Sample { wall_ns, fault_ns, lock_wait_ns: stats.lock_wait_ns, tally })
    }

    /// Whether a page is mapped, as the host has it, and holds what it has to.
    fn is_right(&self, idle: &mut Idle, vm: &Vm<Npt4, HostView>, window: Window, gfn: Gfn) -> bool {
        let Some(mapping) = vm.translate(idle, gfn) else { return false };
        let pfn = mapping.leaf.pfn;
        let host = vm.host().space().lookup(hva_of(gfn), Access::Read).map(|page| page.pfn);
        let word = |offset| {
            let mut word = [0; 8];
            window.read(pfn, offset, &mut word);
            u64::from_le_bytes(word)
        };
        let expected = if self.filled() { given(gfn) } else { 0 };
        host == Some(pfn) && word(0) == stored(gfn) && word(GIVEN_AT) == expected
    }
}

/// What one vCPU's thread has done.
struct Run {
    began: Instant,
    done: Instant,
    fault_ns: Histogram<u64>,
    ended: bool,
    wrong: u64,
}
