//! Guest memory on slat-mm, a VM, and vCPUs that go over their parts of it.

use crate::parts::mm_vm::machine;
use crate::scenarios::threads_prelude::*;
use crate::threads::software_vcpu::{SoftwareVcpu, Uses, all_went_well, stored};
use slat_mm::LruSettings;

/// Guest memory at most.
pub const MOST: u64 = 1 << 38;

/// How the VM's tables are guarded, and whether aging takes that lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guard {
    pub lock: MmuLock,
    pub lockless_aging: bool,
}

impl Guard {
    /// The kernel before the series.
    pub const NO_OPT: Self = Self { lock: MmuLock::ReadWrite, lockless_aging: false };
    /// The kernel with it.
    pub const OPT: Self = Self { lock: MmuLock::ReadWrite, lockless_aging: true };
    /// As slat ships.
    pub const SLAT: Self = Self { lock: MmuLock::None, lockless_aging: true };
}

/// See the module's header.
pub struct TrackedMemory {
    pub space: Arc<AddressSpace>,
    pub vm: Arc<Vm<Npt4, HostView>>,
    pub memory: GuestMemory,
}

impl TrackedMemory {
    /// Memory that was never touched, in generations where `lru` says so.
    pub fn new(arena: &Arc<Arena>, guard: Guard, memory: GuestMemory, lru: bool) -> Result<Self, Error> {
        let builder = AddressSpace::builder(arena);
        let space = if lru { builder.lru(LruSettings::default()) } else { builder }.build()?;
        let vm = machine(&space, memory.bytes(), Backing::Anonymous, |vm| {
            vm.vcpus(memory.vcpus)
                .baseline(Baseline::NONE.mmu_lock(guard.lock).lockless_aging(guard.lockless_aging))
        });
        Ok(Self { space, vm: vm.map_err(Error::Machine)?, memory })
    }

    /// Guest memory, as the host sees it.
    pub fn hvas(&self) -> Span<Hva> {
        hvas_of(self.pages())
    }

    pub fn pages(&self) -> Span<Gfn> {
        self.memory.pages()
    }

    /// vCPUs with empty TLBs, whose guests store a word to each page, or load it and compare.
    pub fn vcpus(&self, access: Access) -> Result<Vec<SoftwareVcpu<'_>>, Error> {
        let stores = access == Access::Write;
        let uses = Uses { stores, finds: (!stores).then_some((0, stored)) };
        let vcpu = |number| {
            let vcpu = SoftwareVcpu::new(&self.vm, number, uses)?.untimed();
            Ok(vcpu.on(number as usize % agers_cpu().max(1)))
        };
        (0..self.memory.vcpus).map(vcpu).collect()
    }

    /// Each vCPU goes over its part, of which `which` says what to touch. Milliseconds that they took, from the line until the last
    /// was done.
    pub fn sweep(&self, access: Access, which: impl Fn(Gfn) -> bool + Sync) -> Result<f64, Error> {
        let mut vcpus = self.vcpus(access)?;
        let pages = |part| gfns(part).filter(|&gfn| which(gfn));
        let jobs = vcpus.iter_mut().zip(self.memory.parts()).map(|(vcpu, part)| vcpu.job(pages(part), || ()));
        let stats = run(&Costs::SERVER, jobs.collect());
        all_went_well(&mut vcpus)?;
        Ok(stats.wall_ns as f64 / 1e6)
    }
}

/// The last one, which vCPUs leave to the ager, where there are two: a guest's time is then what the ager's *work* costs
/// it, not what its own want of processors does.
pub fn agers_cpu() -> usize {
    cpus() - 1
}
