//! The VM that benches run, and how its vCPUs share out memory.

use super::Setting;
use crate::host::{SimHost, first_page, hva_of};
use slat::table::formats::Ept4;
use slat::vm::Builder;
use slat::{Gfn, Idle, MmuLock, Slot, SlotId, Span, Vm};

/// The VM that is measured.
pub type Machine = Vm<Ept4, SimHost>;

/// A builder of a VM with that many vCPUs.
pub fn builder(host: SimHost, setting: &Setting<'_>, lock: MmuLock) -> Builder<Ept4, SimHost> {
    Vm::builder(host).vcpus(setting.vcpus).mmu_lock(lock)
}

/// A VM with one memslot of so many pages from frame 0 on.
pub fn with_one_slot(builder: Builder<Ept4, SimHost>, pages: u64) -> Result<Machine, String> {
    let vm = builder.build().map_err(|error| error.to_string())?;
    let slot = Slot::new(SlotId(0), Gfn(0), pages, hva_of(Gfn(0)));
    vm.slots().commit(&mut idle()?, |tx| tx.create(slot)).map_err(|error| error.to_string())?;
    Ok(vm)
}

/// The part of each vCPU in memory that they share out. A table of leaves belongs to one vCPU alone, as all do where
/// each has gigabytes.
pub fn part(vcpu: u32, pages: u64) -> Span<Gfn> {
    Span::sized(Gfn(u64::from(vcpu) * pages.next_multiple_of(512)), pages)
}

/// The frames of `span`, one by one.
pub fn gfns(span: Span<Gfn>) -> impl Iterator<Item = Gfn> {
    (span.start.0..span.end.0).map(Gfn)
}

/// Pages of `gfns` that are mapped to the frames that they had at first.
pub fn right(vm: &Machine, gfns: Span<Gfn>) -> Result<u64, String> {
    let mut right = 0;
    vm.lockless(&mut idle()?).for_each(gfns, |mapping| {
        right += u64::from(mapping.leaf.pfn == first_page(mapping.gfns.start).pfn);
    });
    Ok(right)
}

/// This thread's proof that it is outside of the engine, before and after a run.
pub fn idle() -> Result<Idle, String> {
    Idle::take().ok_or_else(|| "this thread is in the engine already".to_owned())
}
