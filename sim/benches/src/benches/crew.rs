//! All vCPUs of a machine, each with its program.

use super::Setting;
use super::machine::{Machine, idle};
use super::program::{Cpu, Program, Seen};
use crate::world::{Job, Told};
use slat::{Idle, VcpuId};

/// See the module's header.
pub struct Crew<'vm, P> {
    members: Vec<Member<'vm, P>>,
    compute_ns: u64,
}

/// On lines of its own: each runs on another CPU.
#[repr(align(128))]
struct Member<'vm, P> {
    cpu: Cpu<'vm>,
    program: P,
    failed: Option<String>,
}

impl<'vm, P: Program + Send> Crew<'vm, P> {
    /// Each vCPU's guest makes so many accesses to a page in a row, of which a TLB answers all but the first: that long it
    /// computes before it uses the next page.
    ///
    /// Each program has run until it left for the first time, at no cost and uncounted: pages are mapped, and TLBs warm.
    pub fn warm(
        vm: &'vm Machine,
        setting: &Setting<'_>,
        accesses: u64,
        program: impl Fn(u32) -> P,
    ) -> Result<Self, String> {
        let mut idle = idle()?;
        let compute_ns = accesses * setting.work.guest_ns;
        let member = |number| {
            let vcpu = vm.vcpu(VcpuId(number)).ok_or_else(|| format!("there is no vCPU {number}"))?;
            let (mut cpu, mut program) = (Cpu::new(vcpu), program(number));
            cpu.run(&mut idle, &mut program)?;
            (cpu.compute_ns, cpu.exit_ns, cpu.seen) = (compute_ns, setting.work.exit_ns, Seen::default());
            Ok(Member { cpu, program, failed: None })
        };
        Ok(Self { members: (0..setting.vcpus).map(member).collect::<Result<_, String>>()?, compute_ns })
    }

    /// A job for each, which does `work` with it.
    pub fn jobs<'c>(
        &'c mut self,
        work: impl Fn(&mut Idle, &mut Cpu<'vm>, &mut P) -> Result<(), String> + Copy + Send + 'c,
    ) -> Vec<Job<'c>> {
        let job = |member: &'c mut Member<'vm, P>| {
            Job::vcpu(member.cpu.number(), move || {
                let ran = idle().and_then(|mut idle| work(&mut idle, &mut member.cpu, &mut member.program));
                member.failed = ran.err();
            })
        };
        self.members.iter_mut().map(job).collect()
    }

    /// What all have done together, if none has failed.
    pub fn seen(&self) -> Result<Seen, String> {
        match self.members.iter().find_map(|member| member.failed.clone()) {
            Some(error) => Err(error),
            None => Ok(self.members.iter().fold(Seen::default(), |sum, member| sum.and(&member.cpu.seen))),
        }
    }

    /// Nanoseconds of all vCPUs together in which their guests did not compute.
    pub fn lost_ns(&self, told: &Told, seen: &Seen) -> u64 {
        let all = told.jobs.iter().take(self.members.len()).map(|job| job.ns);
        all.sum::<u64>().saturating_sub(seen.uses * self.compute_ns)
    }
}
