//! Many vCPUs touch memory that nobody has touched, all at once: seed 003.
//!
//! Each has a part of its own, and goes over it page by page: computes, leaves the guest, faults; the host finds a page,
//! zeroes it, and the engine maps it. So all that vCPUs share is what the engine and the primary MMU make them share.
//! With 416 vCPUs, says the seed, 98% of the time went to waiting for the MMU lock, and 89% of the time went away with it.

use super::machine::{Guest, Machine, builder, gfns, part, with_one_slot};
use super::{Bench, Check, Figure, Point, Policy, Setting};
use crate::host::{SimHost, first_page};
use crate::world::{Job, run};
use slat::{Done, Gfn, Idle, Level, MmuLock, Span};

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct DemandPaging;

impl Bench for DemandPaging {
    fn name(&self) -> &'static str {
        "demand-paging"
    }

    fn about(&self) -> &'static str {
        "many vCPUs touch new memory at once"
    }

    fn seed(&self) -> &'static str {
        "003"
    }

    fn policies(&self) -> &'static [Policy] {
        &[Policy::Exclusive, Policy::ReadWrite, Policy::None]
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Point, String> {
        let lock = match setting.policy {
            Policy::Exclusive => MmuLock::Exclusive,
            Policy::ReadWrite => MmuLock::ReadWrite,
            _ => MmuLock::None,
        };
        let per_vcpu = setting.pages_per_vcpu();
        let all = part(setting.vcpus - 1, per_vcpu).end.0;
        let vm = with_one_slot(builder(SimHost::new(all, &setting.work), setting, lock), all)?;

        let mut mapped = vec![0; setting.vcpus as usize];
        let jobs = (0..).zip(&mut mapped).map(|(number, mapped)| {
            let (vm, work) = (&vm, &setting.work);
            Job::vcpu(number, move || {
                let mut guest = Guest::new(vm, number, work);
                let pages = part(number, per_vcpu);
                *mapped =
                    gfns(pages).filter(|&gfn| guest.touch(gfn) == Ok(Done::Mapped(Level::K4))).count() as u64;
            })
        });
        let told = run(setting.costs, jobs.collect());

        let (stats, faults) = (vm.stats(), per_vcpu * u64::from(setting.vcpus));
        Ok(Point {
            vcpus: setting.vcpus,
            policy: setting.policy,
            figures: vec![
                Figure { name: "ns per fault", value: told.wall_ns as f64 / per_vcpu as f64, unit: "ns" },
                Figure { name: "time", value: told.wall_ns as f64 / 1e6, unit: "ms" },
            ],
            operations: faults,
            waiting: told.waiting(),
            flushes: stats.flushes.paid,
            kicks: told.kicks,
            checks: vec![
                Check::all("every page was faulted in", mapped.iter().sum(), faults),
                Check::all("each by one fault", stats.mapped_faults, faults),
                Check::all(
                    "every page is mapped to its frame",
                    right(&vm, Span::new(Gfn(0), Gfn(all)))?,
                    faults,
                ),
            ],
            told,
        })
    }
}

/// Pages of `gfns` that are mapped to the frames that they had at first.
fn right(vm: &Machine, gfns: Span<Gfn>) -> Result<u64, String> {
    let mut idle = Idle::take().ok_or("this thread is in the engine already")?;
    let mut right = 0;
    vm.lockless(&mut idle).for_each(gfns, |mapping| {
        right += u64::from(mapping.leaf.pfn == first_page(mapping.gfns.start).pfn);
    });
    Ok(right)
}
