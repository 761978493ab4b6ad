//! Large pages split when the log is enabled, or by the first store to each: what the first pass of stores takes
//! afterwards, and how long faults of another vCPU take while all of them are split.
//!
//! A pass stores to each 4K page, as KVM's test does, or once to each 2M page. slat splits a large page by one fault, and
//! the store to each of its other pages finds it done. KVM, before it split eagerly, put a table with one small page in
//! the place of the large one: each of the others came back by a fault of its own. That is here too ("zap and refault"),
//! on the reader-writer lock that its faults take.

use super::logged_vm::{ELSEWHERE, LoggedVm, build, builder, memory, set_log, slot};
use super::sweep::Pass;
use super::vcpus::Vcpus;
use super::{exit_name, name_of, timed};
use crate::bench::harness::{Lineup, us};
use crate::bench::latencies::{Pick, latencies};
use crate::bench::report::{Check, Figure, Report, Row, params};
use slat::{DirtyLog, Idle, Level, MmuLock, Slot, Splitting, Track, VcpuId, Why};
use slat_cli::error::Error;
use slat_cli::size;
use slat_cli::thread::idle;
use slat_machine::Costs;
use slat_series::{PatchSeries, kvm};
use slat_threads::benches::concurrent_latency::{Faulter, PhaseLatencies, beside};
use slat_threads::world::compute;
use std::time::Duration;

/// How large pages become small.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Eager,
    /// The same under one mutex.
    EagerExclusive,
    /// By the first store to each.
    Lazy,
    /// Zapped, and small pages come by faults.
    Refault,
}

/// One way to split, in one setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entrant {
    way: Way,
    track: Track,
    /// Frames from one store to the next, in the pass after enabling.
    step: u64,
    exit: Duration,
}

/// The result of one lap.
struct Sample {
    enable: Duration,
    pass: Duration,
    /// Faults elsewhere, beside the enabling and with nothing beside.
    faults: PhaseLatencies,
    /// Whether the log reported every page that the pass stored to, and large pages are as they should be after enabling.
    right: bool,
}

/// Measures `bytes` in pages of 2M, gone over by so many vCPUs whose exits take so long each.
pub fn measure(
    report: &mut Report,
    bytes: u64,
    (vcpus, exits): (u32, &[Duration]),
    tracks: &[Track],
    runs: u32,
) -> Result<(), Error> {
    let laps = Lineup::run(runs, entrants(tracks, exits), |entrant| entrant.lap(bytes, vcpus))?;
    let params = |track, exit, baseline: &str| {
        params! {
            "test": "split", "memory": size::text(bytes), "vcpus": vcpus, "by": name_of(track),
            "exit": exit_name(exit), "baseline": baseline,
        }
    };
    let rows = &mut report.rows;
    for (&track, &exit) in tracks.iter().flat_map(|track| exits.iter().map(move |exit| (track, exit))) {
        for (baseline, before, claim) in [
            ("zap and refault", Way::Refault, Some(kvm::FIRST_WRITES[0] / kvm::FIRST_WRITES[1])),
            ("split by the first store", Way::Lazy, None),
        ] {
            let params = params(track, exit, baseline);
            let compare = |step, figure| {
                let both = [before, Way::Eager].map(|way| laps.of(Entrant { way, track, step, exit }));
                Row::compare_each(&[figure], &params, both)
            };
            let first = compare(1, FIRST).into_iter();
            rows.extend(first.map(|row| row.answering(claim.map(|_| PatchSeries::Kvm)).claiming(claim)));
            rows.extend(FIGURES.into_iter().flat_map(|figure| compare(LARGE, figure)));
        }
    }
    // How long faults elsewhere take beside the enabling does not depend on exits.
    for (&track, &exit) in tracks.iter().filter_map(|track| exits.first().map(|exit| (track, exit))) {
        let of = |way| laps.of(Entrant { way, track, step: LARGE, exit });
        let [slat, mutex] = [Way::Eager, Way::EagerExclusive].map(of);
        for (baseline, before) in
            [("nothing is split", (slat, QUIET)), ("--mmu-lock exclusive", (mutex, BESIDE))]
        {
            let params = params(track, exit, baseline);
            rows.extend(latencies(FAULT, "longest", &params, [before, (slat, BESIDE)]));
        }
    }
    let good =
        laps.all().fold([0; 2], |[a, b], Sample { faults, .. }| [a + faults.good[0], b + faults.good[1]]);
    report.checks.extend([
        Check::each(
            "split: large pages are left as each way has it; all that was stored to afterwards is told",
            laps.all(),
            |sample| sample.right,
        ),
        Check::all("split: each fault elsewhere mapped a page", good),
    ]);
    Ok(())
}

const LARGE: u64 = Level::M2.pages();

/// After a pass of stores to each small page.
const FIRST: Figure<Sample> = ("first pass of stores, to each 4K page", "us", |sample| Some(us(sample.pass)));

/// After a pass of stores to each large page.
const FIGURES: [Figure<Sample>; 2] = [
    ("first pass of stores, once to each 2M page", "us", |sample| Some(us(sample.pass))),
    ("enabling", "us", |sample| Some(us(sample.enable))),
];

fn entrants(tracks: &[Track], exits: &[Duration]) -> Vec<Entrant> {
    let mut entrants = Vec::new();
    for &track in tracks {
        for &exit in exits {
            for step in [1, LARGE] {
                let of = |way| Entrant { way, track, step, exit };
                entrants.extend([Way::Eager, Way::Lazy, Way::Refault].map(of));
            }
        }
        let exclusive = |&exit| Entrant { way: Way::EagerExclusive, track, step: LARGE, exit };
        entrants.extend(exits.first().map(exclusive));
    }
    entrants
}

/// Which faults elsewhere.
const BESIDE: Pick<Sample> = |sample| &sample.faults.beside;
const QUIET: Pick<Sample> = |sample| &sample.faults.control;
const FAULT: &str = "fault elsewhere beside an eager split";

impl Entrant {
    fn lap(self, bytes: u64, vcpus: u32) -> Result<Sample, Error> {
        let (lock, splitting) = match self.way {
            Way::Eager => (MmuLock::None, Splitting::Eager),
            Way::EagerExclusive => (MmuLock::Exclusive, Splitting::Eager),
            Way::Lazy => (MmuLock::None, Splitting::Lazy),
            Way::Refault => (MmuLock::ReadWrite, Splitting::Lazy),
        };
        let log = DirtyLog::bitmap().track(self.track).splitting(splitting);
        let builder = builder(Level::M2).vcpus(vcpus + 1).mmu_lock(lock).dirty_log(log);
        let logged = slot(0, memory(bytes));
        let vm = &build(builder, &mut idle()?, &[logged, slot(1, ELSEWHERE)])?;
        let onlooker = VcpuId(vcpus);
        let vcpus = &mut Vcpus::new(vm, logged.gfns, vcpus, self.exit)?;
        vcpus.pass(Pass { step: LARGE, ..Pass::of_stores(0) })?;

        let (enable, faults) = self.enable_beside(vm, logged, onlooker)?;
        let left = if self.way == Way::Lazy { logged.gfns.len() / LARGE } else { 0 };
        let as_split = vm.stats().leaves[1] == left;
        let stores = Pass { step: self.step, ..Pass::of_stores(1) };
        let pass = vcpus.pass(stores)?;
        let harvest = vm.slots().harvest(&mut vcpus.idle, logged.id)?;
        harvest.words().for_each(|word| vcpus.reported.add(word.first.gfn, word.bits));
        harvest.commit();
        let right = as_split && vcpus.reported.compare(logged.gfns, stores).lost == 0;
        Ok(Sample { enable, pass, faults, right })
    }

    /// Enables the log while vCPU `onlooker` faults elsewhere; then as long nothing is done.
    fn enable_beside(
        self,
        vm: &LoggedVm,
        logged: Slot,
        onlooker: VcpuId,
    ) -> Result<(Duration, PhaseLatencies), Error> {
        let enable = || idle().and_then(|mut idle| timed(|| self.enable(vm, &mut idle, logged)));
        let onlookers = &mut [Faulter::new(vm, onlooker, ELSEWHERE)];
        let warm_up = || compute(2_000_000);
        let (enabled, seen, _) =
            beside(&Costs::SERVER, onlookers, warm_up, enable, |took| took.as_nanos() as u64)?;
        Ok((enabled, seen))
    }

    fn enable(self, vm: &LoggedVm, idle: &mut Idle, logged: Slot) -> Result<(), Error> {
        if self.way == Way::Refault {
            // Nothing is left for the log to begin with.
            vm.invalidate_gfns(logged.gfns, Why::Clear).apply(idle).settle();
        }
        Ok(set_log(vm, idle, &logged, true)?)
    }
}
