//! Guest memory on slat-mm, a VM, and vCPUs that go over their parts of it.

use super::Guard;
use crate::bench::harness::Line;
use crate::bench::machine::{cpus, pin};
use slat::table::formats::Npt4;
use slat::{Access, Fault, Format, Gfn, Host, Hva, Idle, PAGE_SIZE, Slot, SlotId, Span, VcpuId, Vm};
use slat_cli::error::Error;
use slat_cli::thread::{idle, joined, window};
use slat_mm::{AddressSpace, Arena, Backing, HostView, LruSettings, Place, Prot};
use slat_vcpu::cpu::{Core, Program, Step};
use slat_vcpu::{Cpu, Exit};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Where guest memory lies in the host's address space.
const BASE: Hva = Hva(0x1000_0000_0000);
/// Guest memory at most.
pub const MOST: u64 = 1 << 38;

/// See the module's header.
pub struct World {
    pub space: Arc<AddressSpace>,
    pub vm: Arc<Vm<Npt4, HostView>>,
    vcpus: u32,
    pages_per_vcpu: u64,
}

/// What runs beside vCPUs, for as long as it is told that they do.
pub type Beside<'b> = dyn Fn(&dyn Fn() -> bool) -> Result<(), Error> + Sync + 'b;

/// An arena with room for so many pages, their tables, and what threads keep at hand.
pub fn arena(pages: u64, vcpus: u32) -> Result<Arc<Arena>, Error> {
    let bytes = pages * PAGE_SIZE;
    Ok(Arena::builder().limit(bytes + bytes / 32 + (u64::from(vcpus) << 20) + (64 << 20)).build()?)
}

impl World {
    /// Memory that was never touched, in generations where `lru` says so.
    pub fn new(
        arena: &Arc<Arena>,
        idle: &mut Idle,
        guard: Guard,
        (vcpus, pages_per_vcpu): (u32, u64),
        lru: bool,
    ) -> Result<Self, Error> {
        let builder = AddressSpace::builder(arena);
        let space = if lru { builder.lru(LruSettings::default()) } else { builder }.build()?;
        let pages = u64::from(vcpus) * pages_per_vcpu;
        space.mmap(Place::Fixed(BASE), pages * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous)?;
        let builder = Vm::<Npt4, _>::builder(HostView::new(&space))
            .vcpus(vcpus)
            .mmu_lock(guard.lock)
            .lockless_aging(guard.lockless_aging);
        let vm = Arc::new(builder.build().map_err(|error| Error::Machine(error.to_string()))?);
        space.register(&vm);
        vm.slots().commit(idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), pages, BASE)))?;
        Ok(Self { space, vm, vcpus, pages_per_vcpu })
    }

    /// Guest memory, as the host sees it.
    pub fn hvas(&self) -> Span<Hva> {
        Span::sized(BASE, self.pages().len() * PAGE_SIZE)
    }

    pub fn pages(&self) -> Span<Gfn> {
        Span::sized(Gfn(0), u64::from(self.vcpus) * self.pages_per_vcpu)
    }

    /// Where a page of the guest lies.
    pub fn hva_of(gfn: Gfn) -> Hva {
        BASE + gfn.0 * PAGE_SIZE
    }

    /// Each vCPU goes over its part, of which `which` says what to touch; beside them `beside` runs, until they are done
    /// if it heeds its argument. How long the vCPUs took, from the line until the last was done.
    pub fn sweep(
        &self,
        access: Access,
        which: impl Fn(Gfn) -> bool + Sync,
        beside: Option<&Beside<'_>>,
    ) -> Result<Duration, Error> {
        let line = &Line::new(self.vcpus as usize + usize::from(beside.is_some()));
        let running = &AtomicU32::new(self.vcpus);
        let which = &which;
        thread::scope(|scope| {
            let vcpus: Vec<_> = (0..self.vcpus)
                .map(|number| {
                    slat_cli::thread::start(scope, move || {
                        let run = self.vcpu(number, access, which, line);
                        // ORDER(line): Relaxed: nothing is published by it, the ager stops a pass later.
                        running.fetch_sub(1, Relaxed);
                        run
                    })
                })
                .collect();
            let beside = beside.map(|beside| {
                slat_cli::thread::start(scope, move || {
                    pin(agers_core());
                    line.cross();
                    beside(&|| running.load(Relaxed) > 0)
                })
            });
            let runs: Vec<_> = vcpus.into_iter().map(|vcpu| joined(vcpu.join())).collect();
            beside.map_or(Ok(()), |beside| joined(beside.join()))?;
            let runs: Vec<(Instant, Instant)> = runs.into_iter().collect::<Result<_, _>>()?;
            let (began, done) = (runs.iter().map(|run| run.0).min(), runs.iter().map(|run| run.1).max());
            began
                .zip(done)
                .map(|(began, done)| done - began)
                .ok_or_else(|| Error::Machine("no vCPU ran".into()))
        })
    }

    fn vcpu(
        &self,
        number: u32,
        access: Access,
        which: &(dyn Fn(Gfn) -> bool + Sync),
        line: &Line,
    ) -> Result<(Instant, Instant), Error> {
        pin(number as usize % agers_core().max(1));
        let (idle, vcpu) = (idle(), self.vm.vcpu(VcpuId(number)));
        let pages = Span::sized(Gfn(u64::from(number) * self.pages_per_vcpu), self.pages_per_vcpu);
        let mut sweep = Sweep { pages, access, which, wrong: 0 };
        // Whatever is missing, no thread may wait for this one at the line.
        line.cross();
        let began = Instant::now();
        let vcpu = vcpu.ok_or_else(|| Error::Machine(format!("vCPU {number} is in use")))?;
        let window = window(self.space.arena());
        match Cpu::new(vcpu, window).untimed().run(&mut idle?, &mut sweep) {
            Exit::Stopped if sweep.wrong == 0 => Ok((began, Instant::now())),
            Exit::Stopped => Err(Error::Machine(format!("vCPU {number}: {} words were wrong", sweep.wrong))),
            Exit::RingFull => Err(Error::Machine("a dirty ring is full".into())),
            Exit::Mmio(fault) => Err(Error::Machine(format!("no memory at {}", fault.gpa))),
            Exit::Failed(fault, error) => {
                Err(Error::Machine(format!("guest address {}: {error}", fault.gpa)))
            }
        }
    }
}

/// The last one, which vCPUs leave to the ager, where there are two: a guest's time is then what the ager's *work* costs
/// it, not what its own want of processors does.
fn agers_core() -> usize {
    cpus() - 1
}

/// A word stored to each page, or loaded and compared.
struct Sweep<'w> {
    pages: Span<Gfn>,
    access: Access,
    which: &'w (dyn Fn(Gfn) -> bool + Sync),
    wrong: u64,
}

impl Program for Sweep<'_> {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        let gfn = self.pages.start;
        if self.pages.is_empty() {
            return Ok(Step::Stop);
        }
        if (self.which)(gfn) {
            let word = gfn.0 << 8 | 1;
            if self.access == Access::Write {
                core.store(gfn.gpa(), &word.to_le_bytes())?;
            } else {
                let mut found = [0; 8];
                core.load(gfn.gpa(), &mut found)?;
                self.wrong += u64::from(u64::from_le_bytes(found) != word);
            }
        }
        self.pages.start = gfn + 1;
        Ok(Step::Next)
    }
}
