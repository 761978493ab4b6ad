//! Many vCPUs touch new memory, all at once, and slat-mm is the host: the primary MMU as it ships, compiled for virtual time.
//!
//! `demand-paging` has a host of arithmetic, which shares nothing unless it is told to. Here each fault goes through slat-mm's own: counters,
//! the page lock, a version of the mappings, a frame of the CPU's list, zeroes, and both tables. What is free of charge: the state of a
//! frame and its note, which no other CPU looks at meanwhile, and the plain loads of the mappings' tree.
//!
//! Without zeroing each page is one that was zeroed ahead of need: what a fault costs while a `Zeroer` keeps up.

use super::machine::{Parts, gfns, idle};
use super::{About, Bench, Check, Figure, NO_AGER, Point, Policy, Setting, Work};
use crate::world::{Job, compute, run};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use slat::table::formats::Ept4;
use slat::{Access, Done, Fault, Gfn, Hva, Idle, Level, PAGE_SIZE, Slot, SlotId, Span, Vcpu, VcpuId, Vm};
use slat_mm::{AddressSpace, Arena, Backing, HostView, Place, Prot};
use slat_series::PatchSeries;
use std::sync::Arc;

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct HostFaults;

/// Where guest memory lies in the host's address space.
const BASE: Hva = Hva(1 << 40);

/// Its row of the registry.
const ABOUT: About = About {
    asks: "Many vCPUs touch new memory at once, and slat-mm is the host",
    takes: ["20 s", "200 MiB"],
    example: "-v 1,112,416 --costs server",
    unused: &[
        NO_AGER,
        (
            &["host_ns", "handlers", "handler_ns", "host_first", "mm_lines", "under_lock_ns"],
            "has slat-mm as its host",
        ),
    ],
    ..About::of("host-faults", PatchSeries::TdpMmu, &[Policy::Exclusive, Policy::ReadWrite, Policy::None])
};

impl Bench for HostFaults {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Point, String> {
        let parts = Parts::new(setting, setting.pages_per_vcpu());
        let bytes = parts.all().len() * PAGE_SIZE;
        let said = |error: &dyn std::fmt::Display| error.to_string();
        let arena =
            Arena::builder().limit(bytes + bytes / 8 + (256 << 20)).build().map_err(|error| said(&error))?;
        // All frames were in use before: they have to be zeroed.
        drop(std::iter::from_fn(|| arena.page(Level::K4).ok()).collect::<Vec<_>>());
        let space = AddressSpace::builder(&arena).build().map_err(|error| said(&error))?;
        let mapped = space.mmap(Place::Fixed(BASE), bytes, Prot::ReadWrite, Backing::Anonymous);
        mapped.map_err(|error| said(&error))?;
        let builder = Vm::<Ept4, _>::builder(HostView::new(&space)).vcpus(setting.vcpus);
        let vm = Arc::new(builder.mmu_lock(setting.policy.lock()).build().map_err(|error| said(&error))?);
        space.register(&vm);
        let slot = Slot::new(SlotId(0), Gfn(0), parts.all().len(), BASE);
        vm.slots().commit(&mut idle()?, |tx| tx.create(slot)).map_err(|error| said(&error))?;

        // As elsewhere, a run is a stretch from the middle: each vCPU has touched the page before its part.
        let mut vcpus = Vec::new();
        let mut first = idle()?;
        for (number, part) in (0..).zip(parts.each()) {
            let mut vcpu = vm.vcpu(VcpuId(number)).ok_or("each vCPU is free")?;
            let fault = Fault { gpa: Gfn(part.start.0 - 1).gpa(), access: Access::Write };
            vcpu.fault(&mut first, fault).map_err(|error| said(&error))?;
            vcpus.push(vcpu);
        }
        drop(first);
        let all = parts.pages * u64::from(setting.vcpus);
        let (before, ahead) = (arena.list_stats().zeroed, if setting.work.zeroing { 0 } else { all });
        // Each takes a batch at a time, and may keep a part of the last one.
        arena.zero_ahead(if ahead > 0 { all + 64 * u64::from(setting.vcpus) } else { 0 });
        // Not the world's: what a check counts takes no time.
        let mapped = &AtomicU64::new(0);
        let jobs =
            vcpus.iter_mut().zip(parts.each()).map(|(vcpu, part)| job(vcpu, part, &setting.work, mapped));
        let told = run(setting.costs, jobs.collect());
        let zeroed = arena.list_stats().zeroed - before;
        let mut right = 0;
        let mut idle = idle()?;
        for gfn in parts.each().flat_map(gfns) {
            let host = space.lookup(BASE + gfn.0 * PAGE_SIZE, Access::Write).map(|page| page.pfn);
            let guest = vm.translate(&mut idle, gfn).map(|mapping| mapping.leaf.pfn);
            right += u64::from(host.is_some() && host == guest);
        }
        let figures = vec![
            Figure::new("ns per fault", told.wall_ns as f64 / parts.pages as f64, "ns"),
            Figure::new("time", told.wall_ns as f64 / 1e6, "ms"),
            Figure::new(
                "waits for a page lock",
                space.stats().lock_waits as f64 / all as f64 * 1e3,
                "of 1,000 faults",
            ),
        ];
        Ok(Point {
            operations: all,
            checks: vec![
                Check::all("every page was faulted in", mapped.load(Relaxed), all),
                Check::all("every page is mapped to the host's frame", right, all),
                Check::all("every page that need not be zeroed was zeroed ahead", zeroed, ahead),
            ],
            ..Point::of(setting, figures, told)
        })
    }
}

/// What a vCPU does, and how many of its faults mapped a page.
fn job<'v>(
    vcpu: &'v mut Vcpu<'_, Ept4, HostView>,
    part: Span<Gfn>,
    work: &'v Work,
    mapped: &'v AtomicU64,
) -> Job<'v> {
    Job::vcpu(vcpu.id().0, move || {
        let mut idle = Idle::take().expect("each CPU has one vCPU");
        for gfn in gfns(part) {
            compute(work.guest_ns + work.exit_ns);
            // What fails is not counted, and so found by the checks.
            let done = vcpu.fault(&mut idle, Fault { gpa: gfn.gpa(), access: Access::Write });
            mapped.fetch_add(u64::from(done == Ok(Done::Mapped(Level::K4))), Relaxed);
        }
    })
}
