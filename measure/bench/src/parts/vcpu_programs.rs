//! All vCPUs of a VM, each with its guest program.

use crate::parts::guest_program::{Cpu, Program, Seen};
use crate::parts::processor::{OfProcessor, Tlb};
use crate::parts::setting::Setting;
use crate::parts::sim_host::SimHost;
use crate::parts::vm_setup::{idle, vcpu};
use crate::world::{Job, RunStats};
use slat::table::formats::Ept4;
use slat::{Host, Idle, Vm};

/// One [`Program`] for each vCPU.
pub struct VcpuPrograms<'vm, P, H: Host = SimHost, T = Tlb> {
    members: Vec<Member<'vm, P, H, T>>,
    compute_ns: u64,
}

/// On cache lines of its own: each runs on another CPU.
#[repr(align(128))]
struct Member<'vm, P, H: Host, T> {
    cpu: Cpu<'vm, H, T>,
    program: P,
    failed: Option<String>,
}

impl<'vm, P: Program + Send, H: Host, T: OfProcessor + Send> VcpuPrograms<'vm, P, H, T> {
    /// Each vCPU's guest makes so many accesses to a page in a row, of which a TLB answers all but the first: that long it
    /// computes before it uses the next page.
    ///
    /// Each program has run until it left for the first time, at no cost and uncounted: pages are mapped, and TLBs warm.
    pub fn warm(
        vm: &'vm Vm<Ept4, H>,
        setting: &Setting<'_>,
        accesses: u64,
        tlb: impl Fn(u32) -> T,
        program: impl Fn(u32) -> P,
    ) -> Result<Self, String> {
        let mut idle = idle()?;
        let compute_ns = accesses * setting.work.guest_ns;
        let member = |number| {
            let (mut cpu, mut program) = (Cpu::new(vcpu(vm, number)?, tlb(number)), program(number));
            cpu.run(&mut idle, &mut program)?;
            (cpu.compute_ns, cpu.exit_ns, cpu.seen) = (compute_ns, setting.work.exit_ns, Seen::default());
            Ok(Member { cpu, program, failed: None })
        };
        Ok(Self { members: (0..setting.vcpus).map(member).collect::<Result<_, String>>()?, compute_ns })
    }

    /// A job for each, which does `work` with it.
    pub fn jobs<'c>(
        &'c mut self,
        work: impl Fn(&mut Idle, &mut Cpu<'vm, H, T>, &mut P) -> Result<(), String> + Copy + Send + 'c,
    ) -> Vec<Job<'c>> {
        let job = |member: &'c mut Member<'vm, P, H, T>| {
            Job::vcpu(member.cpu.number(), move || {
                let ran = idle().and_then(|mut idle| work(&mut idle, &mut member.cpu, &mut member.program));
                member.failed = ran.err();
            })
        };
        self.members.iter_mut().map(job).collect()
    }

    /// The sum of all counts, if no vCPU has failed.
    pub fn seen(&self) -> Result<Seen, String> {
        let (seen, failed) = self.seen_by_all();
        failed.map_or(Ok(seen), Err)
    }

    /// The sum of all counts, and the error of a vCPU that has failed.
    pub fn seen_by_all(&self) -> (Seen, Option<String>) {
        let seen = self.members.iter().fold(Seen::default(), |sum, member| sum.and(&member.cpu.seen));
        (seen, self.members.iter().find_map(|member| member.failed.clone()))
    }

    /// Nanoseconds of all vCPUs together in which their guests did not compute.
    pub fn lost_ns(&self, stats: &RunStats, seen: &Seen) -> u64 {
        let all = stats.jobs.iter().take(self.members.len()).map(|job| job.ns);
        all.sum::<u64>().saturating_sub(seen.uses * self.compute_ns)
    }
}
