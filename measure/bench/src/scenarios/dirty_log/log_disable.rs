//! The end of a log: large pages come back in place, or everything is zapped and faults bring it back. Timed until every
//! table that went is taken apart, and the guest has been to every large page again.
//!
//! Zapping is done as KVM did it before it recovered in place: table by table under the MMU lock, where each entry of a
//! table that goes is exchanged, and with a flush for each; and all at once, by slat's invalidation, which unhooks tables
//! as they are, and flushes once. No vCPU is in the guest meanwhile, so no flush waits.

use super::logged_vm::{build, memory, slot};
use super::logging_vcpus::Vcpus;
use super::{DirtyLogPerf, exit_name, timed};
use crate::scenarios::dirty_log::log_sweep::Pass;
use crate::scenarios::dirty_log::log_ways::{Entrant, Way, Zap};
use crate::scenarios::threads_prelude::*;
use slat::Splitting;

/// Each baseline, and what it is called.
const BASELINES: [(Zap, &str); 2] = [
    (Zap::TableByTable, "zap table by table, entry by entry, under one mutex, and refault"),
    (Zap::AtOnce, "zap all at once, and refault"),
];

/// The result of one lap.
#[derive(Clone, Copy, Debug)]
struct Sample {
    disable: Duration,
    again: Duration,
    /// Whether pages were small before and are large afterwards.
    right: bool,
}

const FIGURES: [Figure<Sample>; 3] = [
    ("until every page was used again", "us", |sample| Some(us(sample.disable + sample.again))),
    ("disabling, tables taken apart", "us", |sample| Some(us(sample.disable))),
    ("a store to each 2M page", "us", |sample| Some(us(sample.again))),
];

impl DirtyLogPerf {
    /// Measures memory in pages of 2M.
    pub(super) fn disable(&self, report: &mut Report, runs: u32) -> Result<(), Error> {
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
                report.rows.extend(Row::compare_each(&FIGURES, &params, both));
            }
        }
        report.checks.push(Check::each(
            "disable: pages are small before it, and large once they have been used again",
            laps.all(),
            |sample| sample.right,
        ));
        Ok(())
    }

    fn disable_lap(&self, zap_to_disable: Zap, exit: Duration) -> Result<Sample, Error> {
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
        Ok(Sample { disable, again, right: before && vm.stats().leaves == [0, large, 0] })
    }
}
