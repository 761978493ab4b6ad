//! A vCPU with a TLB, and a guest that runs on it: computes, uses pages, answers kicks.
//!
//! ```text
//! in the guest   compute ─▶ use a page ── in the TLB ─────────────────────▶ its frame
//!                   ▲ kicked: answer  └── a miss: walk ─ leaf: remember ──▶ its frame
//!                                                  └─ none: leave, fault, enter, again
//! ```
//! Whether a frame is the page's still, each bench knows ([`Program::used`]), and keeps in atomics of `core`'s: what checks need
//! costs no time in any world.

use super::Setting;
use super::hardware::{Tlb, walk};
use super::machine::{Machine, idle};
use crate::host::SimHost;
use crate::world::{self, Job, Told};
use slat::table::formats::Ept4;
use slat::{Access, Done, Fault, Gfn, Idle, Pfn, Vcpu, VcpuId};

/// What a guest does next.
pub enum Next {
    /// Computes, then loads from a page.
    Load(Gfn),
    /// Leaves the guest, to whoever runs it.
    Leave,
}

/// A guest.
pub trait Program {
    /// What it does next.
    fn next(&mut self) -> Next;
    /// It has used frame `pfn` as page `gfn`: before its vCPU answers any flush that came after.
    fn used(&mut self, gfn: Gfn, pfn: Pfn);
    /// There is no memory at `gfn`; it goes on past it.
    fn none(&mut self, gfn: Gfn);
}

/// What a vCPU has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Pages used.
    pub uses: u64,
    /// Of them, with the TLB filled by a walk.
    pub walks: u64,
    /// Faults that mapped a page.
    pub mapped: u64,
    /// Faults that found one mapped meanwhile.
    pub spurious: u64,
    /// Faults where there was no memory.
    pub none: u64,
    /// Nanoseconds in faults, from the guest's exit to its entry.
    pub fault_ns: u64,
}

impl Seen {
    /// Both together.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        Self {
            uses: self.uses + other.uses,
            walks: self.walks + other.walks,
            mapped: self.mapped + other.mapped,
            spurious: self.spurious + other.spurious,
            none: self.none + other.none,
            fault_ns: self.fault_ns + other.fault_ns,
        }
    }

    /// Faults of all kinds.
    pub fn faults(&self) -> u64 {
        self.mapped + self.spurious + self.none
    }
}

/// A vCPU.
pub struct Cpu<'vm> {
    vcpu: Vcpu<'vm, Ept4, SimHost>,
    tlb: Tlb,
    compute_ns: u64,
    exit_ns: u64,
    seen: Seen,
}

/// A vCPU and its guest.
pub struct Guest<'vm, P> {
    cpu: Cpu<'vm>,
    /// What it runs.
    pub program: P,
    failed: Option<String>,
}

impl<'vm, P: Program + Send> Guest<'vm, P> {
    /// vCPU `number`; its guest computes for so long before it uses a page.
    pub fn new(
        vm: &'vm Machine,
        number: u32,
        (setting, compute_ns): (&Setting<'_>, u64),
        program: P,
    ) -> Result<Self, String> {
        let vcpu = vm.vcpu(VcpuId(number)).ok_or_else(|| format!("vCPU {number} is in use"))?;
        let exit_ns = setting.work.exit_ns;
        let cpu = Cpu { vcpu, tlb: Tlb::new(), compute_ns, exit_ns, seen: Seen::default() };
        Ok(Self { cpu, program, failed: None })
    }

    /// What its vCPU has done.
    pub fn seen(&self) -> &Seen {
        &self.cpu.seen
    }
}

/// Before a run: each guest runs until it leaves, at no cost and uncounted. Then pages are mapped, and TLBs warm.
pub fn warm<P: Program>(guests: &mut [Guest<'_, P>]) -> Result<(), String> {
    let mut idle = idle()?;
    for Guest { cpu, program, .. } in guests {
        let (compute_ns, exit_ns) = (cpu.compute_ns, cpu.exit_ns);
        (cpu.compute_ns, cpu.exit_ns) = (0, 0);
        cpu.run(&mut idle, program)?;
        (cpu.compute_ns, cpu.exit_ns, cpu.seen) = (compute_ns, exit_ns, Seen::default());
    }
    Ok(())
}

/// A job for each guest, which does `work` with it.
pub fn jobs<'g, 'vm: 'g, P: Program + Send>(
    guests: &'g mut [Guest<'vm, P>],
    work: impl Fn(&mut Idle, &mut Cpu<'vm>, &mut P) -> Result<(), String> + Copy + Send + 'g,
) -> Vec<Job<'g>> {
    let job = |(number, guest): (u32, &'g mut Guest<'vm, P>)| {
        Job::vcpu(number, move || {
            let ran = idle().and_then(|mut idle| work(&mut idle, &mut guest.cpu, &mut guest.program));
            guest.failed = ran.err();
        })
    };
    (0..).zip(guests).map(job).collect()
}

/// What all of them have done, if none has failed.
pub fn seen<P>(guests: &[Guest<'_, P>]) -> Result<Seen, String> {
    match guests.iter().find_map(|guest| guest.failed.clone()) {
        Some(error) => Err(error),
        None => Ok(guests.iter().fold(Seen::default(), |sum, guest| sum.and(&guest.cpu.seen))),
    }
}

impl Cpu<'_> {
    /// Runs the guest until it leaves by itself.
    pub fn run(&mut self, idle: &mut Idle, program: &mut impl Program) -> Result<(), String> {
        let mut again = None;
        while let Some(gfn) = self.run_to_fault(idle, program, again) {
            let began = world::now();
            world::compute(self.exit_ns);
            let fault = Fault { gpa: gfn.gpa(), access: Access::Read };
            let done = self.vcpu.fault(idle, fault).map_err(|error| format!("{:?}: {error}", fault.gpa))?;
            self.seen.fault_ns += world::now() - began;
            again = Some(gfn);
            match done {
                Done::Mapped(_) | Done::Fixed => self.seen.mapped += 1,
                Done::Spurious => self.seen.spurious += 1,
                Done::Mmio | Done::RingFull => {
                    self.seen.none += 1;
                    program.none(gfn);
                    again = None;
                }
            }
        }
        Ok(())
    }

    /// In the guest until a page is missing, which one; `None`: until the guest leaves. It begins with the page `again`,
    /// whose turn it is still.
    fn run_to_fault(
        &mut self,
        idle: &mut Idle,
        program: &mut impl Program,
        mut again: Option<Gfn>,
    ) -> Option<Gfn> {
        let vm = self.vcpu.vm();
        let mut inside = self.vcpu.enter(idle, &mut self.tlb);
        loop {
            let gfn = match again.take() {
                Some(gfn) => gfn,
                None => {
                    let Next::Load(gfn) = program.next() else { return None };
                    let mut left = self.compute_ns;
                    loop {
                        left = world::guest(left, || inside.kicked());
                        if inside.kicked() {
                            inside.answer(&mut self.tlb);
                        }
                        if left == 0 {
                            break gfn;
                        }
                    }
                }
            };
            let pfn = match self.tlb.find(gfn) {
                Some(pfn) => pfn,
                None => {
                    // SAFETY: in guest mode, and every flush is carried out before it is answered.
                    let found =
                        unsafe { walk(vm.host(), inside.root(), &mut self.tlb.tables, (gfn, Access::Read)) };
                    let Some(pfn) = found else { return Some(gfn) };
                    self.tlb.remember(gfn, pfn);
                    self.seen.walks += 1;
                    pfn
                }
            };
            self.seen.uses += 1;
            program.used(gfn, pfn);
        }
    }
}

/// Nanoseconds of all vCPUs together.
pub fn vcpus_ns(told: &Told) -> u64 {
    told.jobs.iter().filter(|job| job.name == "vCPU").map(|job| job.ns).sum()
}

/// A way round so many places that is one vCPU's own: it begins somewhere, and goes on by leaps of a length that leads to
/// every place. So vCPUs do not meet in the same places one after the other.
pub struct Way {
    at: u64,
    leap: u64,
    places: u64,
}

impl Way {
    /// That of vCPU `number`, drawn by lot.
    pub fn new(setting: &Setting<'_>, number: u32, places: u64) -> Self {
        let lot = |nth| setting.lot(u64::from(number) * 2 + nth);
        let leads_everywhere = |&leap: &u64| (2..=leap).all(|by| places % by != 0 || leap % by != 0);
        let leap = (0..).map(|more| (lot(0) + more) % places.max(1) + 1).find(leads_everywhere);
        Self { at: lot(1) % places, leap: leap.unwrap_or(1), places }
    }

    /// The next place.
    pub fn next(&mut self) -> u64 {
        self.at = (self.at + self.leap) % self.places;
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches::{Policy, Work};
    use crate::world::Costs;

    #[test]
    fn every_way_leads_to_every_place() {
        let setting = Setting {
            costs: &Costs::SERVER,
            vcpus: 9,
            policy: Policy::None,
            quick: true,
            seed: 3,
            work: Work::default(),
        };
        for (places, number) in
            [1, 2, 30, 64, 235, 470].into_iter().flat_map(|places| (0..9).map(move |number| (places, number)))
        {
            let mut way = Way::new(&setting, number, places);
            let mut seen: Vec<u64> = (0..places).map(|_| way.next()).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..places), "vCPU {number} of {places} places");
        }
    }
}
