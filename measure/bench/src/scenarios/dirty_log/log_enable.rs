//! The time to switch a log on: up front, or gradually, where a fresh log says that every page is dirty and pages are
//! tracked as they are cleared.
//!
//! The memory is large and mostly empty, as that of a guest that was given more than it uses: a table for each 2 MiB, with
//! one page in it, and a part in which every page is mapped. The work that gradual logs leave undone is done by the first clear of
//! everything: it is timed too, whole and by its longest piece.

use super::logged_slot::LoggedSlot;
use super::logged_vm::set_log;
use super::{DirtyLogPerf, name_of, timed};
use crate::scenarios::threads_prelude::*;
use slat_series::kvm;

/// The size of one clear request of a VMM: 64 MiB.
const PIECE: u64 = (64 << 20) / Level::K4.bytes();

/// The result of one lap.
#[derive(Clone, Copy, Debug)]
struct Sample {
    enable: Duration,
    /// Of a gradual log: all of it, and the longest piece.
    clear: Duration,
    longest: Duration,
    /// Whether pages and log were afterwards what they should be.
    right: bool,
}

/// Each beside the enabling of all of it up front.
const FIGURES: [Figure<Sample>; 3] = [
    ("enabled gradually", "us", |sample| Some(us(sample.enable))),
    ("enabled gradually, and all of it cleared", "us", |sample| Some(us(sample.enable + sample.clear))),
    ("the longest clear of 64M", "us", |sample| Some(us(sample.longest))),
];

impl DirtyLogPerf {
    /// Measures memory that is sparse but for its first part.
    pub(super) fn enable(&self, report: &mut Report, idle: &mut Idle, runs: u32) -> Result<(), Error> {
        let mut slots = Vec::new();
        for &track in &self.track {
            let log = DirtyLog::bitmap().track(track);
            for (gradual, log) in [(false, log), (true, log.initially_set())] {
                let slot = LoggedSlot::new(log, track, idle, [self.sparse, self.dense])?;
                slots.push((track, gradual, slot));
            }
        }
        let laps = Lineup::run(runs, slots, |(_, gradual, slot)| lap(slot, *gradual, idle))?;
        let params = params! {
            "test": "enable", "memory": size::text(self.sparse), "every page mapped in": size::text(self.dense),
            "baseline": "up front",
        };
        for &track in &self.track {
            let both = [false, true].map(|gradual| laps.find(|slot| (slot.0, slot.1) == (track, gradual)));
            for row in Row::compare_each(&FIGURES, &params, both) {
                let first = row.name == FIGURES[0].0;
                let claim = first.then_some(kvm::ENABLE[0] / kvm::ENABLE[1]);
                let row = row.of(name_of(track)).answering(first.then_some(PatchSeries::Kvm));
                report.rows.push(row.claiming(claim));
            }
        }
        report.checks.push(Check::each(
            "enable: up front every page is tracked and none dirty; gradually it is the other way round",
            laps.all(),
            |sample| sample.right,
        ));
        Ok(())
    }
}

fn lap(slot: &LoggedSlot, gradual: bool, idle: &mut Idle) -> Result<Sample, Error> {
    let (vm, slots, of) = (&slot.mapped.vm, slot.mapped.vm.memory(), &slot.mapped.slot);
    let pages = of.gfns.len();
    let mut bits = vec![0; pages.div_ceil(64) as usize];
    slot.write(|_| true);
    let (enable, ()) = timed(|| set_log(vm, idle, of, true))?;

    let state = (slots.dirty_bits(idle, of.id, &mut bits)?, slot.untracked());
    let mut right = state == if gradual { (pages, slot.mapped.pages) } else { (0, 0) };
    let (mut clear, mut longest) = (Duration::ZERO, if gradual { Duration::ZERO } else { enable });
    if gradual {
        let mut cleared = 0;
        for first in (0..pages).step_by(PIECE as usize) {
            let (piece, bits) = (PIECE.min(pages - first), &bits[(first / 64) as usize..]);
            let (time, count) = timed(|| slots.clear_dirty(idle, of.id, first, piece, bits))?;
            cleared += count;
            (clear, longest) = (clear + time, longest.max(time));
        }
        right &= (cleared, slot.untracked()) == (pages, 0);
    }
    set_log(vm, idle, of, false)?;
    Ok(Sample { enable, clear, longest, right })
}
