//! vCPUs that fault beside threads that invalidate, and the checks that must hold afterwards.

use super::invalidated_places::{Invalidator, empty, warm};
pub use crate::scenarios::invalidate::invalidated_places::{Layout, TABLE};
use crate::scenarios::prelude::*;
use crate::world::{AtomicU64, LOOK_EVERY};
use slat::Stats;

/// A run ends after so many times what it takes without invalidators.
pub const BOUND: u64 = 50;
/// The bound of a fault beside invalidators elsewhere, as a multiple of a fault without them: with no more invalidators
/// than vCPUs, and with more.
pub const BARS: [f64; 2] = [1.2, 1.5];

/// All that four levels of tables map.
pub const ALL: Span<Gfn> = Span { start: Gfn(0), end: Gfn(1 << 36) };

/// Runs the scenario once.
pub fn run_once(setting: &Setting<'_>) -> Result<Point> {
    let alone = InvalidatingRun::simulated(setting, 0, u64::MAX)?;
    let lap = match setting.work.invalidators {
        0 => None,
        many => Some(InvalidatingRun::simulated(setting, many, BOUND * alone.stats.wall_ns)?),
    };
    Ok(lap.as_ref().unwrap_or(&alone).point(setting, &alone))
}

/// The VM of a lap, the host's frame behind each of its frames, and the frames that are used.
pub struct Fixture<'g, F: Format, H: Host> {
    vm: &'g Vm<F, H>,
    frame: fn(Gfn) -> Pfn,
    layout: &'g Layout,
    invalidators: u32,
    /// Pages that were in their places before.
    emptied: u64,
}

impl<'g, F: Format, H: Host> Fixture<'g, F, H> {
    /// The places of so many invalidators are emptied, by vCPU 0.
    pub fn new(
        vm: &'g Vm<F, H>,
        frame: fn(Gfn) -> Pfn,
        layout: &'g Layout,
        (invalidators, work): (u32, &Work),
    ) -> Result<Self> {
        let places = (0..invalidators).map(|number| empty(vm, layout.place(number), work.host_page));
        let emptied = places.sum::<Result<_, _>>()?;
        Ok(Self { vm, frame, layout, invalidators, emptied })
    }
}

/// One run.
pub struct InvalidatingRun {
    stats: RunStats,
    /// Faults of all vCPUs.
    pub made: u64,
    /// The faults that mapped a page.
    pub mapped: u64,
    /// Nanoseconds that a fault took the slowest vCPU; of a run that was ended, those that it would have taken if all had
    /// been done just then.
    pub fault_ns: f64,
    /// Of all invalidators.
    pub invalidations: u64,
    /// Nanoseconds for each, with its pause, and with the faults that bring its pages back; where there was any.
    pub invalidation_ns: Option<f64>,
    /// The counts during the run.
    pub counted: Stats,
    /// It was ended before its vCPUs were done.
    unfinished: bool,
    /// The conditions under which it counts.
    pub tally: Vec<Tally>,
}

impl InvalidatingRun {
    /// In virtual time, or on threads as the same is simulated: vCPUs have guests, and the host works.
    fn simulated(setting: &Setting<'_>, invalidators: u32, bound_ns: u64) -> Result<Self> {
        let work = Work {
            // Else every page would be asked for twice, and the sleep be counted twice.
            host_first: setting.work.host_first && setting.work.host_sleeps_ns == 0,
            ..setting.work.clone()
        };
        let many = setting.pages_per_vcpu();
        let layout = &Layout::new(setting, if work.host_page == Level::G1 { many / 8 } else { many });
        let end = layout.end(invalidators);
        let host = SimHost::filled(end, &work);
        let more = if work.over == Over::Mapped { invalidators } else { 0 };
        let builder = builder(host, setting, setting.column.lock).vcpus(setting.vcpus + more);
        let vm = &with_one_slot(builder, end)?;
        let fixture = Fixture::new(vm, |gfn| first_page(gfn).pfn, layout, (invalidators, &work))?;
        let guest = |number| Guest::new(vm, number, &work);
        let mut guests = (0..setting.vcpus).map(guest).collect::<Result<Vec<_>, _>>()?;
        let goes_on = || now() < bound_ns;
        let lap = Self::run(setting, &fixture, &mut guests, &goes_on)?;
        let bound = bound_ns as f64 / layout.pages as f64;
        Ok(Self { fault_ns: if lap.unfinished { bound } else { lap.fault_ns }, ..lap })
    }

    /// `vcpus` of any kind, on any host, as long as they may go on.
    pub fn run<F: Format, H: Host>(
        setting: &Setting<'_>,
        fixture: &Fixture<'_, F, H>,
        vcpus: &mut [impl Touch],
        goes_on: &(impl Fn() -> bool + Sync),
    ) -> Result<Self> {
        let &Fixture { vm, layout, invalidators, .. } = fixture;
        warm(vcpus, layout)?;
        let before = vm.stats();

        let at: Vec<_> =
            layout.starts.iter().map(|start| core::sync::atomic::AtomicU64::new(start.0)).collect();
        let (at, running) = (&at, &AtomicU64::new(setting.vcpus.into()));
        let jobs = vcpus.iter_mut().zip(&layout.starts).zip(at).map(|((vcpu, &start), at)| {
            let mut table = start.base(Level::M2);
            let here = move |gfn: &Gfn| {
                // Once a table, so that it costs nothing.
                if gfn.base(Level::M2) != table {
                    table = gfn.base(Level::M2);
                    // ORDER(at): Relaxed: it publishes nothing.
                    at.store(gfn.0, Relaxed);
                }
            };
            let pages = (0..).zip(layout.pages(start));
            let pages = pages.take_while(|&(nth, _): &(u64, Gfn)| {
                nth == 0 || !nth.is_multiple_of(LOOK_EVERY) || goes_on()
            });
            // ORDER(running): Relaxed: it publishes nothing; invalidators stop an invalidation later.
            vcpu.job(pages.map(|(_, gfn)| gfn).inspect(here), move || {
                running.fetch_sub(1, Relaxed);
            })
        });
        let mut made: Vec<u64> = vec![0; invalidators as usize];
        let beside = made.iter_mut().zip(0..).map(|(made, number)| {
            let invalidator = Invalidator { vm, setting, number, place: layout.place(number), at };
            Job::new("invalidator", move || {
                // ORDER(running): as above. A vCPU may be in one fault for as long as this goes on.
                let on =
                    |made: u64| running.load(Relaxed) > 0 && (!made.is_multiple_of(LOOK_EVERY) || goes_on());
                *made = invalidator.run(on);
            })
        });
        let stats = run(setting.costs, jobs.chain(beside).collect());

        let counts: Vec<_> = vcpus.iter_mut().map(|vcpu| *vcpu.counts()).collect();
        let slowest = counts.iter().zip(&stats.jobs).map(|(made, job)| job.ns as f64 / made[0].max(1) as f64);
        let each =
            made.iter().zip(&stats.jobs[vcpus.len()..]).map(|(&made, job)| job.ns as f64 / made as f64);
        let lap = Self {
            made: counts.iter().map(|counts| counts[0]).sum(),
            mapped: counts.iter().map(|counts| counts[1]).sum(),
            fault_ns: slowest.fold(0.0, f64::max),
            invalidations: made.iter().sum(),
            invalidation_ns: (invalidators > 0).then(|| each.sum::<f64>() / f64::from(invalidators)),
            counted: since(&before, &vm.stats()),
            unfinished: counts.iter().any(|counts| counts[0] < layout.pages),
            tally: Vec::new(),
            stats,
        };
        let tally = lap.tally(fixture, &setting.work)?;
        Ok(Self { tally, ..lap })
    }

    /// Each fault maps a page, and each page is the host's.
    fn tally<F: Format, H: Host>(
        &self,
        &Fixture { vm, frame, layout, emptied, .. }: &Fixture<'_, F, H>,
        &Work { over, range, .. }: &Work,
    ) -> Result<Vec<Tally>> {
        let (mut right, mut there, mut leaves) = (0, 0, [0; 3]);
        let elsewhere = layout.place(0).start;
        vm.memory().lockless(&mut idle()?).for_each(ALL, |mapping| {
            right += u64::from(mapping.leaf.pfn == frame(mapping.gfns.start));
            there += u64::from(mapping.gfns.start < elsewhere);
            leaves[usize::from(mapping.level.number()) - 1] += 1;
        });
        let (all, stats) = (leaves.iter().sum(), vm.stats());
        let mut tally = vec![
            ("every fault mapped a page", [self.mapped, self.made]),
            ("every page that is mapped is mapped to its frame", [right, all]),
            ("the books say what the tables hold", [u64::from(stats.leaves == leaves), 1]),
        ];
        if over != Over::Same {
            let vcpus = layout.starts.len() as u64;
            let due = emptied + if over == Over::Mapped { self.invalidations * range } else { 0 };
            let whole = layout.pages * vcpus;
            let whole = if self.unfinished { whole.min(self.made) } else { whole };
            tally.extend([
                ("each page was taken that was there", [stats.mapped_faults - all, due]),
                // Each has touched one before.
                ("no page of a vCPU was taken away", [there, self.made + vcpus]),
                ("every page was faulted in, unless the run was ended", [self.made, whole]),
            ]);
        }
        Ok(tally)
    }

    fn point(&self, setting: &Setting<'_>, alone: &Self) -> Point {
        let faults = self.counted.mapped_faults.max(1) as f64;
        let ratio = self.fault_ns / alone.fault_ns;
        let transfers: u64 =
            self.stats.jobs.iter().take(setting.vcpus as usize).map(|job| job.transfers).sum();
        let per_1000 =
            |name, count: u64| Figure { name, value: 1000.0 * count as f64 / faults, unit: "in 1000 faults" };
        let by = self.counted.retries_by;
        let wall_ns = self.stats.wall_ns.max(1) as f64;
        let [mut checks, mine] =
            [alone, self].map(|lap| lap.tally.iter().map(Check::from).collect::<Vec<_>>());
        for (all, mine) in checks.iter_mut().zip(mine) {
            if all.ok {
                *all = mine;
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
            checks,
            ..Point::of(setting, figures, self.stats.clone())
        }
    }
}

/// Whether slat keeps its bar, where it has one.
pub fn bar(setting: &Setting<'_>, ratio: f64) -> Option<Check> {
    let Work { over, invalidators, .. } = setting.work;
    // Where pages go, flushes kick.
    let has_one = setting.column == NONE && matches!(over, Over::Elsewhere | Over::Near);
    let bar = BARS[usize::from(invalidators > setting.vcpus)];
    has_one.then(|| Check {
        name: "what is invalidated elsewhere costs a fault of slat's little",
        ok: ratio <= bar,
        detail: format!("{ratio:.2} times alone, at most {bar}, beside {invalidators}"),
    })
}

/// The counts of a run.
pub fn since(before: &Stats, after: &Stats) -> Stats {
    let mut counted = *after;
    counted.retries_by.moved -= before.retries_by.moved;
    counted.retries_by.covered -= before.retries_by.covered;
    counted.retries_by.lost -= before.retries_by.lost;
    counted.asked_again -= before.asked_again;
    counted.flushes.paid -= before.flushes.paid;
    counted.mapped_faults -= before.mapped_faults;
    counted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::setting::EXCLUSIVE;

    fn work(invalidators: u32) -> Work {
        Work { invalidators, pause_ns: 1000, ..Work::default() }
    }

    /// Simulated only: how far threads get in a time is chance.
    #[cfg(virtual_time)]
    #[test]
    fn a_run_that_does_not_end_by_itself_is_ended_and_says_so() {
        let setting = &Setting { work: work(1), ..setting(NONE) };
        let alone = InvalidatingRun::simulated(setting, 0, u64::MAX).unwrap();
        assert!(!alone.unfinished);
        let ended = InvalidatingRun::simulated(setting, 1, alone.stats.wall_ns / 2).unwrap();
        assert!(ended.unfinished && ended.made < alone.made && ended.made > 0);
        let point = ended.point(setting, &alone);
        assert!(point.unfinished);
        assert_eq!(failing(&point.checks), [""; 0]);
    }

    #[test]
    fn every_kind_of_page_and_of_place_is_faulted_in() {
        for over in [Over::Elsewhere, Over::Mapped, Over::Near, Over::Same] {
            let pages: &[_] = &[Level::K4, Level::M2, Level::G1];
            // Pages that come back one by one are small.
            for &host_page in if over == Over::Mapped { &pages[..1] } else { pages } {
                for host_sleeps_ns in [0, 1000] {
                    let work = Work { host_page, host_sleeps_ns, over, range: 4, ..work(2) };
                    let point = run_once(&Setting { work, ..setting(NONE) }).unwrap();
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
        let setting = &Setting { work: work(0), ..setting(NONE) };
        let lap = InvalidatingRun::simulated(setting, 0, u64::MAX).unwrap();
        let layout = &Layout::new(setting, setting.pages_per_vcpu());
        let end = layout.end(0);
        let vm = &sim_vm(SimHost::filled(end, &setting.work), setting, end).unwrap();
        let failed = |emptied| {
            let fixture = Fixture { vm, frame: |gfn| first_page(gfn).pfn, layout, invalidators: 0, emptied };
            let tally = lap.tally(&fixture, &setting.work).unwrap();
            failing(&tally.iter().map(Check::from).collect::<Vec<_>>())
        };
        assert_eq!(failed(0), ["no page of a vCPU was taken away"], "nothing is mapped in this one");
        assert_eq!(failed(1), ["each page was taken that was there", "no page of a vCPU was taken away"]);
        let first = layout.starts[0];
        vm.host()
            .set(crate::parts::sim_host::hva_of(first), Some(crate::parts::sim_host::first_page(first + 1)));
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let _ = vcpu.fault(&mut idle().unwrap(), Fault { gpa: first.gpa(), access: Access::Write }).unwrap();
        assert_eq!(
            failed(0),
            ["every page that is mapped is mapped to its frame", "no page of a vCPU was taken away"]
        );
    }

    #[test]
    fn only_slat_elsewhere_has_a_bar_and_more_invalidators_than_vcpus_a_wider_one() {
        let ok = |column, over, invalidators, ratio| {
            let work = Work { over, ..work(invalidators) };
            bar(&Setting { work, ..setting(column) }, ratio).map(|check| check.ok)
        };
        assert_eq!(ok(NONE, Over::Elsewhere, 2, 1.2), Some(true));
        assert_eq!(ok(NONE, Over::Near, 2, 1.3), Some(false));
        assert_eq!([1.4, 1.6].map(|ratio| ok(NONE, Over::Elsewhere, 3, ratio)), [Some(true), Some(false)]);
        assert_eq!(
            [(NONE, Over::Same), (NONE, Over::Mapped), (EXCLUSIVE, Over::Near)]
                .map(|(column, over)| ok(column, over, 2, 9.0)),
            [None; 3]
        );
    }
}
