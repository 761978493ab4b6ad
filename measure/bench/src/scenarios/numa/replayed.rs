//! One sample: vCPUs replay traces on a host that balances its nodes, and what balancing has cost them.
//!
//! Half-way every vCPU goes to the next node, as after a decision of the host's scheduler, and its memory stays behind: this is what
//! balancing is for. The time is from the line until the last vCPU is done.

use super::balanced::{Balanced, Counts, Events, RangeWalk};
use crate::scenarios::threads_prelude::*;
use crate::threads::traces::Trace;
use slat::Gpa;
use slat_mm::{Node, Policy, Settings};
use slat_vcpu::guest::{Layout, Replay, Want};

/// The flags of `slat bench numa-balancing`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  slat bench numa-balancing --passes 4 --runs 3")]
pub struct NumaBalancing {
    /// vCPUs, a thread each; the bundled traces are dealt out among them, round robin, and the n-th starts on the n-th node
    #[arg(short, long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub vcpus: u32,
    /// Nodes of the host
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=64))]
    pub nodes: u8,
    /// Times that each trace is replayed; half-way every vCPU goes to the next node
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..))]
    pub passes: u32,
    /// Accesses of each trace at most [default: all]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub accesses: Option<u32>,
    /// Accesses of a vCPU between two of its scans
    #[arg(short, long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u32).range(1000..))]
    pub every: u32,
    /// Memory to look at in each scan: 16M, 1G
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    pub scan: u64,
    /// Pages that the host backs the guest with: of 4 KiB, or of 2 MiB where it can
    #[arg(long, default_value = "4k", value_parser = ["4k", "thp"])]
    pub pages: String,
}

/// The work of the vCPUs, the same for every entrant.
pub struct Workload<'f> {
    flags: &'f NumaBalancing,
    /// One for each vCPU; those beyond the last trace begin with the first again.
    traces: Vec<Trace>,
    /// Of all memory of the guests.
    bytes: u64,
    arena: Arc<Arena>,
}

/// An entrant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entrant {
    /// Its name in rows.
    pub name: &'static str,
    /// How the balancer tells the VM, and the bytes of a stretch. `None`: the host does not balance.
    pub policy: Option<(Policy, u64)>,
    pub walk: RangeWalk,
    /// Whether a device has all memory pinned.
    pub device: bool,
}

/// As slat ships: one flush for each 16 MiB.
pub const SLAT: Entrant = Entrant {
    name: "page-batched by 16M",
    policy: Some((Policy::PageBatched, 16 << 20)),
    walk: RangeWalk::Slat,
    device: false,
};
pub const RANGE: Entrant = Entrant { name: "range: before", policy: Some((Policy::Range, 0)), ..SLAT };
pub const PAGE: Entrant = Entrant { name: "page: the series", policy: Some((Policy::Page, 0)), ..SLAT };
/// Before the series, as KVM was.
pub const YIELDING: Entrant = Entrant { name: KVM, walk: RangeWalk::Kvm, ..RANGE };
pub const KVM: &str = "range, yielding: KVM";
pub const ALONE: Entrant = Entrant { name: "no balancing", policy: None, ..SLAT };

/// The result of one sample.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub wall_ms: f64,
    pub counts: Counts,
    /// Accesses that were not made, and reads that found what was never written.
    pub wrong: u64,
}

impl<'f> Workload<'f> {
    /// The arena's every node has room for all that the vCPUs can touch.
    pub fn new(flags: &'f NumaBalancing) -> Result<Self> {
        let most = flags.accesses.map_or(usize::MAX, |most| most as usize);
        let traces = Trace::dealt(Trace::all(flags.every as usize, most)?, flags.vcpus as usize);
        let regions = (0..flags.vcpus as usize).map(|vcpu| traces[vcpu % traces.len()].regions.len());
        let bytes = regions.sum::<usize>() as u64 * Layout::REGION;
        let room = (bytes + (64 << 20)) * u64::from(flags.nodes);
        let arena = Arena::builder().limit(room).nodes(flags.nodes).poison(POISON).build()?;
        Ok(Self { flags, traces, bytes, arena })
    }

    /// The trace of each vCPU.
    fn dealt(&self) -> impl Iterator<Item = (u32, &Trace)> {
        (0..self.flags.vcpus).zip(self.traces.iter().cycle())
    }

    /// Accesses of one pass of all vCPUs.
    pub fn accesses(&self) -> u64 {
        self.dealt().map(|(_, trace)| trace.accesses()).sum()
    }

    /// One sample of `entrant`: a VM made anew.
    pub fn sample(&self, entrant: &Entrant) -> Result<Sample> {
        let flags = self.flags;
        let space = AddressSpace::builder(&self.arena).thp(flags.pages == "thp").build()?;
        let settings = entrant.policy.map(|(policy, stretch)| Settings {
            policy,
            stretch,
            scan_bytes: flags.scan,
            ..Settings::default()
        });
        let how = (settings, entrant.walk, false);
        let balanced = Balanced::new(space.clone(), self.bytes, how, |vm| vm.vcpus(flags.vcpus));
        let balanced = &balanced.map_err(Error::Machine)?;
        let pin = || space.pin(&mut idle()?, Span::sized(BASE, self.bytes)).map_err(Error::from);
        let _device = entrant.device.then(pin).transpose()?;
        let mut vcpus = self.vcpus(balanced)?;
        let work = |idle: &mut Idle, _, vcpu: &mut Replaying<'_>| vcpu.run(idle, flags, balanced);
        let (stats, _) = each_vcpu(&Costs::SERVER, &mut vcpus, work, None)?;
        let made: u64 = vcpus.iter().map(|vcpu| vcpu.guest.accesses).sum();
        let corrupt: u64 = vcpus.iter().map(|vcpu| vcpu.guest.findings.corrupt).sum();
        let to_make = self.accesses() * u64::from(flags.passes);
        Ok(Sample {
            wall_ms: stats.wall_ns as f64 / 1e6,
            counts: balanced.counts(),
            wrong: to_make.abs_diff(made) + corrupt,
        })
    }

    /// The regions of each lie behind those of the one before.
    fn vcpus<'w>(&'w self, balanced: &'w Balanced<Npt4>) -> Result<Vec<Replaying<'w>>> {
        let mut next = Gpa(0);
        let replaying = |(number, trace): (u32, &'w Trace)| {
            let mut guest = Replay::new(trace.regions.len() * (Layout::REGION / PAGE_SIZE) as usize);
            for &region in &trace.regions {
                guest.layout.place(region, next);
                next = next + Layout::REGION;
            }
            let cpu = Cpu::new(vcpu(&balanced.vm, number)?, window(&self.arena)).untimed();
            Ok(Replaying { number, trace, cpu, guest })
        };
        self.dealt().map(replaying).collect()
    }
}

/// A vCPU whose guest replays a trace. On cache lines of its own.
#[repr(align(128))]
struct Replaying<'w> {
    number: u32,
    trace: &'w Trace,
    cpu: Cpu<'w, Npt4, HostView<Events>>,
    guest: Replay,
}

impl Replaying<'_> {
    /// The work of its thread.
    fn run(&mut self, idle: &mut Idle, flags: &NumaBalancing, balanced: &Balanced<Npt4>) -> Result<()> {
        for pass in 0..flags.passes {
            let moved = u32::from(pass >= flags.passes.div_ceil(2));
            Node(((self.number + moved) % u32::from(flags.nodes)) as u8).run_here();
            for stretch in &self.trace.stretches {
                self.guest.feed(stretch.clone());
                run_until_stopped(&mut self.cpu, idle, &mut self.guest, no_ring)?;
                if self.guest.wants() != Want::Batch {
                    return Err(Error::Machine(format!("vCPU {}: a trace left its regions", self.number)));
                }
                balanced.scan(idle).map_err(Error::Machine)?;
            }
        }
        Ok(())
    }
}
