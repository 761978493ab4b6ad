//! slat: vCPUs that fault in memory which slat-mm has mapped and not filled.

use super::{Job, Sample, Tally};
use crate::bench::harness::Line;
use crate::bench::machine::pin;
use slat::table::formats::Npt4;
use slat::{Access, Done, Fault, Gfn, Hva, Level, PAGE_SIZE, Slot, SlotId, Span, VcpuId, Vm};
use slat_cli::error::Error;
use slat_cli::thread::{idle, joined, start};
use slat_mm::{AddressSpace, Arena, Backing, HostView, Place, Prot};
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

/// Where guest memory lies in the host's address space.
pub const BASE: Hva = Hva(0x1000_0000_0000);
/// As much memory as is measured.
pub const MOST: u64 = 1 << 42;

/// A VM, registered.
pub type Machine = Arc<Vm<Npt4, HostView>>;

/// A VM whose guest memory is `bytes` bytes of a new address space on `arena`, with this behind it.
pub fn machine(
    arena: &Arc<Arena>,
    vcpus: u16,
    bytes: u64,
    backing: Backing,
    thp: bool,
) -> Result<(Arc<AddressSpace>, Machine), Error> {
    let space = AddressSpace::builder(arena).thp(thp).build()?;
    space.mmap(Place::Fixed(BASE), bytes, Prot::ReadWrite, backing)?;
    let builder = Vm::<Npt4, _>::builder(HostView::new(&space)).vcpus(vcpus.into());
    let vm = Arc::new(builder.build().map_err(|error| Error::Machine(error.to_string()))?);
    space.register(&vm);
    let slot = Slot::new(SlotId(0), Gfn(0), bytes / PAGE_SIZE, BASE);
    vm.slots().commit(&mut idle()?, |tx| tx.create(slot))?;
    Ok((space, vm))
}

/// One sample: built anew, filled, unmapped.
pub fn sample(job: &Job, arena: &Arc<Arena>) -> Result<Sample, Error> {
    let (space, vm) = machine(arena, job.threads, job.all(), Backing::Anonymous, job.page == Level::M2)?;
    let line = &Line::new(job.threads.into());
    let parts = (0..job.threads).map(|number| {
        let pages = job.bytes / PAGE_SIZE;
        (number, Span::sized(Gfn(u64::from(number) * pages), pages))
    });
    let runs: Vec<_> = thread::scope(|scope| {
        let vcpus: Vec<_> = parts
            .map(|(number, part)| {
                let vm = &vm;
                start(scope, move || fill(vm, number, part, job.page, line))
            })
            .collect();
        vcpus.into_iter().map(ScopedJoinHandle::join).collect()
    });
    let runs: Result<Vec<_>, _> = runs.into_iter().map(joined).collect();
    let runs = runs?;
    let begun = runs.iter().map(|run| run.0).min();
    let done = runs.iter().map(|run| run.1).max();
    let fill_ns = done.zip(begun).map_or(0.0, |(done, begun)| (done - begun).as_nanos() as f64);
    let mapped: u64 = runs.iter().map(|run| run.2).sum();

    let idle = &mut idle()?;
    let pages = || (0..job.all()).step_by(job.page.bytes() as usize);
    let right = pages().filter(|&at| {
        let host = space.lookup(BASE + at, Access::Write);
        let guest = vm.translate(idle, Gfn(at / PAGE_SIZE)).map(|mapping| mapping.leaf.pfn);
        host.is_some_and(|page| page.writable && page.level == job.page && Some(page.pfn) == guest)
    });
    let right = right.count() as u64;
    let waits = space.stats().lock_waits + u64::from(vm.stats().lock_wait_ns > 0);
    let began = Instant::now();
    space.munmap(idle, Span::sized(BASE, job.all()))?;
    let unmap_ns = began.elapsed().as_nanos() as f64;
    let gone = pages().filter(|&at| space.lookup(BASE + at, Access::Read).is_none()).count() as u64;
    let faults = job.faults();
    let tally = Tally {
        faulted: [mapped, faults],
        right: [right, faults],
        gone: [gone, faults],
        unhindered: [faults.saturating_sub(waits), faults],
    };
    Ok(Sample { fill_ns, unmap_ns, tally })
}

/// What vCPU `number` does: when it began and ended, and how many faults mapped a page of the size that was asked for.
fn fill(
    vm: &Machine,
    number: u16,
    part: Span<Gfn>,
    page: Level,
    line: &Line,
) -> Result<(Instant, Instant, u64), Error> {
    pin(number.into());
    let (idle, vcpu) = (idle(), vm.vcpu(VcpuId(number.into())));
    // Whatever is missing, no thread may wait for this one at the line.
    line.cross();
    let began = Instant::now();
    let mut vcpu = vcpu.ok_or_else(|| Error::Machine(format!("vCPU {number} is in use")))?;
    let (mut idle, mut mapped) = (idle?, 0);
    for gfn in (part.start.0..part.end.0).step_by(page.pages() as usize).map(Gfn) {
        let fault = Fault { gpa: gfn.gpa(), access: Access::Write };
        let done =
            vcpu.fault(&mut idle, fault).map_err(|error| Error::Machine(format!("{gfn:?}: {error}")))?;
        mapped += u64::from(done == Done::Mapped(page));
    }
    Ok((began, Instant::now(), mapped))
}
