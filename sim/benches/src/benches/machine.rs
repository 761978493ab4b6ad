//! The VM that benches run, and a vCPU of it with its guest.

use super::{Setting, Work};
use crate::host::{SimHost, hva_of};
use crate::world::{compute, guest};
use slat::table::formats::Ept4;
use slat::vm::Builder;
use slat::{
    Access, Done, Fault, FaultError, Gfn, Idle, MmuLock, Slot, SlotId, Span, Translations, Vcpu, VcpuId, Vm,
};

/// The VM that is measured.
pub type Machine = Vm<Ept4, SimHost>;

/// A builder of a VM with that many vCPUs.
pub fn builder(host: SimHost, setting: &Setting<'_>, lock: MmuLock) -> Builder<Ept4, SimHost> {
    Vm::builder(host).vcpus(setting.vcpus).mmu_lock(lock)
}

/// A VM with one memslot of so many pages from frame 0 on.
pub fn with_one_slot(builder: Builder<Ept4, SimHost>, pages: u64) -> Result<Machine, String> {
    let vm = builder.build().map_err(|error| error.to_string())?;
    let mut idle = Idle::take().ok_or("this thread is in the engine already")?;
    let slot = Slot::new(SlotId(0), Gfn(0), pages, hva_of(Gfn(0)));
    vm.slots().commit(&mut idle, |tx| tx.create(slot)).map_err(|error| error.to_string())?;
    Ok(vm)
}

/// The part of each vCPU in memory that they share out. A table of leaves belongs to one vCPU alone, as all do where
/// each has gigabytes.
pub fn part(vcpu: u32, pages: u64) -> Span<Gfn> {
    Span::sized(Gfn(u64::from(vcpu) * pages.next_multiple_of(512)), pages)
}

/// The frames of `span`, one by one.
pub fn gfns(span: Span<Gfn>) -> impl Iterator<Item = Gfn> {
    (span.start.0..span.end.0).map(Gfn)
}

/// The TLB of a guest that touches each page once: what it has lost it does not use again.
pub struct NoTlb;

impl Translations for NoTlb {
    fn flush_all(&mut self) {}
    fn flush(&mut self, _: Span<Gfn>) {}
}

/// A vCPU with its guest, on the CPU that runs them.
pub struct Guest<'vm> {
    vcpu: Vcpu<'vm, Ept4, SimHost>,
    idle: Idle,
    work: &'vm Work,
}

impl<'vm> Guest<'vm> {
    /// vCPU `number`, of which this CPU has no other.
    pub fn new(vm: &'vm Machine, number: u32, work: &'vm Work) -> Self {
        let vcpu = vm.vcpu(VcpuId(number)).expect("each vCPU has one job");
        Self { vcpu, idle: Idle::take().expect("each CPU has one vCPU"), work }
    }

    /// In the guest for so long, and whatever kicks take.
    pub fn compute(&mut self, ns: u64) {
        let mut inside = self.vcpu.enter(&mut self.idle, &mut NoTlb);
        let mut left = ns;
        loop {
            left = guest(left, || inside.kicked());
            if inside.kicked() {
                inside.answer(&mut NoTlb);
            }
            if left == 0 {
                return;
            }
        }
    }

    /// The guest computes, then writes to `gfn`, which it finds missing.
    pub fn touch(&mut self, gfn: Gfn) -> Result<Done, FaultError> {
        self.compute(self.work.guest_ns);
        compute(self.work.exit_ns);
        self.vcpu.fault(&mut self.idle, Fault { gpa: gfn.gpa(), access: Access::Write })
    }
}
