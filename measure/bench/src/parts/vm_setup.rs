//! The VM that benches run, and how its vCPUs share out memory.

use crate::parts::setting::Setting;
use crate::parts::sim_host::{SimHost, first_page, hva_of};
use crate::world::{Costs, Job, RunStats, run};
use slat::baselines::{Baseline, MmuLock};
use slat::table::formats::Ept4;
use slat::vm::Builder;
use slat::{Format, Gfn, Host, Idle, Pfn, Slot, SlotId, Span, Vcpu, VcpuId, Vm};

/// The VM that is measured.
pub type SimVm = Vm<Ept4, SimHost>;

/// A builder of a VM with that many vCPUs.
pub fn builder<H: Host>(host: H, setting: &Setting<'_>, lock: MmuLock) -> Builder<Ept4, H> {
    Vm::builder(host).vcpus(setting.vcpus).baseline(Baseline::NONE.mmu_lock(lock))
}

/// The VM of a setting, with one memslot of so many pages from frame 0 on.
pub fn sim_vm<H: Host>(host: H, setting: &Setting<'_>, pages: u64) -> Result<Vm<Ept4, H>, String> {
    with_one_slot(builder(host, setting, setting.column.lock), pages)
}

/// A VM with one memslot of so many pages from frame 0 on.
pub fn with_one_slot<F: Format, H: Host>(builder: Builder<F, H>, pages: u64) -> Result<Vm<F, H>, String> {
    with_slots(builder, [slot(0, Span::sized(Gfn(0), pages))])
}

/// The memslot of these frames.
pub fn slot(id: u32, gfns: Span<Gfn>) -> Slot {
    Slot::new(SlotId(id), gfns.start, gfns.len(), hva_of(gfns.start))
}

/// A VM with these memslots.
pub fn with_slots<F: Format, H: Host>(
    builder: Builder<F, H>,
    slots: impl IntoIterator<Item = Slot>,
) -> Result<Vm<F, H>, String> {
    let vm = builder.build().map_err(|error| error.to_string())?;
    let mut slots = slots.into_iter();
    let made = vm.memory().commit(&mut idle()?, |tx| slots.try_for_each(|slot| tx.create(slot)));
    made.map_err(|error| error.to_string()).map(|()| vm)
}

/// vCPU `number`, which no thread has.
pub fn vcpu<F: Format, H: Host>(vm: &Vm<F, H>, number: u32) -> Result<Vcpu<'_, F, H>, String> {
    vm.vcpu(VcpuId(number)).ok_or_else(|| format!("there is no vCPU {number}"))
}

/// Does `work` with each of `vcpus` and its number, each on a CPU of its own, beside another job, if there is one.
pub fn each_vcpu<T: Send, R: Send, E: Send>(
    costs: &Costs,
    vcpus: impl IntoIterator<Item = T>,
    work: impl Fn(&mut Idle, u32, T) -> Result<R, E> + Copy + Send,
    beside: Option<Job<'_>>,
) -> Result<(RunStats, Vec<R>), E> {
    let vcpus: Vec<T> = vcpus.into_iter().collect();
    let mut done: Vec<_> = vcpus.iter().map(|_| None).collect();
    let jobs = vcpus.into_iter().zip(&mut done).zip(0..).map(|((vcpu, done), number)| {
        Job::vcpu(number, move || {
            let mut idle = Idle::take().expect("each CPU has one vCPU");
            *done = Some(work(&mut idle, number, vcpu));
        })
    });
    let stats = run(costs, jobs.chain(beside).collect());
    let done: Result<_, E> = done.into_iter().map(|done| done.expect("each job ran")).collect();
    done.map(|done| (stats, done))
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

/// The expected page, if the host has moved none.
pub fn is_first(gfn: Gfn, pfn: Pfn) -> bool {
    pfn == first_page(gfn).pfn
}

/// This thread's proof that it is outside of the engine, before and after a run.
pub fn idle() -> Result<Idle, String> {
    Idle::take().ok_or_else(|| "this thread is in the engine already".to_owned())
}
