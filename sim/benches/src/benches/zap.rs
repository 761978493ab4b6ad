//! A large range is zapped while vCPUs fault in memory elsewhere: how long that takes, and what it costs their faults.
//!
//! ```text
//! frame 0                                   the range
//!  │ vCPU 0's part │ vCPU 1's part │ … │ every page mapped before │
//! ```
//! | policy | how |
//! |---|---|
//! | leaf by leaf, exclusive | an edit for each leaf, under the mutex, with rests for waiting faults: before the TDP MMU series |
//! | leaf by leaf | the same beside faults |
//! | unhook | whole tables, by one edit of the link to each |
//! | new root | all tables of the VM, what vCPUs have faulted in included |
//!
//! A zap is over when its tables are taken apart and its leaves counted off. vCPUs begin before it and go on until then. A
//! fault is beside the zap if any part of it is.

use super::guest::{Guest, Touch as _};
use super::machine::{Machine, Parts, builder, gfns, idle, right, with_one_slot};
use super::{About, Bench, Check, Figure, Point, Policy, Setting};
use crate::host::{SimHost, first_page, hva_of, hvas_of};
use crate::world::{AtomicU64, Job, Ordering::Relaxed, compute, now, run};
use slat::{Access, Fault, Gfn, Idle, Span, VcpuId, Why};
use slat_series::PatchSeries;

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct Zap;

/// Pages that are zapped: 256 MiB.
const RANGE: u64 = 1 << 16;
/// Pages that a vCPU has to fault in. No zap lasts that long.
const PART: u64 = 4096;
/// Nanoseconds before the zap, in which faults meet only each other.
const BEFORE_NS: u64 = 1_000_000;

/// Its row of the registry.
const ABOUT: About = About {
    asks: "Memory is zapped, leaf by leaf or table by table, while vCPUs fault elsewhere (the TDP MMU series)",
    takes: ["10 s", "100 MiB"],
    ..About::of(
        "zap",
        PatchSeries::TdpMmu,
        &[Policy::LeafByLeafExclusive, Policy::LeafByLeaf, Policy::NewRoot, Policy::Unhook],
    )
};

impl Bench for Zap {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Point, String> {
        let parts = Parts::new(setting, PART);
        let range = Span::sized(parts.all().end, if setting.quick { RANGE / 4 } else { RANGE });
        let host = SimHost::new(range.end.0, &setting.work);
        let vm = with_one_slot(builder(host, setting, setting.policy.lock()), range.end.0)?;
        fill(&vm, range)?;
        let mut guests = parts.guests(&vm, &setting.work)?;
        guests.iter_mut().for_each(Guest::time_faults);
        let filled = vm.stats();

        let over = &AtomicU64::new(0);
        let mut zap: Result<_, String> = Ok((0, 0));
        let timed = || {
            look_over(&vm, range)?;
            compute(BEFORE_NS);
            let began = now();
            zap_range(&vm, range, setting.policy)?;
            Ok((began, now()))
        };
        let zapper = || {
            zap = timed();
            // ORDER(over): Relaxed: nothing is published by it, vCPUs stop a fault later.
            over.store(1, Relaxed);
        };
        let jobs = guests.iter_mut().zip(parts.each()).map(|(guest, part)| {
            // ORDER(over): as above. The first one in any case.
            let goes_on = move |&gfn: &Gfn| gfn == part.start || over.load(Relaxed) == 0;
            guest.job(gfns(part).take_while(goes_on), || ())
        });
        let told = run(setting.costs, jobs.chain([Job::new("zapper", zapper)]).collect());

        let (began, ended) = zap?;
        let faults = || guests.iter().flat_map(|guest| guest.faults.iter().flatten());
        let before = Took::of(faults().filter(|&&(_, done)| done < began));
        let beside = Took::of(faults().filter(|&&(left, done)| left < ended && done >= began));
        let ns = |name, ns| Figure { name, value: ns, unit: "ns" };
        let figures = vec![
            Figure::new("zap", (ended - began) as f64 / 1e3, "us"),
            ns("fault beside it", beside.mean_ns()),
            ns("longest fault beside it", beside.longest_ns as f64),
            ns("fault before it", before.mean_ns()),
        ];
        Ok(Point {
            operations: faults().count() as u64,
            flushes: vm.stats().flushes.paid - filled.flushes.paid,
            checks: checks(&vm, (range, setting.policy), &guests, &parts)?,
            ..Point::of(setting, figures, told)
        })
    }
}

/// Maps every page of `range`, at no cost.
fn fill(vm: &Machine, range: Span<Gfn>) -> Result<(), String> {
    let (mut idle, vcpu) = (idle()?, vm.vcpu(VcpuId(0)));
    let mut vcpu = vcpu.ok_or("vCPU 0 is in use")?;
    for gfn in gfns(range) {
        vm.host().set(hva_of(gfn), Some(first_page(gfn)));
        let fault = Fault { gpa: gfn.gpa(), access: Access::Write };
        vcpu.fault(&mut idle, fault).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Has every table of `range` in this CPU's caches: what is not there costs real CPUs much, and simulated ones nothing.
fn look_over(vm: &Machine, range: Span<Gfn>) -> Result<(), String> {
    vm.lockless(&mut idle()?).for_each(range, |_| ());
    Ok(())
}

fn zap_range(vm: &Machine, range: Span<Gfn>, policy: Policy) -> Result<(), String> {
    let mut idle = Idle::take().ok_or("the zapper has a CPU of its own")?;
    let why = match policy {
        Policy::NewRoot => return vm.zap_all(&mut idle).map_err(|error| error.to_string()),
        Policy::Unhook => Why::Unmap,
        _ => Why::Clear,
    };
    let mut change = vm.invalidate(hvas_of(range), why);
    change.apply(&mut idle).settle();
    drop(change);
    vm.collect(&mut idle);
    Ok(())
}

fn checks(
    vm: &Machine,
    (range, policy): (Span<Gfn>, Policy),
    guests: &[Guest<'_>],
    parts: &Parts,
) -> Result<Vec<Check>, String> {
    let faults = guests.iter().filter_map(|guest| guest.faults.as_ref()).map(Vec::len).sum::<usize>() as u64;
    let mapped: u64 = guests.iter().map(Guest::mapped).sum();
    let (mut left, mut all) = (0, 0);
    vm.lockless(&mut idle()?).for_each(range, |_| left += 1);
    vm.lockless(&mut idle()?).for_each(Span::new(Gfn(0), range.end), |_| all += 1);
    let mut checks = vec![
        Check::all("every page of the range is gone", range.len() - left, range.len()),
        Check::all("every fault of the others mapped a page", mapped, faults),
        Check::all("the books say what the tables hold", vm.stats().leaves[0], all),
    ];
    if policy != Policy::NewRoot {
        // One page after the other, each once, since none was taken away.
        let touched =
            guests.iter().zip(parts.each()).map(|(guest, part)| Span::sized(part.start, guest.mapped()));
        checks.push(Check::all("every other page is still there", right(vm, touched)?, mapped));
    }
    Ok(checks)
}

/// How long faults took.
#[derive(Default)]
struct Took {
    faults: u64,
    ns: u64,
    longest_ns: u64,
}

impl Took {
    fn of<'f>(faults: impl Iterator<Item = &'f (u64, u64)>) -> Self {
        faults.fold(Self::default(), |took, &(left, done)| Self {
            faults: took.faults + 1,
            ns: took.ns + (done - left),
            longest_ns: took.longest_ns.max(done - left),
        })
    }

    fn mean_ns(&self) -> f64 {
        self.ns as f64 / self.faults.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches::Work;
    use crate::world::Costs;

    #[test]
    fn negative_control_a_zap_of_too_little_and_one_of_too_much_are_found() {
        let (policy, work) = (Policy::LeafByLeaf, Work::default());
        let setting =
            &Setting { costs: &Costs::SERVER, vcpus: 2, policy, quick: true, seed: 1, work: work.clone() };
        let parts = Parts::new(setting, 8);
        let range = Span::sized(parts.all().end, 8);
        let host = SimHost::new(range.end.0, &work);
        let vm = with_one_slot(builder(host, setting, policy.lock()), range.end.0).unwrap();
        fill(&vm, range).unwrap();
        let mut guests = parts.guests(&vm, &work).unwrap();
        guests.iter_mut().for_each(Guest::time_faults);
        let jobs = guests.iter_mut().zip(parts.each());
        run(&Costs::SERVER, jobs.map(|(guest, part)| guest.job(gfns(part), || ())).collect());

        let failed = || -> Vec<_> {
            let checks = checks(&vm, (range, policy), &guests, &parts).unwrap().into_iter();
            checks
                .filter(|check| !check.ok)
                .map(|check| format!("{}: {}", check.name, check.detail))
                .collect()
        };
        zap_range(&vm, Span::sized(range.start, 3), policy).unwrap();
        assert_eq!(failed(), ["every page of the range is gone: 3 of 8"]);
        let last = parts.each().last().unwrap().end;
        zap_range(&vm, Span::new(Gfn(last.0 - 1), range.end), policy).unwrap();
        assert_eq!(failed(), ["every other page is still there: 15 of 16"]);
    }

    #[test]
    fn faults_are_counted_averaged_and_the_longest_is_found() {
        let took = Took::of([(10, 20), (15, 45)].iter());
        assert_eq!((took.faults, took.ns, took.longest_ns), (2, 40, 30));
        assert!((took.mean_ns() - 20.0).abs() < 1e-9 && Took::default().mean_ns() < 1e-9);
    }
}
