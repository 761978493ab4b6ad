//! Large pages split when the log is enabled, or by the first store to each: what the first pass of stores takes
//! afterwards, and what a vCPU elsewhere feels while all of them are split.
//!
//! A pass stores to each 4K page, as KVM's test does, or once to each 2M page. slat splits a large page by one fault, and
//! the store to each of its other pages finds it done. KVM, before it split eagerly, put a table with one small page in
//! the place of the large one: each of the others came back by a fault of its own. That is here too ("zap and refault"),
//! on the reader-writer lock that its faults take.

use super::host::{ELSEWHERE, Machine, memory, pages, set_log, slot};
use super::reported::Reported;
use super::stages::parts;
use super::sweep::Pass;
use super::team::with_team;
use super::{exit_name, name_of, timed};
use crate::bench::harness::{Series, rounds};
use crate::bench::latencies::{Pick, latencies};
use crate::bench::report::{Check, Row, params};
use crate::bench::tables;
use slat::{DirtyLog, Idle, Level, MmuLock, PAGE_SIZE, Slot, Splitting, Track, VcpuId, Vm, Why};
use slat_cli::error::Error;
use slat_cli::size;
use slat_cli::thread::idle;
use slat_machine::Costs;
use slat_series::{PatchSeries, kvm};
use slat_threads::benches::onlooker::{Faulter, Seen, beside};
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

/// Who runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entrant {
    way: Way,
    track: Track,
    /// Frames from one store to the next, in the pass after enabling.
    step: u64,
    exit: Duration,
}

/// What one lap gives.
struct Sample {
    enable: Duration,
    pass: Duration,
    /// Faults elsewhere, beside the enabling and with nothing beside.
    faults: Seen,
    /// Whether all that the pass stored to was told, and large pages are as they should be after enabling.
    right: bool,
}

/// Rows and checks for `bytes` in pages of 2M, gone over by so many vCPUs whose exits take so long each.
pub fn measure(
    bytes: u64,
    (vcpus, exits): (u32, &[Duration]),
    tracks: &[Track],
    runs: usize,
) -> Result<(Vec<Row>, Vec<Check>), Error> {
    let entrants = entrants(tracks, exits);
    let samples = rounds(runs, &entrants, |entrant| entrant.lap(bytes, vcpus))?;
    let of = |way, track, step, exit| {
        let at = entrants.iter().position(|who| *who == Entrant { way, track, step, exit });
        at.map(|at| samples[at].as_slice()).unwrap_or_default()
    };
    let params = |track, exit, baseline: &str| {
        params! {
            "test": "split", "memory": size::text(bytes), "vcpus": vcpus, "by": name_of(track),
            "exit": exit_name(exit), "baseline": baseline,
        }
    };
    let mut rows = Vec::new();
    for (&track, &exit) in tracks.iter().flat_map(|track| exits.iter().map(move |exit| (track, exit))) {
        for (baseline, way, claim) in [
            ("zap and refault", Way::Refault, Some(kvm::FIRST_WRITES[0] / kvm::FIRST_WRITES[1])),
            ("split by the first store", Way::Lazy, None),
        ] {
            let params = params(track, exit, baseline);
            for (step, figure, name) in FIGURES {
                let (before, after) = (of(way, track, step, exit), of(Way::Eager, track, step, exit));
                let row = Row::compare(name, params.clone(), "us", &us(before, figure), &us(after, figure));
                let claim = claim.filter(|_| name == FIGURES[0].2);
                rows.push(row.answering(claim.map(|_| PatchSeries::Kvm)).claiming(claim));
            }
        }
    }
    // What others feel of the enabling does not depend on exits.
    for (&track, &exit) in tracks.iter().filter_map(|track| exits.first().map(|exit| (track, exit))) {
        let [slat, mutex] = [Way::Eager, Way::EagerExclusive].map(|way| of(way, track, LARGE, exit));
        let params = |baseline| params(track, exit, baseline);
        rows.extend(latencies(
            FAULT,
            "longest",
            &params("nothing is split"),
            [(slat, QUIET), (slat, BESIDE)],
        ));
        rows.extend(latencies(
            FAULT,
            "longest",
            &params("--mmu-lock exclusive"),
            [(mutex, BESIDE), (slat, BESIDE)],
        ));
    }
    Ok((rows, checks(&samples)))
}

const LARGE: u64 = Level::M2.pages();

/// A figure of a lap.
type Figure = fn(&Sample) -> Duration;

/// After which pass, what, and its name.
const FIGURES: [(u64, Figure, &str); 3] = [
    (1, |sample| sample.pass, "first pass of stores, to each 4K page"),
    (LARGE, |sample| sample.pass, "first pass of stores, once to each 2M page"),
    (LARGE, |sample| sample.enable, "enabling"),
];

fn us(samples: &[Sample], figure: Figure) -> Series {
    Series::new(samples.iter().map(|sample| figure(sample).as_secs_f64() * 1e6).collect())
}

fn entrants(tracks: &[Track], exits: &[Duration]) -> Vec<Entrant> {
    let mut entrants = Vec::new();
    for &track in tracks {
        for &exit in exits {
            for step in [1, LARGE] {
                let of = |way| Entrant { way, track, step, exit };
                entrants.extend([Way::Eager, Way::Lazy, Way::Refault].map(of));
            }
        }
        entrants.extend(exits.first().map(|&exit| Entrant {
            way: Way::EagerExclusive,
            track,
            step: LARGE,
            exit,
        }));
    }
    entrants
}

fn checks(samples: &[Vec<Sample>]) -> Vec<Check> {
    let (mut wrong, mut faults) = (0, [0; 2]);
    for sample in samples.iter().flatten() {
        wrong += u64::from(!sample.right);
        faults = [faults[0] + sample.faults.good[0], faults[1] + sample.faults.good[1]];
    }
    vec![
        Check {
            name: "split: large pages are left as each way has it; all that was stored to afterwards is told"
                .into(),
            ok: wrong == 0,
            detail: format!("not so in {wrong} laps"),
        },
        Check {
            name: "split: each fault elsewhere mapped a page".into(),
            ok: faults[0] == faults[1],
            detail: format!("{} of {}", faults[0], faults[1]),
        },
    ]
}

/// Which faults elsewhere.
const BESIDE: Pick<Sample> = |sample| &sample.faults.beside;
const QUIET: Pick<Sample> = |sample| &sample.faults.control;
const FAULT: &str = "fault elsewhere beside an eager split";

impl Entrant {
    fn lap(self, bytes: u64, vcpus: u32) -> Result<Sample, Error> {
        tables::reserve(bytes / Level::M2.bytes() * PAGE_SIZE * 65 / 64 + (64 << 20));
        let (lock, splitting) = match self.way {
            Way::Eager => (MmuLock::None, Splitting::Eager),
            Way::EagerExclusive => (MmuLock::Exclusive, Splitting::Eager),
            Way::Lazy => (MmuLock::None, Splitting::Lazy),
            Way::Refault => (MmuLock::ReadWrite, Splitting::Lazy),
        };
        let log = DirtyLog::bitmap().track(self.track).splitting(splitting);
        let builder = Vm::builder(pages(Level::M2)).vcpus(vcpus + 1).mmu_lock(lock).dirty_log(log);
        let vm: Machine = builder.build().map_err(|error| Error::Machine(error.to_string()))?;
        let logged = slot(0, memory(bytes));
        vm.slots().commit(&mut idle()?, |tx| {
            tx.create(logged)?;
            tx.create(slot(1, ELSEWHERE))
        })?;
        let told = &Reported::nothing(logged.gfns.len());
        let parts = &parts(logged.gfns, vcpus);
        with_team(&vm, (parts, self.exit), told, |lead| {
            lead.pass(Pass { step: LARGE, ..Pass::of_stores(0) })
        })?;

        let (enable, faults) = self.enable_beside(&vm, logged, VcpuId(vcpus))?;
        let left = if self.way == Way::Lazy { logged.gfns.len() / LARGE } else { 0 };
        let as_split = vm.stats().leaves[1] == left;
        let stores = Pass { step: self.step, ..Pass::of_stores(1) };
        let pass = with_team(&vm, (parts, self.exit), told, |lead| {
            let took = lead.pass(stores)?;
            let harvest = lead.vm.slots().harvest(lead.idle(), logged.id)?;
            harvest.words().for_each(|word| told.add(word.first.gfn, word.bits));
            harvest.commit();
            Ok(took)
        })?;
        let right = as_split && told.compare(logged.gfns, stores).lost == 0;
        Ok(Sample { enable, pass, faults, right })
    }

    /// Enables the log while vCPU `onlooker` faults elsewhere; then as long nothing is done.
    fn enable_beside(self, vm: &Machine, logged: Slot, onlooker: VcpuId) -> Result<(Duration, Seen), Error> {
        let enable = || idle().and_then(|mut idle| timed(|| self.enable(vm, &mut idle, logged)));
        let onlookers = &mut [Faulter::new(vm, onlooker, ELSEWHERE)];
        let warm_up = || compute(2_000_000);
        let (enabled, seen, _) =
            beside(&Costs::SERVER, onlookers, warm_up, enable, |took| took.as_nanos() as u64)?;
        Ok((enabled, seen))
    }

    fn enable(self, vm: &Machine, idle: &mut Idle, logged: Slot) -> Result<(), Error> {
        if self.way == Way::Refault {
            // Nothing is left for the log to begin with.
            vm.invalidate_gfns(logged.gfns, Why::Clear).apply(idle).settle();
        }
        Ok(set_log(vm, idle, &logged, true)?)
    }
}
