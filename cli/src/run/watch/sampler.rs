//! Takes a sample of a run.

use super::heat::Heat;
use crate::figures::Ahead;
use crate::figures::{TlbCounts, VcpuCounts};
use crate::live::{Live, Watching};
use crate::run::args::Run;
use crate::run::guest_vm::Machine;
use crate::sample::{Caused, Dirty, Lock, Sample, Samples, Swapped};
use parking_lot::Mutex;
use slat::{Format, Idle};
use std::time::Instant;

/// Takes samples of one run.
pub struct Sampler<'m, F: Format> {
    machine: &'m Machine<F>,
    live: &'m Live,
    run: &'m Run,
    guest: String,
    began: Instant,
    heat: Mutex<Heat>,
}

impl<'m, F: Format> Sampler<'m, F> {
    /// A sampler for a run that begins now. `guest` is the guest's name.
    pub fn new(machine: &'m Machine<F>, live: &'m Live, run: &'m Run, guest: String) -> Self {
        Self { machine, live, run, guest, began: Instant::now(), heat: Mutex::new(Heat::new()) }
    }
}

impl<F: Format> Samples for Sampler<'_, F> {
    fn sample(&self, idle: &mut Idle) -> Sample {
        let stats = self.machine.vm.stats();
        let caused = stats.flushes_by.iter().filter(|(_, flushes)| flushes.paid > 0);
        let vcpus: Vec<VcpuCounts> = self.live.vcpus().collect();
        let sum = |of: fn(&VcpuCounts) -> u64| vcpus.iter().map(of).sum();
        let (ages, heat, dirty_bits) = {
            let mut heat = self.heat.lock();
            heat.look(idle, self.machine, self.live);
            (heat.ages(), heat.cells(), heat.dirty())
        };
        let space = self.machine.space.stats();
        let swap = self.machine.swap.as_ref();
        let (waits, wait_ns) = self.machine.vm.lock_waits();
        Sample {
            watch: Sample::VERSION,
            ended: false,
            at_ms: self.began.elapsed().as_millis() as u64,
            guest: self.guest.clone(),
            format: F::NAME.into(),
            accesses: sum(|vcpu| vcpu.accesses),
            tlb: TlbCounts { hits: sum(|vcpu| vcpu.hits), misses: sum(|vcpu| vcpu.misses) },
            vcpus,
            faults: (&stats).into(),
            flushes: stats.flushes.into(),
            flushes_by: caused
                .map(|(cause, flushes)| Caused { cause: cause.name().into(), flushes: flushes.into() })
                .collect(),
            lock: Lock { waits, wait_ns },
            mapped: (&stats).into(),
            mapped_bytes: stats.mapped_bytes(),
            table_bytes: stats.table_bytes,
            dirty: Dirty {
                by: self.run.dirty_log.name().into(),
                pages: if self.machine.logs { self.live.logged() } else { dirty_bits },
            },
            swap: swap.map(|_| Swapped { out: space.swapped_out, r#in: space.swapped_in }),
            ahead: Ahead::of(self.machine),
            ages,
            heat,
        }
    }

    fn watch(&self) -> Watching<'_> {
        self.live.watch()
    }
}
