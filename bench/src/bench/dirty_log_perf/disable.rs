//! The end of a log: large pages come back in place, or everything is zapped and faults bring it back. Timed until every
//! table that went is taken apart, and the guest has been to every large page again.
//!
//! Zapping is done as KVM did it before it recovered in place: table by table under the MMU lock, where each entry of a
//! table that goes is exchanged, and with a flush for each; and all at once, by slat's invalidation, which unhooks tables
//! as they are, and flushes once. No vCPU is in the guest meanwhile, so no flush waits.

use super::logged_vm::{LoggedVm, build, builder, memory, set_log, slot};
use super::sweep::Pass;
use super::vcpus::Vcpus;
use super::{exit_name, timed};
use crate::bench::harness::{Lineup, us};
use crate::bench::report::{Check, Figure, Report, Row, params};
use slat::{DirtyLog, Gfn, Idle, Level, MmuLock, Slot, Span, Why};
use slat_cli::error::Error;
use slat_cli::size;
use slat_cli::thread::idle;
use std::time::Duration;

/// How large pages come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    InPlace,
    /// The entries of each table are zapped, and it is; then the next.
    TableByTable,
    /// All of them are unhooked.
    AtOnce,
}

/// Each baseline, and what it is called.
const BASELINES: [(Way, &str); 2] = [
    (Way::TableByTable, "zap table by table, entry by entry, under one mutex, and refault"),
    (Way::AtOnce, "zap all at once, and refault"),
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

/// Measures `bytes` in pages of 2M, gone over by so many vCPUs whose exits take so long each.
pub fn measure(
    report: &mut Report,
    bytes: u64,
    (vcpus, exits): (u32, &[Duration]),
    runs: u32,
) -> Result<(), Error> {
    let ways = [Way::InPlace, Way::TableByTable, Way::AtOnce];
    let entrants = exits.iter().flat_map(|&exit| ways.map(|way| (way, exit)));
    let laps = Lineup::run(runs, entrants, |(way, exit)| way.lap(bytes, (vcpus, *exit)))?;
    for &exit in exits {
        for (way, baseline) in BASELINES {
            let params = params! {
                "test": "disable", "memory": size::text(bytes), "vcpus": vcpus, "exit": exit_name(exit), "baseline": baseline,
            };
            let both = [way, Way::InPlace].map(|way| laps.of((way, exit)));
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

impl Way {
    fn lap(self, bytes: u64, (vcpus, exit): (u32, Duration)) -> Result<Sample, Error> {
        let lock = if self == Self::TableByTable { MmuLock::Exclusive } else { MmuLock::None };
        let builder = builder(Level::M2).vcpus(vcpus).mmu_lock(lock).dirty_log(DirtyLog::bitmap());
        let slot = slot(0, memory(bytes));
        let vm = &build(builder, &mut idle()?, &[slot])?;
        let vcpus = &mut Vcpus::new(vm, slot.gfns, vcpus, exit)?;
        let once = Pass { step: Level::M2.pages(), ..Pass::of_stores(0) };
        let large = slot.gfns.len() / Level::M2.pages();
        vcpus.pass(once)?;
        set_log(vm, &mut vcpus.idle, &slot, true)?;
        vcpus.pass(Pass::of_stores(1))?;
        let before = vm.stats().leaves == [slot.gfns.len(), 0, 0];
        let disable = timed(|| self.disable(vm, &mut vcpus.idle, slot))?;
        let again = vcpus.pass(once)?;
        Ok(Sample { disable, again, right: before && vm.stats().leaves == [0, large, 0] })
    }

    fn disable(self, vm: &LoggedVm, idle: &mut Idle, slot: Slot) -> Result<(), Error> {
        // Before the log ends: what is not there is not made large in place.
        let mut zap = |gfns, why| {
            vm.invalidate_gfns(gfns, why).apply(idle).settle();
        };
        match self {
            Self::InPlace => {}
            Self::TableByTable => {
                for first in (slot.gfns.start.0..slot.gfns.end.0).step_by(Level::M2.pages() as usize) {
                    let table = Span::sized(Gfn(first), Level::M2.pages());
                    zap(table, Why::Clear);
                    zap(table, Why::Unmap);
                }
            }
            Self::AtOnce => zap(slot.gfns, Why::Unmap),
        }
        set_log(vm, idle, &slot, false)?;
        vm.collect(idle);
        Ok(())
    }
}
