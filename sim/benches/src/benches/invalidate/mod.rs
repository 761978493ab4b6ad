//! vCPUs fault in memory, in order, beside threads that invalidate single pages, or short ranges, over and over: the TDP MMU series.
//!
//! ```text
//! frame 0                                          next GiB
//!  │ vCPU 0's part │ vCPU 1's part │ … │ 2 MiB │ …  │ 2 MiB of invalidator 0 │ … │ of invalidator 1 │ …
//!    └ same: where the vCPU is           └ near       └ elsewhere
//! ```
//! An invalidator begins, applies, settles, ends, computes for [`pause_ns`](super::Work::pause_ns), and goes on with the next
//! pages of its place. Where it has a place of its own, the leaf table is there and empty, so no flush is due: what faults
//! and invalidations share is what the engine makes them share. Over the same 2 MiB pages go, and flushes kick vCPUs.
//!
//! The figure is what a fault takes the slowest vCPU. Each run is compared with the same one without invalidators, and ends
//! after [`BOUND`] times as long as that one took: vCPUs and invalidators stop then, and the figure is a lower bound.

mod places;

use super::guest::Guest;
use super::machine::{Machine, builder, idle, right, with_one_slot};
use super::{ALL_THERE, About, Bench, Check, Figure, NO_AGER, Over, Point, Policy, Setting, Work};
use crate::host::SimHost;
use crate::world::{AtomicU64, Job, JobTold, Ordering::Relaxed, Told, compute, now, run};
use places::{Invalidator, Layout, empty, guests};
use slat::{Gfn, Idle, Span, Stats};
use slat_series::PatchSeries;

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub struct Invalidate;

/// A run ends after so many times what it takes without invalidators.
pub const BOUND: u64 = 50;
/// What a fault beside invalidators elsewhere may take at most, times what it takes without them: with no more invalidators
/// than vCPUs, and with more.
const BARS: [f64; 2] = [1.2, 1.5];

/// Its row of the registry.
const ABOUT: About = About {
    asks: "vCPUs fault beside threads that invalidate elsewhere or in the same place, with each MMU lock (the TDP MMU series)",
    takes: ["2 min", "100 MiB"],
    vcpus: "8,112",
    example: "-v 112 --invalidators 16 --pause-ns 10000 --quick --no-sweep",
    unused: &[NO_AGER, (&["host_ns", "handlers", "handler_ns", "zeroing", "mm_lines"], ALL_THERE)],
    invalidates: true,
    reported: false,
    ..About::of("invalidate", PatchSeries::TdpMmu, &[Policy::Exclusive, Policy::ReadWrite, Policy::None])
};

impl Bench for Invalidate {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Point, String> {
        let alone = Lap::run(setting, 0, u64::MAX)?;
        let lap = match setting.work.invalidators {
            0 => None,
            many => Some(Lap::run(setting, many, BOUND * alone.told.wall_ns)?),
        };
        Ok(lap.as_ref().unwrap_or(&alone).point(setting, &alone))
    }
}

/// One run.
struct Lap {
    told: Told,
    /// Faults of all vCPUs, and those that mapped a page.
    made: u64,
    mapped: u64,
    /// Nanoseconds that a fault took the slowest vCPU; of a run that was ended, those that it would have taken if all had
    /// been done just then.
    fault_ns: f64,
    invalidations: u64,
    /// What was counted during the run.
    counted: Stats,
    kicks: u64,
    /// It was ended before its vCPUs were done.
    unfinished: bool,
    checks: Vec<Check>,
}

impl Lap {
    fn run(setting: &Setting<'_>, invalidators: u32, bound_ns: u64) -> Result<Self, String> {
        let layout = &Layout::new(setting);
        let work = Work {
            // Else every page would be asked for twice, and the sleep be counted twice.
            host_first: setting.work.host_first && setting.work.host_sleeps_ns == 0,
            ..setting.work.clone()
        };
        let end = layout.end(invalidators);
        let vm = &with_one_slot(builder(SimHost::filled(end, &work), setting, setting.policy.lock()), end)?;
        for number in 0..invalidators {
            empty(vm, layout.place(number), work.host_page)?;
        }
        let mut guests = guests(vm, layout, &work)?;
        let before = vm.stats();

        let at: Vec<_> =
            layout.starts.iter().map(|start| core::sync::atomic::AtomicU64::new(start.0)).collect();
        let (at, running) = (&at, &AtomicU64::new(setting.vcpus.into()));
        let vcpus = guests.iter_mut().zip(&layout.starts).zip(at).map(|((guest, &start), at)| {
            // ORDER(at): Relaxed: it publishes nothing.
            let here = |gfn: &Gfn| at.store(gfn.0, Relaxed);
            let pages = layout.pages(start).take_while(move |_| now() < bound_ns).inspect(here);
            // ORDER(running): Relaxed: it publishes nothing; invalidators stop an invalidation later.
            guest.job(pages, move || {
                running.fetch_sub(1, Relaxed);
            })
        });
        let mut made: Vec<u64> = vec![0; invalidators as usize];
        let beside = made.iter_mut().zip(0..).map(|(made, number)| {
            let invalidator = Invalidator { vm, setting, number, place: layout.place(number), at };
            Job::new("invalidator", move || {
                let mut idle = Idle::take().expect("a CPU of its own");
                loop {
                    invalidator.invalidate(&mut idle, *made);
                    *made += 1;
                    // ORDER(running): as above.
                    if running.load(Relaxed) == 0 || now() >= bound_ns {
                        return;
                    }
                    compute(setting.work.pause_ns);
                }
            })
        });
        let told = run(setting.costs, vcpus.chain(beside).collect());

        let after = vm.stats();
        let unfinished = guests.iter().any(|guest| guest.made < layout.pages);
        let per_fault = |(guest, job): (&Guest<'_>, &JobTold)| job.ns as f64 / guest.made.max(1) as f64;
        let slowest = guests.iter().zip(&told.jobs).map(per_fault).fold(0.0, f64::max);
        let whole = layout.pages * guests.len() as u64;
        let lap = Self {
            made: guests.iter().map(|guest| guest.made).sum(),
            mapped: guests.iter().map(|guest| guest.mapped).sum(),
            fault_ns: if unfinished { bound_ns as f64 / layout.pages as f64 } else { slowest },
            invalidations: made.iter().sum(),
            counted: since(&before, &after),
            kicks: told.kicks,
            unfinished,
            checks: Vec::new(),
            told,
        };
        let checks = lap.checks(vm, layout, setting.work.over, whole)?;
        Ok(Self { checks, ..lap })
    }

    /// Whatever else happens, each fault maps a page, and each page is the host's.
    fn checks(&self, vm: &Machine, layout: &Layout, over: Over, whole: u64) -> Result<Vec<Check>, String> {
        let mut checks = vec![Check::all("every fault mapped a page", self.mapped, self.made)];
        let part = |&start| Span::sized(start, layout.pages * layout.page);
        let mut there = 0;
        let mut idle = idle()?;
        for part in layout.starts.iter().map(part) {
            vm.lockless(&mut idle).for_each(part, |_| there += 1);
        }
        drop(idle);
        let right = right(vm, layout.starts.iter().map(part))?;
        checks.push(Check::all("every page that is mapped is mapped to its frame", right, there));
        if over != Over::Same {
            checks.push(Check::all("no page of a vCPU was taken away", there, self.made));
            checks.push(Check {
                name: "every page was faulted in, unless the run was ended",
                ok: self.made == whole || self.unfinished && self.made < whole,
                detail: format!("{} of {whole}", self.made),
            });
        }
        Ok(checks)
    }

    fn point(&self, setting: &Setting<'_>, alone: &Self) -> Point {
        let faults = self.made.max(1) as f64;
        let ratio = self.fault_ns / alone.fault_ns;
        let transfers: u64 =
            self.told.jobs.iter().take(setting.vcpus as usize).map(|job| job.transfers).sum();
        let per_1000 =
            |name, count: u64| Figure { name, value: 1000.0 * count as f64 / faults, unit: "in 1000 faults" };
        let by = self.counted.retries_by;
        let wall_ns = self.told.wall_ns.max(1) as f64;
        let mut checks: Vec<Check> = alone.checks.clone();
        if setting.work.invalidators > 0 {
            for (all, mine) in checks.iter_mut().zip(&self.checks) {
                if all.ok {
                    *all = mine.clone();
                }
            }
        }
        // Times of real threads are chance.
        if cfg!(virtual_time) {
            checks.extend(bar(setting, ratio));
        }
        let figures = vec![
            Figure::new("ns per fault", self.fault_ns, "ns"),
            Figure::new("against alone", ratio, "times"),
            Figure::new("line transfers", transfers as f64 / faults, "a fault"),
            per_1000("attempts made again: something moved", by.moved),
            per_1000("attempts made again: covered", by.covered),
            per_1000("attempts made again: lost", by.lost),
            per_1000("host asked again", self.counted.asked_again),
            Figure::new("invalidations", self.invalidations as f64 * 1e6 / wall_ns, "1000 a second"),
        ];
        Point {
            unfinished: self.unfinished,
            operations: self.made,
            flushes: self.counted.flushes.paid,
            kicks: self.kicks,
            checks,
            ..Point::of(setting, figures, self.told.clone())
        }
    }
}

/// Whether slat keeps its bar, where it has one.
fn bar(setting: &Setting<'_>, ratio: f64) -> Option<Check> {
    let Work { over, invalidators, .. } = setting.work;
    let has_one = setting.policy == Policy::None && over != Over::Same;
    let bar = BARS[usize::from(invalidators > setting.vcpus)];
    has_one.then(|| Check {
        name: "what is invalidated elsewhere costs a fault of slat's little",
        ok: ratio <= bar,
        detail: format!("{ratio:.2} times alone, at most {bar}, beside {invalidators}"),
    })
}

/// The counts of a run.
fn since(before: &Stats, after: &Stats) -> Stats {
    let mut counted = *after;
    counted.retries_by.moved -= before.retries_by.moved;
    counted.retries_by.covered -= before.retries_by.covered;
    counted.retries_by.lost -= before.retries_by.lost;
    counted.asked_again -= before.asked_again;
    counted.flushes.paid -= before.flushes.paid;
    counted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches::tests::{failing, setting};
    use slat::{Access, Fault, Level, VcpuId};

    pub fn work(invalidators: u32) -> Work {
        Work { invalidators, pause_ns: 1000, ..Work::default() }
    }

    /// Simulated only: how far threads get in a time is chance.
    #[cfg(virtual_time)]
    #[test]
    fn a_run_that_does_not_end_by_itself_is_ended_and_says_so() {
        let setting = &Setting { work: work(1), ..setting(Policy::None) };
        let alone = Lap::run(setting, 0, u64::MAX).unwrap();
        assert!(!alone.unfinished);
        let ended = Lap::run(setting, 1, alone.told.wall_ns / 2).unwrap();
        assert!(ended.unfinished && ended.made < alone.made && ended.made > 0);
        let point = ended.point(setting, &alone);
        assert!(point.unfinished);
        assert_eq!(failing(&point.checks), [""; 0]);
    }

    #[test]
    fn every_kind_of_page_and_of_place_is_faulted_in() {
        for over in [Over::Elsewhere, Over::Near, Over::Same] {
            for host_page in [Level::K4, Level::M2, Level::G1] {
                for host_sleeps_ns in [0, 1000] {
                    let work = Work { host_page, host_sleeps_ns, over, range: 4, ..work(2) };
                    let point = Invalidate.run(&Setting { work, ..setting(Policy::None) }).unwrap();
                    assert_eq!(failing(&point.checks), [""; 0], "{over:?} {host_page:?} {host_sleeps_ns}");
                    assert!(
                        point
                            .figures
                            .iter()
                            .any(|figure| figure.name == "invalidations" && figure.value > 0.0)
                    );
                }
            }
        }
    }

    #[test]
    fn negative_control_a_page_that_is_taken_away_and_one_that_is_wrong_are_found() {
        let setting = &Setting { work: work(0), ..setting(Policy::None) };
        let lap = Lap::run(setting, 0, u64::MAX).unwrap();
        let layout = &Layout::new(setting);
        let end = layout.end(0);
        let vm =
            &with_one_slot(builder(SimHost::filled(end, &setting.work), setting, Policy::None.lock()), end)
                .unwrap();
        let failed = |vm: &Machine| failing(&lap.checks(vm, layout, Over::Elsewhere, lap.made).unwrap());
        assert_eq!(failed(vm), ["no page of a vCPU was taken away"], "nothing is mapped in this one");
        let first = layout.starts[0];
        vm.host().set(crate::host::hva_of(first), Some(crate::host::first_page(first + 1)));
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        vcpu.fault(&mut idle().unwrap(), Fault { gpa: first.gpa(), access: Access::Write }).unwrap();
        assert_eq!(
            failed(vm),
            ["every page that is mapped is mapped to its frame", "no page of a vCPU was taken away"]
        );
    }

    #[test]
    fn only_slat_elsewhere_has_a_bar_and_more_invalidators_than_vcpus_a_wider_one() {
        let ok = |policy, over, invalidators, ratio| {
            let work = Work { over, ..work(invalidators) };
            bar(&Setting { work, ..setting(policy) }, ratio).map(|check| check.ok)
        };
        assert_eq!(ok(Policy::None, Over::Elsewhere, 2, 1.2), Some(true));
        assert_eq!(ok(Policy::None, Over::Near, 2, 1.3), Some(false));
        assert_eq!(
            [1.4, 1.6].map(|ratio| ok(Policy::None, Over::Elsewhere, 3, ratio)),
            [Some(true), Some(false)]
        );
        assert_eq!(
            [ok(Policy::None, Over::Same, 2, 9.0), ok(Policy::Exclusive, Over::Near, 2, 9.0)],
            [None; 2]
        );
    }
}
