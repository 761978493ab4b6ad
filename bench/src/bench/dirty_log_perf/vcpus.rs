//! vCPUs that go over their parts of memory together, once for each pass.
//!
//! Between passes no vCPU runs, so that none disturbs what the test does with the log. The vCPUs keep their TLBs from pass to
//! pass: a store through an entry that a missing flush has left would go unnoticed, and a check finds it. The guest's memory is
//! not there: loads read ones, stores are lost.

use super::logged_vm::{LoggedVm, Pages};
use super::reported::Reported;
use super::sweep::{Pass, Sweep};
use crate::bench::software_vcpu::{run_until_stopped, vcpu};
use slat::table::formats::Ept4;
use slat::{Gfn, Idle, Level, Span, VcpuId};
use slat_cli::error::Error;
use slat_cli::thread::idle;
use slat_machine::Costs;
use slat_threads::world::{Job, run};
use slat_vcpu::{Cpu, Window};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The vCPUs of a VM, numbered from 0, each with its part of memory.
pub struct Vcpus<'vm> {
    pub vm: &'vm LoggedVm,
    cpus: Vec<(Cpu<'vm, Ept4, Pages>, Span<Gfn>)>,
    /// What rings and harvests have reported.
    pub reported: Reported,
    /// Times that a vCPU left the guest because its ring was full.
    pub rings_full: AtomicU64,
    /// Of the thread that works between passes.
    pub idle: Idle,
}

impl<'vm> Vcpus<'vm> {
    /// So many vCPUs that share out `gfns`; an exit from the guest takes each so long.
    pub fn new(vm: &'vm LoggedVm, gfns: Span<Gfn>, vcpus: u32, exit: Duration) -> Result<Self, Error> {
        let cpu = |(number, part)| {
            // SAFETY: no frame is in it.
            let nothing = unsafe { Window::new(NonNull::dangling(), 0) };
            Ok((Cpu::new(vcpu(vm, number)?, nothing).untimed().with_exits_of(exit), part))
        };
        let cpus = (0..).zip(parts(gfns, vcpus)).map(cpu).collect::<Result<_, Error>>()?;
        let (reported, rings_full) = (Reported::nothing(gfns.len()), AtomicU64::new(0));
        Ok(Self { vm, cpus, reported, rings_full, idle: idle()? })
    }

    /// One pass of all vCPUs, each on a thread: from when they began until the last was done.
    pub fn pass(&mut self, pass: Pass) -> Result<Duration, Error> {
        let Self { vm, cpus, reported, rings_full, .. } = self;
        let (vm, reported, rings_full) = (*vm, &*reported, &*rings_full);
        let mut done: Vec<Result<(), Error>> = cpus.iter().map(|_| Ok(())).collect();
        let jobs = (0..).zip(cpus).zip(&mut done).map(|((number, (cpu, part)), done)| {
            let mut sweep = Sweep { pages: *part, pass };
            let drain = move |idle: &mut Idle| {
                let harvest = vm.harvest_ring(idle, VcpuId(number))?;
                harvest.words().for_each(|word| reported.add(word.first.gfn, word.bits));
                harvest.commit();
                rings_full.fetch_add(1, Relaxed);
                Ok(())
            };
            let work = move || {
                *done = idle().and_then(|mut idle| run_until_stopped(cpu, &mut idle, &mut sweep, drain));
            };
            Job::vcpu(number, work)
        });
        let took = run(&Costs::SERVER, jobs.collect()).wall_ns;
        done.into_iter().collect::<Result<(), Error>>()?;
        Ok(Duration::from_nanos(took))
    }
}

/// So many parts of much the same length, each of whole 2 MiB, and all of `gfns` together.
pub fn parts(gfns: Span<Gfn>, count: u32) -> Vec<Span<Gfn>> {
    let (large, count) = (gfns.len() / Level::M2.pages(), u64::from(count));
    let begin = |nth| gfns.start + large * nth / count * Level::M2.pages();
    (0..count).map(|nth| Span::new(begin(nth), begin(nth + 1))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::logged_vm::memory;
    use super::*;

    #[test]
    fn parts_are_whole_and_leave_nothing_out() {
        for count in [1, 2, 3, 7] {
            let parts = parts(memory(7 << 21), count);
            assert!(parts.iter().all(|part| part.len().is_multiple_of(512) && !part.is_empty()));
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            let all = parts.iter().copied().reduce(|all, part| all.hull(&part));
            assert_eq!((parts.len() as u32, all), (count, Some(memory(7 << 21))));
        }
    }
}
