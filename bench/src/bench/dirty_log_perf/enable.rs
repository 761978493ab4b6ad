//! What it takes to switch a log on: up front, or gradually, where a fresh log says that every page is dirty and pages are
//! tracked as they are cleared.
//!
//! The memory is large and mostly empty, as that of a guest that was given more than it uses: a table for each 2 MiB, with
//! one page in it, and a part in which every page is mapped. What gradual logs leave undone is done by the first clear of
//! everything: it is timed too, whole and by its longest piece.

use super::logged_vm::{memory, set_log};
use super::mapped_slot::{MappedSlot, on_first_cpu};
use crate::bench::harness::{Lineup, us};
use crate::bench::report::{Check, Figure, Report, Row, params};
use slat::{DirtyLog, Idle, Level, Track};
use slat_cli::error::Error;
use slat_cli::size;
use slat_series::{PatchSeries, kvm};
use std::time::{Duration, Instant};

/// How the log begins, and how it tracks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entrant {
    gradual: bool,
    track: Track,
}

/// What a VMM clears at a time: 64 MiB.
const PIECE: u64 = (64 << 20) / Level::K4.bytes();

/// The result of one lap.
#[derive(Clone, Copy, Debug)]
struct Sample {
    gradual: bool,
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
    ("the longest clear of 64M", "us", |sample| {
        Some(us(if sample.gradual { sample.longest } else { sample.enable }))
    }),
];

/// Measures `sparse` bytes, of which the first `dense` have every page mapped.
pub fn measure(
    report: &mut Report,
    (sparse, dense): (u64, u64),
    tracks: &[Track],
    runs: u32,
) -> Result<(), Error> {
    let entrants = tracks.iter().flat_map(|&track| [false, true].map(|gradual| Entrant { gradual, track }));
    let laps = on_first_cpu(|idle| {
        let mut slots = Vec::new();
        for entrant in entrants.clone() {
            let log = DirtyLog::bitmap().track(entrant.track);
            let log = if entrant.gradual { log.initially_set() } else { log };
            slots.push((entrant, MappedSlot::new(log, idle, memory(sparse), memory(dense))?));
        }
        let mapped = |entrant: &Entrant| slots.iter().find(|(other, _)| other == entrant);
        Lineup::run(runs, entrants, |entrant| {
            entrant.lap(&mapped(entrant).expect("a slot for each entrant").1, idle)
        })
    })?;
    let params = params! {
        "test": "enable", "memory": size::text(sparse), "every page mapped in": size::text(dense), "baseline": "up front",
    };
    for &track in tracks {
        let both = [false, true].map(|gradual| laps.of(Entrant { gradual, track }));
        for row in Row::compare_each(&FIGURES, &params, both) {
            let first = row.name == FIGURES[0].0;
            let claim = first.then_some(kvm::ENABLE[0] / kvm::ENABLE[1]);
            let row = row.of(super::name_of(track)).answering(first.then_some(PatchSeries::Kvm));
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

impl Entrant {
    fn lap(self, mapped: &MappedSlot, idle: &mut Idle) -> Result<Sample, Error> {
        let pages = mapped.slot.gfns.len();
        let mut bits = vec![0; pages.div_ceil(64) as usize];
        mapped.write(self.track, |_| true);
        let began = Instant::now();
        set_log(&mapped.vm, idle, &mapped.slot, true)?;
        let enable = began.elapsed();

        let slots = mapped.vm.slots();
        let dirty = slots.dirty_bits(idle, mapped.slot.id, &mut bits)?;
        let state = (dirty, mapped.untracked(self.track));
        let mut right = state == if self.gradual { (pages, mapped.pages) } else { (0, 0) };
        let (mut clear, mut longest) = (Duration::ZERO, Duration::ZERO);
        if self.gradual {
            let mut cleared = 0;
            for first in (0..pages).step_by(PIECE as usize) {
                let piece = PIECE.min(pages - first);
                let began = Instant::now();
                let bits = &bits[(first / 64) as usize..];
                cleared += slots.clear_dirty(idle, mapped.slot.id, first, piece, bits)?;
                let time = began.elapsed();
                (clear, longest) = (clear + time, longest.max(time));
            }
            right &= (cleared, mapped.untracked(self.track)) == (pages, 0);
        }
        set_log(&mapped.vm, idle, &mapped.slot, false)?;
        Ok(Sample { gradual: self.gradual, enable, clear, longest, right })
    }
}
