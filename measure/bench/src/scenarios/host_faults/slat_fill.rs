//! slat: vCPUs that fault in memory which slat-mm has mapped and not filled.

use super::fill_job::{GONE, Job, RIGHT, Sample};
use crate::parts::mm_vm::machine as vm_of;
pub use crate::parts::sim_host::BASE;
use crate::scenarios::demand_paging::first_touch::Fixture;
use crate::scenarios::threads_prelude::*;

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
    let vm = vm_of(&space, bytes, backing, |vm| vm.vcpus(vcpus.into())).map_err(Error::Machine)?;
    Ok((space, vm))
}

/// One sample: built anew, filled, unmapped.
pub fn sample(job: &Job, arena: &Arc<Arena>) -> Result<Sample, Error> {
    let (space, vm) = machine(arena, job.threads, job.all(), Backing::Anonymous, job.page == Level::M2)?;
    let pages = job.bytes / PAGE_SIZE;
    let parts: Vec<_> =
        (0..u64::from(job.threads)).map(|number| Span::sized(Gfn(number * pages), pages)).collect();
    let vcpus: Result<Vec<_>, _> = (0..u32::from(job.threads)).map(|number| Bare::new(&vm, number)).collect();
    let mut vcpus = vcpus.map_err(Error::Machine)?;
    let right = (RIGHT, host_has(&space, job.page));
    let fixture = Fixture { vm: &*vm, parts: &parts, page: job.page, right };
    let lap = fixture.run(&Costs::SERVER, &mut vcpus, || (), None).map_err(Error::Machine)?;
    let waits = space.stats().lock_waits + u64::from(vm.lock_waits().1 > 0);
    drop(vcpus);

    let began = Instant::now();
    space.munmap(&mut idle()?, Span::sized(BASE, job.all()))?;
    let unmap_ns = began.elapsed().as_nanos() as f64;
    let pages = (0..job.all()).step_by(job.page.bytes() as usize);
    let gone = pages.filter(|&at| space.lookup(BASE + at, Access::Read).is_none()).count() as u64;
    let faults = job.faults();
    let mut tally = lap.tally;
    tally.push((GONE, [gone, faults]));
    tally.push(("no fault waited for a lock", [faults.saturating_sub(waits), faults]));
    Ok(job.sample([lap.stats.wall_ns as f64, unmap_ns], tally))
}
