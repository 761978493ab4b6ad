//! The guest memory that is zapped, and what lies beside it.
//!
//! ```text
//! gfn 0          range          1 TiB            2 TiB
//!  │ zapped: slot 0 │ ……………… spare │ vCPU 1's slot │ vCPU 2's slot │ …
//! ```
//! Beside a dense 64 GiB lie 128 MiB of leaf tables; the range begins where a table of each level begins.

use crate::scenarios::threads_prelude::*;
use crate::threads::arithmetic::Arithmetic;

/// The VM that is measured.
pub type Machine = Vm<Npt4, Arithmetic>;

/// Frames between the slots of vCPUs, and in each.
const STRIDE: u64 = (1 << 40) / PAGE_SIZE;

/// The most memory that a zap may be of.
pub const MOST: u64 = STRIDE / 2 * PAGE_SIZE;

/// The most vCPUs beside it.
pub const MOST_VCPUS: u16 = 64;

/// Table memory for vCPUs that fault beside a zap: a table for each 512 faults.
const FOR_OTHERS: u64 = 128 << 20;

/// Which pages of a range are mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// Every one.
    Dense,
    /// The first of each 2 MiB.
    Sparse,
}

/// The range that is zapped, and the number of vCPUs that fault meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct ZappedRange {
    pub bytes: u64,
    pub pages: Pages,
    pub vcpus: u16,
}

impl Pages {
    pub fn name(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::Sparse => "sparse",
        }
    }

    fn step(self) -> u64 {
        match self {
            Self::Dense => 1,
            Self::Sparse => Level::M2.pages(),
        }
    }
}

impl ZappedRange {
    /// The range.
    pub fn gfns(&self) -> Span<Gfn> {
        Span::sized(Gfn(0), self.bytes / PAGE_SIZE)
    }

    /// Pages mapped in it.
    pub fn mapped(&self) -> u64 {
        self.gfns().len() / self.pages.step()
    }

    /// Tables that serve nothing but the range: those of leaves, and those above them.
    pub fn tables(&self) -> u64 {
        [Level::M2, Level::G1].map(|level| self.gfns().len() / level.pages()).iter().sum()
    }

    /// All tables below the root, where nothing else is mapped.
    pub fn all_tables(&self) -> u64 {
        [Level::M2, Level::G1, Level::G1.up()]
            .map(|level| self.gfns().len().div_ceil(level.pages()))
            .iter()
            .sum()
    }

    /// The VM: its memslots made, the range faulted in.
    pub fn build(&self, lock: MmuLock, idle: &mut Idle) -> Result<Machine, Error> {
        table_pool::reserve(self.all_tables() * PAGE_SIZE * 65 / 64 + FOR_OTHERS);
        let builder = Vm::<Npt4, _>::builder(Arithmetic)
            .vcpus(u32::from(self.vcpus) + 1)
            .baseline(Baseline::NONE.mmu_lock(lock));
        let vm = builder.build().map_err(machine_error)?;
        vm.memory().commit(idle, |tx| {
            tx.create(slot(0, self.gfns()))?;
            (1..=self.vcpus).try_for_each(|nth| tx.create(slot(u32::from(nth), elsewhere(nth))))
        })?;
        self.fill(&vm, idle)?;
        Ok(vm)
    }

    fn fill(&self, vm: &Machine, idle: &mut Idle) -> Result<(), Error> {
        let mut vcpu = vcpu(vm, 0)?;
        for gfn in (0..self.gfns().len()).step_by(self.pages.step() as usize) {
            let fault = Fault { gpa: Gfn(gfn).gpa(), access: Access::Write };
            let done = vcpu.fault(idle, fault).map_err(machine_error)?;
            debug_assert_eq!(done, Next::Resume(Resume::Mapped(Level::K4)));
        }
        Ok(())
    }
}

/// The frames that vCPU `nth`, from 1, faults in.
pub fn elsewhere(nth: u16) -> Span<Gfn> {
    Span::sized(Gfn(u64::from(nth) * STRIDE), STRIDE)
}

/// A memslot for the probe to make and delete, where no other is.
pub fn spare() -> Slot {
    slot(u32::from(MOST_VCPUS) + 1, Span::sized(Gfn(STRIDE / 2), 1))
}

fn slot(id: u32, gfns: Span<Gfn>) -> Slot {
    Slot::new(SlotId(id), gfns.start, gfns.len(), hva_of(gfns.start))
}
