//! Many vCPUs touch untouched memory, all at once: the TDP MMU series.
//!
//! Each has a part of its own, and goes over it page by page: computes, leaves the guest, faults; the host finds a page,
//! zeroes it, and the engine maps it. So all that vCPUs share is what the engine and the primary MMU make them share.
//! With 416 vCPUs, says the series, 98% of the time went to waiting for the MMU lock, and 89% of the time went away with it.

use super::machine::{Parts, builder, gfns, with_one_slot};
use super::{Bench, Figure, Point, Policy, Setting};
use crate::host::SimHost;
use crate::world::run;

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

    fn series(&self) -> &'static str {
        "tdp-mmu"
    }

    fn policies(&self) -> &'static [Policy] {
        &[Policy::Exclusive, Policy::ReadWrite, Policy::None]
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Point, String> {
        let parts = Parts::new(setting, setting.pages_per_vcpu());
        let pages = parts.all().len();
        let vm = with_one_slot(
            builder(SimHost::new(pages, &setting.work), setting, setting.policy.lock()),
            pages,
        )?;
        let mut guests = parts.guests(&vm, &setting.work)?;
        let jobs = guests.iter_mut().zip(parts.each()).map(|(guest, part)| guest.job(gfns(part), || ()));
        let told = run(setting.costs, jobs.collect());
        Ok(Point {
            unfinished: false,
            vcpus: setting.vcpus,
            policy: setting.policy,
            figures: vec![
                Figure { name: "ns per fault", value: told.wall_ns as f64 / parts.pages as f64, unit: "ns" },
                Figure { name: "time", value: told.wall_ns as f64 / 1e6, unit: "ms" },
            ],
            operations: parts.pages * u64::from(setting.vcpus),
            waiting: told.waiting(),
            flushes: vm.stats().flushes.paid,
            kicks: told.kicks,
            checks: parts.checks(&vm, &guests)?,
            told,
        })
    }
}
