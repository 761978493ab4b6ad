//! vCPUs fault memory in while a thread asks, pass after pass, which pages are young: the MGLRU aging series.
//!
//! | policy | the MMU's lock | the ager |
//! |---|---|---|
//! | no aging | reader-writer | |
//! | locked | reader-writer | page by page, each under the lock, alone: the series' "no opt" |
//! | lockless | reader-writer | page by page without it: "opt" |
//! | slat, no aging | none | |
//! | slat | none | by tables; then TLBs are asked to forget |
//!
//! Page by page: each page that the primary MMU has, by one call, as a kernel's passes do. An ager begins passes for as long
//! as a vCPU runs, rests between them, and a pass that outlasts the vCPUs counts as a whole. Every vCPU faults in as much as
//! any other, however many there are, as in the series; so a pass has more to do with each.

use super::demand_paging::{self, FIRST_FRAMES};
use super::machine::{Machine, Parts, builder, gfns, idle, with_one_slot};
use super::{About, Bench, Check, Figure, Point, Policy, Setting};
use crate::host::{SimHost, hva_of, hvas_of};
use crate::world::{AtomicU64, Job, Ordering::Relaxed, now, rest};
use slat::{Gfn, Idle, PAGE_SIZE, SecondaryMmu, Span, Young};
use slat_series::PatchSeries;

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct AccessTracking;

/// Pages that each vCPU faults in.
const PAGES: u64 = 512;

/// What an ager has done.
#[derive(Default)]
struct Passes {
    passes: u64,
    ns: u64,
    /// Pages that were there to be asked about.
    pages: u64,
    /// Times that one was young.
    young: u64,
}

/// Its row of the registry.
const ABOUT: About = About {
    asks: "vCPUs fault memory in while an aging thread passes over it, locked and lockless (the MGLRU aging series)",
    takes: ["15 s", "60 MiB"],
    example: "-v 1,112",
    unused: &[],
    ..About::of(
        "access-tracking-perf",
        PatchSeries::MglruAging,
        &[Policy::NoAging, Policy::Locked, Policy::Lockless, Policy::SlatNoAging, Policy::Slat],
    )
};

impl Bench for AccessTracking {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Point, String> {
        let parts = Parts::new(setting, if setting.quick { PAGES / 4 } else { PAGES });
        let all = parts.all();
        let builder = builder(SimHost::new(all.len(), &setting.work), setting, setting.policy.lock())
            .lockless_aging(setting.policy != Policy::Locked);
        let vm = with_one_slot(builder, all.len())?;
        let mut guests = parts.guests(&vm, &setting.work)?;

        let running = &AtomicU64::new(setting.vcpus.into());
        let mut passes = Passes::default();
        // ORDER(running): Relaxed: nothing is published by it, the ager stops a pass later.
        let done = move || {
            running.fetch_sub(1, Relaxed);
        };
        let ager = || {
            let mut idle = Idle::take().expect("a CPU of its own");
            loop {
                passes.take(&vm, &mut idle, setting.policy, all);
                // ORDER(running): as above.
                if running.load(Relaxed) == 0 {
                    return;
                }
                rest(setting.work.rest_ns);
            }
        };
        let ages = !matches!(setting.policy, Policy::NoAging | Policy::SlatNoAging);
        let ager = ages.then(|| Job::new("ager", ager));
        let ground =
            demand_paging::Ground { vm: &vm, parts: &parts.each().collect::<Vec<_>>(), right: FIRST_FRAMES };
        let lap = ground.run(setting.costs, &mut guests, done, ager)?;
        let told = lap.told;

        let mut figures = vec![Figure::new("guest wall time", told.wall_ns as f64 / 1e6, "ms")];
        if ages {
            let ns = passes.ns as f64;
            figures.push(Figure::new("average pass", ns / passes.passes as f64 / 1e6, "ms"));
            figures.push(Figure::new("a page, in a pass", ns / passes.pages.max(1) as f64, "ns"));
            figures.push(Figure::new("passes", passes.passes as f64, ""));
        }
        let faults = parts.pages * u64::from(setting.vcpus);
        let mut checks: Vec<_> = lap.tally.iter().map(Check::from).collect();
        checks.push(was_young(&vm, all, passes.young, faults)?);
        Ok(Point {
            operations: faults,
            flushes: vm.stats().flushes.paid,
            checks,
            ..Point::of(setting, figures, told)
        })
    }
}

/// Whether each of so many pages was told as young, or still is.
fn was_young(vm: &Machine, all: Span<Gfn>, told: u64, pages: u64) -> Result<Check, String> {
    let mut still = 0;
    vm.lockless(&mut idle()?).for_each(all, |found| still += u64::from(found.leaf.accessed));
    Ok(Check::least("each page was young, in a pass or still", told + still, pages))
}

impl Passes {
    /// Takes one more pass over `all`.
    fn take(&mut self, vm: &Machine, idle: &mut Idle, policy: Policy, all: Span<Gfn>) {
        let began = now();
        if policy == Policy::Slat {
            vm.age(idle, hvas_of(all), &mut |seen| self.young += u64::from(seen.count()));
            vm.forget(idle, hvas_of(all));
            self.pages += vm.stats().leaves[0];
        } else {
            for hva in gfns(all).map(hva_of) {
                if vm.host().page(hva).is_some() {
                    self.pages += 1;
                    self.young += u64::from(vm.young(idle, Span::sized(hva, PAGE_SIZE), Young::Clear));
                }
            }
        }
        self.passes += 1;
        self.ns += now() - began;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches::Work;
    use crate::world::Costs;

    #[test]
    fn negative_control_pages_that_are_not_told_are_found() {
        let (policy, work) = (Policy::Slat, Work::default());
        let setting =
            &Setting { costs: &Costs::SERVER, vcpus: 2, policy, quick: true, seed: 1, work: work.clone() };
        let parts = Parts::new(setting, 8);
        let all = parts.all();
        let vm = with_one_slot(builder(SimHost::new(all.len(), &work), setting, policy.lock()), all.len())
            .unwrap();
        let guests = parts.guests(&vm, &work).unwrap();
        // Two pages, which the guests have touched before their parts.
        let check = |told| was_young(&vm, all, told, 2).unwrap();
        assert!(check(0).ok, "{:?}", check(0));
        assert!(vm.young(&mut idle().unwrap(), hvas_of(all), Young::Clear));
        assert!(!check(0).ok && !check(1).ok && check(2).ok);
        drop(guests);
    }
}
