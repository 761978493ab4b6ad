//! The end of a log: large pages come back in place, or everything is zapped and faults bring it back. Timed until every
//! table that went is taken apart, and the guest has been to every large page again.
//!
//! Zapping is done as KVM did it before it recovered in place: table by table under the MMU lock, where each entry of a
//! table that goes is exchanged, and with a flush for each; and all at once, by slat's invalidation, which unhooks tables
//! as they are, and flushes once. No vCPU is in the guest meanwhile, so no flush waits.

use super::host::{Machine, memory, pages, set_log, slot};
use super::reported::Reported;
use super::stages::parts;
use super::sweep::Pass;
use super::team::{Lead, with_team};
use super::{exit_name, timed};
use crate::bench::harness::{Series, rounds};
use crate::bench::report::{Check, Row, params};
use crate::bench::tables;
use slat::{DirtyLog, Gfn, Level, MmuLock, PAGE_SIZE, Slot, Span, Vm, Why};
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

/// What one lap gives.
#[derive(Clone, Copy, Debug)]
struct Sample {
    disable: Duration,
    again: Duration,
    /// Whether pages were small before and are large afterwards.
    right: bool,
}

/// A figure of a lap.
type Figure = fn(&Sample) -> Duration;

const WAYS: [Way; 3] = [Way::InPlace, Way::TableByTable, Way::AtOnce];

/// Rows and checks for `bytes` in pages of 2M, gone over by so many vCPUs whose exits take so long each.
pub fn measure(
    bytes: u64,
    (vcpus, exits): (u32, &[Duration]),
    runs: usize,
) -> Result<(Vec<Row>, Vec<Check>), Error> {
    let entrants: Vec<(Way, Duration)> = exits.iter().flat_map(|&exit| WAYS.map(|way| (way, exit))).collect();
    let samples = rounds(runs, &entrants, |(way, exit)| way.lap(bytes, (vcpus, *exit)))?;
    let mut rows = Vec::new();
    for (exit, samples) in exits.iter().zip(samples.chunks(WAYS.len())) {
        rows.extend(rows_of(samples, (bytes, vcpus, *exit)));
    }
    let wrong = samples.iter().flatten().filter(|sample| !sample.right).count();
    let check = Check {
        name: "disable: pages are small before it, and large once they have been used again".into(),
        ok: wrong == 0,
        detail: format!("not so in {wrong} laps"),
    };
    Ok((rows, vec![check]))
}

/// The samples of each way, at one length of exits.
fn rows_of(samples: &[Vec<Sample>], (bytes, vcpus, exit): (u64, u32, Duration)) -> Vec<Row> {
    let mut rows = Vec::new();
    for (nth, baseline) in [
        (1, "zap table by table, entry by entry, under one mutex, and refault"),
        (2, "zap all at once, and refault"),
    ] {
        let params = params! {
            "test": "disable", "memory": size::text(bytes), "vcpus": vcpus, "exit": exit_name(exit), "baseline": baseline,
        };
        let figures: [(&str, Figure); 3] = [
            ("until every page was used again", |sample| sample.disable + sample.again),
            ("disabling, tables taken apart", |sample| sample.disable),
            ("a store to each 2M page", |sample| sample.again),
        ];
        for (name, figure) in figures {
            let series = |samples: &[Sample]| {
                Series::new(samples.iter().map(|sample| figure(sample).as_secs_f64() * 1e6).collect())
            };
            rows.push(Row::compare(name, params.clone(), "us", &series(&samples[nth]), &series(&samples[0])));
        }
    }
    rows
}

impl Way {
    fn lap(self, bytes: u64, (vcpus, exit): (u32, Duration)) -> Result<Sample, Error> {
        tables::reserve(bytes / Level::M2.bytes() * PAGE_SIZE * 65 / 64 + (16 << 20));
        let lock = if self == Self::TableByTable { MmuLock::Exclusive } else { MmuLock::None };
        let builder = Vm::builder(pages(Level::M2)).vcpus(vcpus).mmu_lock(lock).dirty_log(DirtyLog::bitmap());
        let vm: Machine = builder.build().map_err(|error| Error::Machine(error.to_string()))?;
        let slot = slot(0, memory(bytes));
        vm.slots().commit(&mut idle()?, |tx| tx.create(slot))?;
        let told = Reported::nothing(slot.gfns.len());
        with_team(&vm, (&parts(slot.gfns, vcpus), exit), &told, |lead| self.stages(lead, slot))
    }

    fn stages(self, lead: &mut Lead<'_>, slot: Slot) -> Result<Sample, Error> {
        let once = Pass { step: Level::M2.pages(), ..Pass::of_stores(0) };
        let large = slot.gfns.len() / Level::M2.pages();
        lead.pass(once)?;
        set_log(lead.vm, lead.idle(), &slot, true)?;
        lead.pass(Pass::of_stores(1))?;
        let before = lead.vm.stats().leaves == [slot.gfns.len(), 0, 0];
        let disable = timed(|| self.disable(lead, slot))?;
        let again = lead.pass(once)?;
        Ok(Sample { disable, again, right: before && lead.vm.stats().leaves == [0, large, 0] })
    }

    fn disable(self, lead: &mut Lead<'_>, slot: Slot) -> Result<(), Error> {
        let (vm, idle) = (lead.vm, lead.idle());
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
