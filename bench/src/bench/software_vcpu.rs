//! A vCPU of `slat-vcpu`, for the benches that are one program in both worlds: its guest uses one word of each page, through a TLB that
//! it really has.

use slat::table::formats::Npt4;
use slat::{Fault, Format, Gfn, Host, Idle, VcpuId, Vm};
use slat_cli::error::Error;
use slat_cli::thread::window;
use slat_mm::HostView;
use slat_threads::benches::guest::Touch;
use slat_vcpu::cpu::{Core, Program, Step};
use slat_vcpu::{Cpu, Exit};
use std::iter::Peekable;

/// What a guest stores at the beginning of a page.
pub fn stored(gfn: Gfn) -> u64 {
    gfn.0 << 8 | 1
}

/// What a guest does with each page.
#[derive(Clone, Copy, Debug)]
pub struct Uses {
    /// It stores [`stored`].
    pub stores: bool,
    /// Then it loads the word at this offset, which has to be this one.
    pub finds: Option<(u64, fn(Gfn) -> u64)>,
}

/// See the module's header. On cache lines of its own.
#[repr(align(128))]
pub struct SoftwareVcpu<'vm> {
    /// Its number.
    id: VcpuId,
    /// With the time that each fault took.
    pub cpu: Cpu<'vm, Npt4, HostView>,
    uses: Uses,
    counts: [u64; 2],
    /// Words that were not what they had to be.
    pub wrong: u64,
    /// Why it went no further.
    pub failed: Option<Error>,
}

impl<'vm> SoftwareVcpu<'vm> {
    /// vCPU `number`, of which there is no other.
    pub fn new(vm: &'vm Vm<Npt4, HostView>, number: u32, uses: Uses) -> Result<Self, Error> {
        let id = VcpuId(number);
        let vcpu = vm.vcpu(id).ok_or_else(|| Error::Machine(format!("vCPU {number} is in use")))?;
        let cpu = Cpu::new(vcpu, window(vm.host().space().arena()));
        Ok(Self { id, cpu, uses, counts: [0; 2], wrong: 0, failed: None })
    }
}

impl Touch for SoftwareVcpu<'_> {
    fn id(&self) -> VcpuId {
        self.id
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
        let why = match self.cpu.run(idle, &mut guest) {
            Exit::Stopped => None,
            Exit::RingFull => Some("a dirty ring is full".to_owned()),
            Exit::Mmio(fault) => Some(format!("there is no memory at {}", fault.gpa)),
            Exit::Failed(fault, error) => Some(format!("{error} at {}", fault.gpa)),
        };
        self.failed = why.map(|why| Error::Machine(format!("vCPU {}: {why}", self.id.0)));
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
