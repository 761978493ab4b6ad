//! The VM that benches run, and how its vCPUs share out memory.

use crate::parts::setting::{Setting, Work};
use crate::parts::sim_host::{SimHost, first_page, hva_of};
use crate::parts::touch_pages::Guest;
use slat::baselines::{Baseline, MmuLock};
use slat::table::formats::Ept4;
use slat::vm::Builder;
use slat::{Format, Gfn, Host, Idle, Level, Pfn, Slot, SlotId, Span, Vcpu, VcpuId, Vm};

/// The VM that is measured.
pub type SimVm = Vm<Ept4, SimHost>;

/// A builder of a VM with that many vCPUs.
pub fn builder<H: Host>(host: H, setting: &Setting<'_>, lock: MmuLock) -> Builder<Ept4, H> {
    Vm::builder(host).vcpus(setting.vcpus).baseline(Baseline::NONE.mmu_lock(lock))
}

/// A VM with one memslot of so many pages from frame 0 on.
pub fn with_one_slot<F: Format, H: Host>(builder: Builder<F, H>, pages: u64) -> Result<Vm<F, H>, String> {
    let vm = builder.build().map_err(|error| error.to_string())?;
    let slot = Slot::new(SlotId(0), Gfn(0), pages, hva_of(Gfn(0)));
    vm.memory().commit(&mut idle()?, |tx| tx.create(slot)).map_err(|error| error.to_string())?;
    Ok(vm)
}

/// vCPU `number`, which no thread has.
pub fn vcpu<F: Format, H: Host>(vm: &Vm<F, H>, number: u32) -> Result<Vcpu<'_, F, H>, String> {
    vm.vcpu(VcpuId(number)).ok_or_else(|| format!("there is no vCPU {number}"))
}

/// The vCPUs of a VM, all of whose memory is one slot, and the part of it that each is to touch.
///
/// A run is a stretch from the middle of a longer one: each vCPU has touched the page before its part, so it has its tables and
/// some more at hand; where its part begins in a table of leaves is drawn by lot, so that vCPUs do not come to the ends of
/// their tables all at once. A table belongs to one vCPU alone, as all do where each has gigabytes.
pub struct Parts {
    /// Pages of each.
    pub pages: u64,
    starts: Vec<Gfn>,
}

/// Frames of a table of leaves.
const TABLE: u64 = Level::M2.pages();

impl Parts {
    /// So many pages for each vCPU.
    pub fn new(setting: &Setting<'_>, pages: u64) -> Self {
        let stride = pages.next_multiple_of(TABLE) + TABLE;
        let start = |vcpu| Gfn(vcpu * stride + 1 + setting.lot(vcpu) % (TABLE - 1));
        Self { pages, starts: (0..u64::from(setting.vcpus)).map(start).collect() }
    }

    /// All of their tables, from the first frame on.
    pub fn all(&self) -> Span<Gfn> {
        let end = self.starts.last().map_or(0, |start| start.0 + self.pages);
        Span::sized(Gfn(0), end.next_multiple_of(TABLE))
    }

    /// One for each vCPU.
    pub fn each(&self) -> impl Iterator<Item = Span<Gfn>> {
        self.starts.iter().map(|&start| Span::sized(start, self.pages))
    }

    /// The vCPUs, each of which has touched the page before its part, at no cost.
    pub fn guests<'vm>(&self, vm: &'vm SimVm, work: &'vm Work) -> Result<Vec<Guest<'vm>>, String> {
        let mut idle = idle()?;
        let guest = |(number, part): (u32, Span<Gfn>)| {
            let mut guest = Guest::new(vm, number, work)?;
            let _ = guest.touch(&mut idle, Gfn(part.start.0 - 1)).map_err(|error| error.to_string())?;
            Ok(guest)
        };
        (0..).zip(self.each()).map(guest).collect()
    }
}

/// The frames of `span`, one by one.
pub fn gfns(span: Span<Gfn>) -> impl Iterator<Item = Gfn> {
    (span.start.0..span.end.0).map(Gfn)
}

/// Pages of `parts` that are mapped to the frames that the host had there at first.
pub fn right(vm: &SimVm, parts: impl Iterator<Item = Span<Gfn>>) -> Result<u64, String> {
    right_by(vm, parts, is_first)
}

/// Pages of `parts` that are mapped to a frame that is right.
pub fn right_by<F: Format, H: Host>(
    vm: &Vm<F, H>,
    parts: impl Iterator<Item = Span<Gfn>>,
    is_right: impl Fn(Gfn, Pfn) -> bool,
) -> Result<u64, String> {
    let (mut right, mut idle) = (0, idle()?);
    for part in parts {
        vm.memory().lockless(&mut idle).for_each(part, |mapping| {
            right += u64::from(is_right(mapping.gfns.start, mapping.leaf.pfn));
        });
    }
    Ok(right)
}

/// The one that is right where the host has moved none.
pub fn is_first(gfn: Gfn, pfn: Pfn) -> bool {
    pfn == first_page(gfn).pfn
}

/// This thread's proof that it is outside of the engine, before and after a run.
pub fn idle() -> Result<Idle, String> {
    Idle::take().ok_or_else(|| "this thread is in the engine already".to_owned())
}
