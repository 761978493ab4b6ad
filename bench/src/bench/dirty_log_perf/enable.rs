//! What it takes to switch a log on: up front, or gradually, where a fresh log says that every page is dirty and pages are
//! tracked as they are cleared.
//!
//! The memory is large and mostly empty, as that of a guest that was given more than it uses: a table for each 2 MiB, with
//! one page in it, and a part in which every page is mapped. What gradual logs leave undone is done by the first clear of
//! everything: it is timed too, whole and by its longest piece.

use super::host::{memory, set_log};
use super::mapped_slot::{MappedSlot, on_first_cpu};
use crate::bench::harness::{Series, rounds};
use crate::bench::report::{Check, Row, params};
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

/// What one lap gives.
#[derive(Clone, Copy, Debug)]
struct Sample {
    enable: Duration,
    /// Of a gradual log: all of it, and the longest piece.
    clear: Duration,
    longest: Duration,
    /// Whether pages and log were afterwards what they should be.
    right: bool,
}

/// Rows and checks for `sparse` bytes, of which the first `dense` have every page mapped.
pub fn measure(
    (sparse, dense): (u64, u64),
    tracks: &[Track],
    runs: usize,
) -> Result<(Vec<Row>, Vec<Check>), Error> {
    let entrants: Vec<Entrant> =
        tracks.iter().flat_map(|&track| [false, true].map(|gradual| Entrant { gradual, track })).collect();
    let samples = on_first_cpu(|idle| {
        let mut mapped = Vec::new();
        for entrant in &entrants {
            let log = DirtyLog::bitmap().track(entrant.track);
            let log = if entrant.gradual { log.initially_set() } else { log };
            mapped.push((*entrant, MappedSlot::new(log, idle, memory(sparse), memory(dense))?));
        }
        rounds(runs, &mapped, |(entrant, ground)| entrant.lap(ground, idle))
    })?;
    let of = |track, gradual| {
        let at = entrants.iter().position(|&entrant| entrant == Entrant { gradual, track });
        at.map(|at| samples[at].as_slice()).unwrap_or_default()
    };
    let memory = size::text(sparse);
    let dense = size::text(dense);
    let params = params! {
        "test": "enable", "memory": memory, "every page mapped in": dense, "baseline": "up front",
    };
    let series = |samples: &[Sample], figure: fn(&Sample) -> Duration| {
        Series::new(samples.iter().map(|sample| figure(sample).as_secs_f64() * 1e6).collect())
    };
    let mut rows = Vec::new();
    for &track in tracks {
        let (up_front, gradual) = (of(track, false), of(track, true));
        let by = super::name_of(track);
        let row = |what: &str, figure| {
            let (before, after) = (series(up_front, |sample| sample.enable), series(gradual, figure));
            Row::compare(&format!("{by}: {what}"), params.clone(), "us", &before, &after)
        };
        rows.push(
            row("enabled gradually", |sample| sample.enable)
                .answering(PatchSeries::Kvm)
                .claiming(Some(kvm::ENABLE[0] / kvm::ENABLE[1])),
        );
        rows.push(row("enabled gradually, and all of it cleared", |sample| sample.enable + sample.clear));
        rows.push(row("the longest clear of 64M", |sample| sample.longest));
    }
    let wrong = samples.iter().flatten().filter(|sample| !sample.right).count();
    let check = Check {
        name: "enable: up front every page is tracked and none dirty; gradually it is the other way round"
            .into(),
        ok: wrong == 0,
        detail: format!("not so in {wrong} laps"),
    };
    Ok((rows, vec![check]))
}

impl Entrant {
    fn lap(self, ground: &MappedSlot, idle: &mut Idle) -> Result<Sample, Error> {
        let pages = ground.slot.gfns.len();
        let mut bits = vec![0; pages.div_ceil(64) as usize];
        ground.write(self.track, |_| true);
        let began = Instant::now();
        set_log(&ground.vm, idle, &ground.slot, true)?;
        let enable = began.elapsed();

        let slots = ground.vm.slots();
        let dirty = slots.dirty_bits(idle, ground.slot.id, &mut bits)?;
        let state = (dirty, ground.untracked(self.track));
        let mut right = state == if self.gradual { (pages, ground.mapped) } else { (0, 0) };
        let (mut clear, mut longest) = (Duration::ZERO, Duration::ZERO);
        if self.gradual {
            let mut cleared = 0;
            for first in (0..pages).step_by(PIECE as usize) {
                let piece = PIECE.min(pages - first);
                let began = Instant::now();
                let bits = &bits[(first / 64) as usize..];
                cleared += slots.clear_dirty(idle, ground.slot.id, first, piece, bits)?;
                let time = began.elapsed();
                (clear, longest) = (clear + time, longest.max(time));
            }
            right &= (cleared, ground.untracked(self.track)) == (pages, 0);
        }
        set_log(&ground.vm, idle, &ground.slot, false)?;
        Ok(Sample { enable, clear, longest, right })
    }
}
