//! A vCPU of `slat-vcpu`, for the benches that are one program in both worlds: its guest uses one word of each page, through a TLB that
//! it really has.

use crate::parts::touch_pages::Touch;
use crate::parts::vm_setup::with_slots;
use crate::threads::flag_values::machine_error;
use slat::baselines::{Baseline, MmuLock};
use slat::table::formats::Npt4;
use slat::{Fault, Format, Gfn, Host, Idle, Slot, Vcpu, VcpuId, Vm};
use slat_cli::error::Error;
use slat_cli::thread::window;
use slat_mm::HostView;
use slat_vcpu::cpu::{Core, Program, Step};
use slat_vcpu::{Cpu, Exit};
use std::iter::Peekable;

/// The word that a guest stores at the beginning of a page.
pub fn stored(gfn: Gfn) -> u64 {
    gfn.0 << 8 | 1
}

/// The accesses of a guest to each page.
#[derive(Clone, Copy, Debug)]
pub struct Uses {
    /// It stores [`stored`].
    pub stores: bool,
    /// Then it loads a word, and compares.
    pub finds: Option<Word>,
}

/// An offset in a page, and what has to be there.
pub type Word = (u64, fn(Gfn) -> u64);

/// See the module's header. On cache lines of its own.
#[repr(align(128))]
pub struct SoftwareVcpu<'vm> {
    /// Its number.
    id: VcpuId,
    /// With the time that each fault took.
    pub cpu: Cpu<'vm, Npt4, HostView>,
    uses: Uses,
    on: Option<usize>,
    counts: [u64; 2],
    /// Words that were not what they had to be.
    wrong: u64,
    /// Why it went no further.
    failed: Option<Error>,
}

impl<'vm> SoftwareVcpu<'vm> {
    /// vCPU `number`, of which there is no other.
    pub fn new(vm: &'vm Vm<Npt4, HostView>, number: u32, uses: Uses) -> Result<Self, Error> {
        let cpu = Cpu::new(vcpu(vm, number)?, window(vm.host().space().arena()));
        Ok(Self { id: VcpuId(number), cpu, uses, on: None, counts: [0; 2], wrong: 0, failed: None })
    }

    /// The vCPU, whose faults are not timed.
    pub fn untimed(self) -> Self {
        Self { cpu: self.cpu.untimed(), ..self }
    }

    /// The vCPU, tied to this CPU.
    pub fn on(self, cpu: usize) -> Self {
        Self { on: Some(cpu), ..self }
    }
}

/// Runs `program` until it stops by itself; `drain` empties the vCPU's dirty ring whenever it is full.
pub fn run_until_stopped<F: Format, H: Host>(
    cpu: &mut Cpu<'_, F, H>,
    idle: &mut Idle,
    program: &mut impl Program,
    mut drain: impl FnMut(&mut Idle) -> Result<(), Error>,
) -> Result<(), Error> {
    let wrong = |gpa, why: &dyn std::fmt::Display| Err(machine_error(format!("guest address {gpa}: {why}")));
    loop {
        match cpu.run(idle, program) {
            Exit::Stopped => return Ok(()),
            Exit::RingFull => drain(idle)?,
            Exit::Mmio(fault) => return wrong(fault.gpa, &"there is no memory"),
            Exit::Failed(fault, error) => return wrong(fault.gpa, &error),
        }
    }
}

/// The ring handler of a vCPU that has no ring.
pub fn no_ring(_idle: &mut Idle) -> Result<(), Error> {
    Err(machine_error("a dirty ring is full"))
}

/// A VM on `host` with so many vCPUs, under this MMU lock, with these memslots.
pub fn vm_with<F: Format, H: Host>(
    host: H,
    vcpus: u32,
    lock: MmuLock,
    slots: impl IntoIterator<Item = Slot>,
) -> Result<Vm<F, H>, Error> {
    let builder = Vm::builder(host).vcpus(vcpus).baseline(Baseline::NONE.mmu_lock(lock));
    with_slots(builder, slots).map_err(Error::Machine)
}

/// vCPU `number`, of which there is no other.
pub fn vcpu<F: Format, H: Host>(vm: &Vm<F, H>, number: u32) -> Result<Vcpu<'_, F, H>, Error> {
    vm.vcpu(VcpuId(number)).ok_or_else(|| machine_error(format!("vCPU {number} is in use")))
}

/// The first of the vCPUs' errors, or how many words were wrong.
pub fn words_wrong(vcpus: &mut [SoftwareVcpu<'_>]) -> Result<u64, Error> {
    match vcpus.iter_mut().find_map(|vcpu| vcpu.failed.take()) {
        Some(error) => Err(error),
        None => Ok(vcpus.iter().map(|vcpu| vcpu.wrong).sum()),
    }
}

/// As [`words_wrong`], where a wrong word is an error.
pub fn all_went_well(vcpus: &mut [SoftwareVcpu<'_>]) -> Result<(), Error> {
    match words_wrong(vcpus)? {
        0 => Ok(()),
        wrong => Err(Error::Machine(format!("{wrong} words were wrong"))),
    }
}

impl Touch for SoftwareVcpu<'_> {
    fn id(&self) -> VcpuId {
        self.id
    }

    fn cpu(&self) -> Option<usize> {
        self.on
    }

    fn touched(&mut self, idle: &mut Idle, gfn: Gfn) {
        self.touched_each(idle, std::iter::once(gfn));
    }

    /// Pages that its guest has used, whether they were missing or not.
    fn counts(&mut self) -> &mut [u64; 2] {
        &mut self.counts
    }

    /// In one go: a guest leaves for nothing but faults.
    fn touched_each(&mut self, idle: &mut Idle, pages: impl Iterator<Item = Gfn>) {
        let mut guest = Guest { pages: pages.peekable(), uses: self.uses, used: 0, wrong: 0 };
        if let Err(error) = run_until_stopped(&mut self.cpu, idle, &mut guest, no_ring) {
            self.failed = Some(error);
        }
        self.counts = self.counts.map(|count| count + guest.used);
        self.wrong += guest.wrong;
    }
}

/// Stops after the last page.
struct Guest<P: Iterator<Item = Gfn>> {
    pages: Peekable<P>,
    uses: Uses,
    used: u64,
    wrong: u64,
}

impl<P: Iterator<Item = Gfn>> Program for Guest<P> {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        let Some(&gfn) = self.pages.peek() else { return Ok(Step::Stop) };
        if self.uses.stores {
            core.store(gfn.gpa(), &stored(gfn).to_le_bytes())?;
        }
        if let Some((offset, expected)) = self.uses.finds {
            let mut word = [0; 8];
            core.load(gfn.gpa() + offset, &mut word)?;
            self.wrong += u64::from(u64::from_le_bytes(word) != expected(gfn));
        }
        self.pages.next();
        self.used += 1;
        Ok(Step::Next)
    }
}
