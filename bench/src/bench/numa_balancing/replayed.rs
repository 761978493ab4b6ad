//! One sample: a machine built anew, its vCPUs let loose, and a count of what balancing has cost them.
//!
//! ```text
//! arena       two nodes or more, the same frames for all samples
//! └── space   16 MiB mappings, one for each region of each vCPU's trace
//!     ├── device    may have all of them pinned, as an assigned one has
//!     ├── balancer  the entrant is its policy
//!     └── vm        one memslot for each mapping, one vCPU for each node in turn
//! ```
//! As in Linux, the scanner has no thread of its own: after each stretch of its trace a vCPU's thread is out of the
//! guest and scans, beside the others, which are in it. So the same accesses lie between two scans under every
//! policy, and what a policy costs shows in the time, not in the number of scans.
//!
//! Half-way every vCPU goes over to the next node, as after a decision of the host's scheduler, and its memory stays
//! behind: this is what balancing is for. Timed is the stretch from the line until the last vCPU is done.

use super::kvm_walk::{Behind, Guest, Walked};
use crate::bench::harness::Line;
use crate::bench::machine::pin;
use crate::bench::traces::Trace;
use parking_lot::Mutex;
use slat::{Gpa, Hva, Idle, PAGE_SIZE, Slot, SlotId, Span, VcpuId};
use slat_cli::error::Error;
use slat_cli::thread::{idle, window};
use slat_mm::{
    AddressSpace, Arena, Backing, Balancer, HostView, Node, NumaStats, Place, Policy, Prot, Settings,
};
use slat_vcpu::guest::{Findings, Layout, Replay, Want};
use slat_vcpu::{Cpu, Exit};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// Where guest memory lies in the host's address space.
const BASE: Hva = Hva(0x1000_0000_0000);
/// What a freed frame is filled with: a guest that still reads it finds this.
const POISON: u8 = 0xdd;

/// What to do, the same for every entrant.
pub struct Job {
    pub traces: Vec<Trace>,
    pub vcpus: u32,
    pub nodes: u8,
    /// Times that each trace is replayed.
    pub passes: u32,
    /// Bytes of each scan.
    pub scan_bytes: u64,
    /// Whether the VM listens to reasons; tests let it not.
    pub contexts: bool,
    /// Whether the host backs the guest with pages of 2 MiB where it can.
    pub thp: bool,
    pub arena: Arc<Arena>,
}

/// Who runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entrant {
    /// How the balancer tells the VM; `None`: there is no balancer.
    pub policy: Option<(Policy, u64)>,
    /// Whether the VM has KVM's lock, and its walk.
    pub locked: bool,
    /// Whether a device has all memory pinned.
    pub device: bool,
}

/// What one sample yields.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub wall_ms: f64,
    /// Calls that took something away from the guest: of ranges, or of pages.
    pub unmaps: u64,
    pub flushes: u64,
    pub faults: u64,
    pub balancing: NumaStats,
    /// Table pages that the guest's tables have lost.
    pub tables_lost: u64,
    /// Reads that found what was never written.
    pub corrupt: u64,
    /// Accesses made, of those to make.
    pub accesses: [u64; 2],
}

impl Job {
    /// An arena whose every node has room for all that the vCPUs can touch.
    pub fn arena(traces: &[Trace], vcpus: u32, nodes: u8) -> Result<Arc<Arena>, Error> {
        let regions: usize = (0..vcpus as usize).map(|vcpu| traces[vcpu % traces.len()].regions.len()).sum();
        let room = regions as u64 * Layout::REGION + (64 << 20);
        Ok(Arena::builder().limit(room * u64::from(nodes)).nodes(nodes).poison(POISON).build()?)
    }

    fn trace(&self, vcpu: u32) -> &Trace {
        &self.traces[vcpu as usize % self.traces.len()]
    }

    /// Accesses of one pass of all vCPUs.
    pub fn accesses(&self) -> u64 {
        (0..self.vcpus).map(|vcpu| self.trace(vcpu).accesses()).sum()
    }

    /// One sample of `entrant`.
    pub fn sample(&self, entrant: &Entrant) -> Result<Sample, Error> {
        Node(0).run_here();
        let idle = &mut idle()?;
        let space = AddressSpace::builder(&self.arena).thp(self.thp).build()?;
        let layouts = (0..self.vcpus).map(|vcpu| self.trace(vcpu).regions.len() as u64);
        let regions: u64 = layouts.clone().sum();
        let builder = Guest::builder(Behind::new(HostView::new(&space), entrant.locked))
            .vcpus(self.vcpus)
            .max_slots(regions as u32);
        let builder = builder.contexts(self.contexts);
        let vm = Arc::new(builder.build().map_err(|error| Error::Machine(error.to_string()))?);
        let walked = Arc::new(Walked(vm.clone()));
        space.register(&walked);
        for region in 0..regions {
            let gpa = Gpa(region * Layout::REGION);
            let hva = BASE + gpa.0;
            space.mmap(Place::Fixed(hva), Layout::REGION, Prot::ReadWrite, Backing::Anonymous)?;
            let slot = Slot::new(SlotId(region as u32), gpa.gfn(), Layout::REGION / PAGE_SIZE, hva);
            vm.slots().commit(idle, |tx| tx.create(slot))?;
        }
        let memory = Span::sized(BASE, regions * Layout::REGION);
        let device = if entrant.device { Some(space.pin(idle, memory)?) } else { None };

        let shared = Shared {
            job: self,
            vm: &vm,
            balancer: entrant.policy.map(|(policy, stretch)| {
                Balancer::new(&space, Settings { policy, stretch, ..Settings::default() })
            }),
            line: Line::new(self.vcpus as usize),
            tables: Mutex::default(),
        };
        let mut first = 0;
        let runs: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..self.vcpus)
                .zip(layouts)
                .map(|(vcpu, regions)| {
                    let (shared, from) = (&shared, Gpa(first * Layout::REGION));
                    first += regions;
                    slat_cli::thread::start(scope, move || shared.vcpu(vcpu, from))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
                .collect()
        });
        let runs = runs.into_iter().collect::<Result<Vec<Run>, Error>>()?;
        shared.look_at_tables(idle);
        drop(device);
        self.count(&shared, &space, entrant, &runs)
    }

    /// What all of it comes to.
    fn count(
        &self,
        shared: &Shared<'_>,
        space: &AddressSpace,
        entrant: &Entrant,
        runs: &[Run],
    ) -> Result<Sample, Error> {
        let stats = shared.vm.stats();
        let balancing = space.numa_stats();
        let (Some(began), Some(done)) =
            (runs.iter().map(|run| run.began).min(), runs.iter().map(|run| run.done).max())
        else {
            return Err(Error::Machine("no vCPU ran".into()));
        };
        Ok(Sample {
            wall_ms: (done - began).as_secs_f64() * 1e3,
            unmaps: match entrant.policy {
                Some((Policy::Range, _)) => balancing.notified,
                _ => balancing.told,
            },
            // Nothing else takes pages away, and who owes a flush for a page that moves owes it to the scanner.
            flushes: stats.flushes.paid,
            faults: stats.mapped_faults + stats.permission_faults + stats.spurious_faults,
            balancing,
            tables_lost: shared.tables.lock().lost,
            corrupt: runs.iter().map(|run| run.findings.corrupt).sum(),
            accesses: [runs.iter().map(|run| run.accesses).sum(), self.accesses() * u64::from(self.passes)],
        })
    }
}

/// What the vCPUs of one sample share.
struct Shared<'j> {
    job: &'j Job,
    vm: &'j Guest,
    balancer: Option<Balancer>,
    line: Line,
    tables: Mutex<Tables>,
}

/// The guest's table pages, as they were counted after each scan.
#[derive(Default)]
struct Tables {
    linked: u64,
    lost: u64,
}

/// What one vCPU's thread has done.
struct Run {
    began: Instant,
    done: Instant,
    findings: Findings,
    accesses: u64,
}

impl Shared<'_> {
    /// What vCPU `number` does, whose regions lie from `first` on.
    fn vcpu(&self, number: u32, first: Gpa) -> Result<Run, Error> {
        pin(number as usize);
        let (idle, vcpu) = (idle(), self.vm.vcpu(VcpuId(number)));
        let trace = self.job.trace(number);
        let memory = trace.regions.len() * (Layout::REGION / PAGE_SIZE) as usize;
        let mut guest = Replay::new(memory);
        for (index, &region) in (0..).zip(&trace.regions) {
            guest.layout.place(region, first + index * Layout::REGION);
        }
        // Whatever is missing, no thread may wait for this one at the line.
        self.line.cross();
        let began = Instant::now();
        let idle = &mut idle?;
        let vcpu = vcpu.ok_or_else(|| Error::Machine(format!("vCPU {number} is in use")))?;
        let mut cpu = Cpu::new(vcpu, window(&self.job.arena)).untimed();
        for pass in 0..self.job.passes {
            let moved = u32::from(pass >= self.job.passes.div_ceil(2));
            Node(((number + moved) % u32::from(self.job.nodes)) as u8).run_here();
            for stretch in &trace.stretches {
                guest.feed(stretch.clone());
                match cpu.run(idle, &mut guest) {
                    Exit::Stopped if guest.wants() == Want::Batch => {}
                    Exit::Stopped => return Err(Error::Machine("a trace left its regions".into())),
                    Exit::RingFull => return Err(Error::Machine("a dirty ring is full".into())),
                    Exit::Mmio(fault) => return Err(Error::Machine(format!("no memslot at {}", fault.gpa))),
                    Exit::Failed(fault, error) => {
                        return Err(Error::Machine(format!("vCPU {number} at {}: {error}", fault.gpa)));
                    }
                }
                if let Some(balancer) = &self.balancer {
                    balancer.scan(idle, self.job.scan_bytes)?;
                    self.look_at_tables(idle);
                }
            }
        }
        Ok(Run { began, done: Instant::now(), findings: guest.findings, accesses: guest.accesses })
    }

    /// Counts table pages: nothing here may cost the guest one.
    fn look_at_tables(&self, idle: &mut Idle) {
        let mut tables = self.tables.lock();
        let now = self.vm.table_pages(idle);
        tables.lost += now.waiting + tables.linked.saturating_sub(now.reachable);
        tables.linked = now.reachable;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(contexts: bool, device: bool) -> Sample {
        let traces = Trace::all(10_000, 50_000).unwrap();
        let arena = Job::arena(&traces, 2, 2).unwrap();
        let job =
            Job { traces, vcpus: 2, nodes: 2, passes: 2, scan_bytes: 256 << 20, contexts, thp: false, arena };
        let sample = job.sample(&Entrant { device, ..super::super::RANGE }).unwrap();
        assert_eq!((sample.corrupt, sample.accesses[0]), (0, sample.accesses[1]));
        sample
    }

    /// Negative control of the check that no table page is freed: a VM for which every reason is an unmap frees them.
    #[test]
    fn tables_that_are_lost_are_noticed() {
        assert_eq!(sample(true, false).tables_lost, 0);
        assert!(sample(false, false).tables_lost > 0);
    }

    /// Negative control of the checks that nothing is unmapped or flushed beside a device: before, all was.
    #[test]
    fn what_pinned_pages_pay_is_noticed() {
        let sample = sample(true, true);
        assert!(sample.unmaps > 0 && sample.flushes > 0);
        assert_eq!(sample.balancing.protnone, 0);
    }
}
