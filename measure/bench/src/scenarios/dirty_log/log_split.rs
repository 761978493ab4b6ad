//! Large pages split when the log is enabled, or by the first store to each: what the first pass of stores takes
//! afterwards, and how long faults of another vCPU take while all of them are split.
//!
//! A pass stores to each 4K page, as KVM's test does, or once to each 2M page. slat splits a large page by one fault, and
//! the store to each of its other pages finds it done. KVM, before it split eagerly, put a table with one small page in
//! the place of the large one: each of the others came back by a fault of its own. That is here too ("zap and refault"),
//! on the reader-writer lock that its faults take.

use super::logged_vm::{ELSEWHERE, Entrant, Pass, Way, Zap, build, memory, name_of};
use super::logging_vcpus::Vcpus;
use super::{DirtyLogPerf, exit_name, timed};
use crate::parts::concurrent_latency::{Faulter, beside};
use crate::scenarios::threads_prelude::*;
use crate::threads::latencies::{Pick, latencies};
use slat_series::kvm;

fn eager(track: Track) -> Entrant {
    Entrant::new(Way::Auto(track), Splitting::Eager)
}

/// The same under one mutex.
fn eager_exclusive(track: Track) -> Entrant {
    Entrant { lock: MmuLock::Exclusive, ..eager(track) }
}

/// By the first store to each.
fn lazy(track: Track) -> Entrant {
    Entrant::new(Way::Auto(track), Splitting::Lazy)
}

/// Zapped, and small pages come by faults.
fn refault(track: Track) -> Entrant {
    Entrant { lock: MmuLock::ReadWrite, zap_to_enable: Zap::Entries, ..lazy(track) }
}

/// A way to split; frames from one store to the next, in the pass after enabling; what an exit takes.
type Setting = (Entrant, u64, Duration);

/// The result of one lap.
struct Sample {
    enable: Duration,
    pass: Duration,
    /// Faults elsewhere, beside the enabling and with nothing beside.
    faults: PhaseLatencies,
    /// Whether the log reported every page that the pass stored to, and large pages are as they should be after enabling.
    right: bool,
}

impl DirtyLogPerf {
    /// Measures memory in pages of 2M.
    pub(super) fn split(&self, report: &mut Report, runs: u32) -> Result<()> {
        let laps = Lineup::run(runs, self.splits(), |&setting| self.split_lap(setting))?;
        let params = |track, exit, baseline: &str| {
            params! {
                "test": "split", "memory": size::text(self.huge), "vcpus": self.vcpus(), "by": name_of(track),
                "exit": exit_name(exit), "baseline": baseline,
            }
        };
        let rows = &mut report.rows;
        for (&track, &exit) in
            self.track.iter().flat_map(|track| self.exits.iter().map(move |exit| (track, exit)))
        {
            for (baseline, before, claim) in [
                ("zap and refault", refault(track), Some(kvm::FIRST_WRITES[0] / kvm::FIRST_WRITES[1])),
                ("split by the first store", lazy(track), None),
            ] {
                let params = params(track, exit, baseline);
                let both = |step| [before, eager(track)].map(|way| laps.of((way, step, exit)));
                let first = Row::compare_each(&[FIRST], &params, both(1)).into_iter();
                rows.extend(first.map(|row| row.answering(claim.map(|_| PatchSeries::Kvm)).claiming(claim)));
                rows.extend(Row::compare_each(&FIGURES, &params, both(LARGE)));
            }
        }
        // How long faults elsewhere take beside the enabling does not depend on exits.
        for (&track, &exit) in self.track.iter().zip(self.exits.first().into_iter().cycle()) {
            let [slat, mutex] = [eager(track), eager_exclusive(track)].map(|way| laps.of((way, LARGE, exit)));
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

    fn splits(&self) -> Vec<Setting> {
        let mut all = Vec::new();
        for &track in &self.track {
            for &exit in &self.exits {
                let ways = [eager(track), lazy(track), refault(track)];
                all.extend([1, LARGE].iter().flat_map(|&step| ways.map(|way| (way, step, exit))));
            }
            all.extend(self.exits.first().map(|&exit| (eager_exclusive(track), LARGE, exit)));
        }
        all
    }

    /// The log is enabled while another vCPU faults elsewhere; then as long nothing is done.
    fn split_lap(&self, (entrant, step, exit): Setting) -> Result<Sample> {
        let logged = slot(0, memory(self.huge));
        let vm = build(entrant.builder(Level::M2, self.vcpus() + 1), &[logged, slot(1, ELSEWHERE)])?;
        let vcpus = &mut Vcpus::new(&vm, entrant, vec![logged], (self.vcpus(), exit))?;
        vcpus.pass(Pass { step: LARGE, ..Pass::of_stores(0) })?;

        let onlookers = &mut [Faulter::new(&vm, VcpuId(self.vcpus()), ELSEWHERE)];
        let (warm_up, enable) = (|| compute(2_000_000), || timed(|| vcpus.enable()));
        let ((enable, ()), faults, _) =
            beside(&Costs::SERVER, onlookers, warm_up, enable, |(took, ())| took.as_nanos() as u64)?;
        let zapped = entrant.zap_to_enable != Zap::Nothing;
        let left =
            if entrant.splitting == Splitting::Lazy && !zapped { logged.gfns.len() / LARGE } else { 0 };
        let as_split = vm.stats().leaves[1] == left;
        let stores = Pass { step, ..Pass::of_stores(1) };
        let pass = vcpus.pass(stores)?;
        vcpus.get()?;
        Ok(Sample { enable, pass, faults, right: as_split && vcpus.compare(stores).lost == 0 })
    }
}

const LARGE: u64 = Level::M2.pages();

/// After a pass of stores to each small page.
const FIRST: Figure<Sample> = ("first pass of stores, to each 4K page", "us", |sample| Some(us(sample.pass)));

/// After a pass of stores to each large page.
const FIGURES: [Figure<Sample>; 2] = [
    ("first pass of stores, once to each 2M page", "us", |sample| Some(us(sample.pass))),
    ("enabling", "us", |sample| Some(us(sample.enable))),
];

/// Which faults elsewhere.
const BESIDE: Pick<Sample> = |sample| &sample.faults.beside;
const QUIET: Pick<Sample> = |sample| &sample.faults.control;
const FAULT: &str = "fault elsewhere beside an eager split";

// The end of a log: large pages come back in place, or everything is zapped and faults bring it back. Timed until every
// table that went is taken apart, and the guest has been to every large page again.
//
// Zapping is done as KVM did it before it recovered in place: table by table under the MMU lock, where each entry of a
// table that goes is exchanged, and with a flush for each; and all at once, by slat's invalidation, which unhooks tables
// as they are, and flushes once. No vCPU is in the guest meanwhile, so no flush waits.

/// Each baseline, and what it is called.
const BASELINES: [(Zap, &str); 2] = [
    (Zap::TableByTable, "zap table by table, entry by entry, under one mutex, and refault"),
    (Zap::AtOnce, "zap all at once, and refault"),
];

/// The result of one lap.
#[derive(Clone, Copy, Debug)]
struct Disabling {
    disable: Duration,
    again: Duration,
    /// Whether pages were small before and are large afterwards.
    right: bool,
}

const DISABLE_FIGURES: [Figure<Disabling>; 3] = [
    ("until every page was used again", "us", |sample| Some(us(sample.disable + sample.again))),
    ("disabling, tables taken apart", "us", |sample| Some(us(sample.disable))),
    ("a store to each 2M page", "us", |sample| Some(us(sample.again))),
];

impl DirtyLogPerf {
    /// Measures memory in pages of 2M.
    pub(super) fn disable(&self, report: &mut Report, runs: u32) -> Result<()> {
        let ways = [Zap::Nothing, Zap::TableByTable, Zap::AtOnce];
        let entrants = self.exits.iter().flat_map(|&exit| ways.map(|zap| (zap, exit)));
        let laps = Lineup::run(runs, entrants, |&(zap, exit)| self.disable_lap(zap, exit))?;
        for &exit in &self.exits {
            for (zap, baseline) in BASELINES {
                let params = params! {
                    "test": "disable", "memory": size::text(self.huge), "vcpus": self.vcpus(), "exit": exit_name(exit),
                    "baseline": baseline,
                };
                let both = [zap, Zap::Nothing].map(|zap| laps.of((zap, exit)));
                report.rows.extend(Row::compare_each(&DISABLE_FIGURES, &params, both));
            }
        }
        report.checks.push(Check::each(
            "disable: pages are small before it, and large once they have been used again",
            laps.all(),
            |sample| sample.right,
        ));
        Ok(())
    }

    fn disable_lap(&self, zap_to_disable: Zap, exit: Duration) -> Result<Disabling> {
        let lock = if zap_to_disable == Zap::TableByTable { MmuLock::Exclusive } else { MmuLock::None };
        let shipped = Entrant::new(Way::Auto(Track::Writes), Splitting::Eager);
        let entrant = Entrant { lock, zap_to_disable, ..shipped };
        let slot = slot(0, memory(self.huge));
        let vm = build(entrant.builder(Level::M2, self.vcpus()), &[slot])?;
        let vcpus = &mut Vcpus::new(&vm, entrant, vec![slot], (self.vcpus(), exit))?;
        let once = Pass { step: Level::M2.pages(), ..Pass::of_stores(0) };
        vcpus.pass(once)?;
        vcpus.enable()?;
        vcpus.pass(Pass::of_stores(1))?;
        let before = vm.stats().leaves == [slot.gfns.len(), 0, 0];
        let (disable, ()) = timed(|| {
            vcpus.disable()?;
            vm.collect(&mut idle()?);
            Ok::<_, Error>(())
        })?;
        let again = vcpus.pass(once)?;
        let large = slot.gfns.len() / Level::M2.pages();
        Ok(Disabling { disable, again, right: before && vm.stats().leaves == [0, large, 0] })
    }
}
