//! Many vCPUs touch untouched memory, all at once: the TDP MMU series.
//!
//! Each has a part of its own, and goes over it page by page: computes, leaves the guest, faults; the host finds a page,
//! zeroes it, and the engine maps it. So all that vCPUs share is what the engine and the primary MMU make them share.
//! With 416 vCPUs, says the series, 98% of the time went to waiting for the MMU lock, and 89% of the time went away with it.

use super::guest::Touch as _;
use super::machine::{Parts, builder, gfns, with_one_slot};
use super::{About, Bench, Figure, Point, Policy, Setting};
use crate::host::SimHost;
use crate::world::run;
use slat_series::PatchSeries;

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct DemandPaging;

/// Its row of the registry.
const ABOUT: About = About {
    asks: "Many vCPUs touch new memory at once, with each MMU lock (the TDP MMU series)",
    takes: ["10 s", "40 MiB"],
    example: "-v 1,112,416 --costs server",
    ..About::of("demand-paging", PatchSeries::TdpMmu, &[Policy::Exclusive, Policy::ReadWrite, Policy::None])
};

impl Bench for DemandPaging {
    fn about(&self) -> &'static About {
        &ABOUT
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
        let figures = vec![
            Figure::new("ns per fault", told.wall_ns as f64 / parts.pages as f64, "ns"),
            Figure::new("time", told.wall_ns as f64 / 1e6, "ms"),
        ];
        Ok(Point {
            operations: parts.pages * u64::from(setting.vcpus),
            flushes: vm.stats().flushes.paid,
            checks: parts.checks(&vm, &guests)?,
            ..Point::of(setting, figures, told)
        })
    }
}
