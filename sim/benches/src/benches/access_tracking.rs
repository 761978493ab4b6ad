//! vCPUs fault memory in while somebody asks, pass after pass, which pages are young: seed 000.
//!
//! | policy | the MMU's lock | the ager |
//! |---|---|---|
//! | no aging | reader-writer | |
//! | locked | reader-writer | page by page, each under the lock, alone: the seed's "no opt" |
//! | lockless | reader-writer | page by page without it: "opt" |
//! | slat, no aging | none | |
//! | slat | none | by tables; then TLBs are asked to forget |
//!
//! Page by page: each page that the primary MMU has, by one call, as a kernel's passes do. An ager begins passes for as long
//! as a vCPU runs, rests between them, and a pass that outlasts the vCPUs counts as a whole. Every vCPU faults in as much as
//! any other, however many there are, as in the seed; so a pass has more to do with each.

use super::machine::{Machine, Parts, builder, gfns, idle, with_one_slot};
use super::{Bench, Check, Figure, Point, Policy, Setting};
use crate::host::{SimHost, hva_of, hvas_of};
use crate::world::{AtomicU64, Job, Ordering::Relaxed, now, rest, run};
use slat::{Gfn, Idle, PAGE_SIZE, SecondaryMmu, Span, Young};

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct AccessTracking;

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

impl Bench for AccessTracking {
    fn name(&self) -> &'static str {
        "access-tracking-perf"
    }

    fn about(&self) -> &'static str {
        "vCPUs fault memory in while somebody ages it"
    }

    fn seed(&self) -> &'static str {
        "000"
    }

    fn policies(&self) -> &'static [Policy] {
        &[Policy::NoAging, Policy::Locked, Policy::Lockless, Policy::SlatNoAging, Policy::Slat]
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
        let vcpus = guests.iter_mut().zip(parts.each()).map(|(guest, part)| guest.job(gfns(part), done));
        let ager = || {
            let mut idle = Idle::take().expect("a CPU of its own");
            // ORDER(running): as above.
            while running.load(Relaxed) > 0 {
                passes.take(&vm, &mut idle, setting.policy, all);
                rest(setting.work.rest_ns);
            }
        };
        let ages = !matches!(setting.policy, Policy::NoAging | Policy::SlatNoAging);
        let jobs = vcpus.chain(ages.then(|| Job::new("ager", ager))).collect();
        let told = run(setting.costs, jobs);

        let mut left = 0;
        vm.lockless(&mut idle()?).for_each(all, |found| left += u64::from(found.leaf.accessed));
        let mut figures =
            vec![Figure { name: "guest wall time", value: told.wall_ns as f64 / 1e6, unit: "ms" }];
        if ages {
            let pass = passes.ns as f64 / passes.passes as f64 / 1e6;
            figures.push(Figure { name: "average pass", value: pass, unit: "ms" });
            figures.push(Figure { name: "passes", value: passes.passes as f64, unit: "" });
        }
        let faults = parts.pages * u64::from(setting.vcpus);
        let mut checks = parts.checks(&vm, &guests)?;
        checks.push(Check::least("each page was young, in a pass or still", passes.young + left, faults));
        Ok(Point {
            vcpus: setting.vcpus,
            policy: setting.policy,
            figures,
            operations: faults,
            waiting: told.waiting(),
            flushes: vm.stats().flushes.paid,
            kicks: told.kicks,
            checks,
            told,
        })
    }
}

/// Pages that each vCPU faults in.
const PAGES: u64 = 512;

impl Passes {
    /// Takes one more pass over `all`.
    fn take(&mut self, vm: &Machine, idle: &mut Idle, policy: Policy, all: Span<Gfn>) {
        let began = now();
        if policy == Policy::Slat {
            vm.age(idle, hvas_of(all), &mut |seen| self.young += u64::from(seen.count()));
            vm.forget(idle, hvas_of(all));
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
