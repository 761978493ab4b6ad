//! Tests of the dirty log beside everything else. Guests store numbered words through their TLBs. A collector
//! copies each page that the log tells into a shadow. At every standstill, the shadow must equal what they
//! wrote, byte for byte.
//!
//! ```text
//!   guests ──▶ TLB ──▶ tables ──▶ memory ──┐             zaps of every reason, migration, forks, merges, swap, aging,
//!     │                   ▲                │ copy         zap all, slot moves, another slot's log ◀── meddler
//!     │   device ─────────┼──▶ memory, mark┤
//!     ▼                   │                ▼
//!   the image          collector ──────▶ shadow          harvested, given back, read and cleared in parts, or drained
//!     └───────────── the same? ────────────┘
//! ```
//! When all stand still and the last harvest is taken, two things are judged. The copy: no byte of the shadow
//! differs from what was stored ([`world`]'s image, which the engine never sees). The pages: each page stored
//! to while the log was on was told. A page without a store was told only where the log's rules allow it, and
//! such pages are counted ([`record`]).
//!
//! | file | contents |
//! |---|---|
//! | [`world`] | the memory, the VM, and the standstills of the threads |
//! | [`storing_threads`] | the threads that store: vCPUs, and a device |
//! | [`meddler`] | changes of the VM while guests run |
//! | [`collector`] | the ways to take from a log, and the shadow |
//! | [`record`] | the pages stored to in each round |
//! | [`steps`] | the same without a race, and its negative controls |
//!
//! Each world is a fixed amount of work. `SLAT_SOAK_SECONDS` adds worlds with other seeds: `cargo xtask soak`.

mod collector;
#[path = "../../../../../slat/tests/engine/common/tally.rs"]
mod counts;
mod meddler;
#[path = "../../../../../slat/tests/engine/common/random.rs"]
mod random;
mod record;
mod steps;
mod storing_threads;
mod world;

use crate::tries::tries;
use collector::Way;
use record::Tally;
use slat::Track;
use slat::baselines::MmuLock;
use slat::table::formats::{Ept4, Ept4NoAd, Npt4};
use std::time::{Duration, Instant};
use world::{Around, Mistake, Setting, Sizes, run};

/// Runs a world with one format.
type Run = fn(Setting) -> Tally;

const FORMATS: [Run; 3] = [run::<Ept4>, run::<Npt4>, run::<Ept4NoAd>];
const LOCKS: [MmuLock; 3] = [MmuLock::None, MmuLock::ReadWrite, MmuLock::Exclusive];

/// Every way to take, with each hardware feature that it can use. A ring must be told of the store itself.
fn ways() -> impl Iterator<Item = (Way, Track)> {
    let tracks = [Track::Writes, Track::DirtyBits];
    let all = Way::ALL.into_iter().flat_map(move |way| tracks.map(|track| (way, track)));
    all.filter(|&(way, track)| way != Way::Ring || track == Track::Writes)
}

/// Every combination of a way to take, a hardware feature, page sizes and the log's initial state. Formats and
/// locks change in turn, so that each of them meets each of the others.
fn settings(first_seed: u64) -> impl Iterator<Item = (Run, Setting)> {
    let mut all = Vec::new();
    for (way, track) in ways() {
        for sizes in [Sizes::Small, Sizes::Eager, Sizes::Lazy] {
            for initially_set in [false, true] {
                all.push((way, track, sizes, initially_set));
            }
        }
    }
    (0..).zip(all).map(move |(number, (way, track, sizes, initially_set))| {
        let seed = first_seed + number as u64;
        let round = number + number / 3 + first_seed as usize;
        let setting = Setting {
            sizes,
            initially_set,
            lock: LOCKS[round / 3 % 3],
            nx_huge_pages: seed.is_multiple_of(2),
            contexts: !seed.is_multiple_of(5),
            ..Setting::plain(way, track, seed)
        };
        (FORMATS[round % 3], setting)
    })
}

/// The settings are split into two tests, which run in parallel.
#[test]
fn the_shadow_is_what_was_written() {
    half_is_right(0);
}

#[test]
fn the_shadow_is_what_was_written_in_the_other_settings() {
    half_is_right(1);
}

fn half_is_right(half: usize) {
    let seconds = std::env::var("SLAT_SOAK_SECONDS").ok().map(|seconds| seconds.parse().expect("seconds"));
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let mut sum = Tally::default();
    for first_seed in (1..).step_by(1000) {
        let of_half = |number: &usize| number / 2 % 2 == half;
        for (_, (run, setting)) in (0..).zip(settings(first_seed)).filter(|(number, _)| of_half(number)) {
            let tally = run(setting);
            println!("{setting:?}: {tally}");
            sum += tally;
        }
        if end.is_none_or(|end| Instant::now() >= end) {
            break;
        }
    }
    println!("in all: {sum}");
    for (number, what) in sum.must_have_happened() {
        assert!(number > 0, "no {what}: the test misses a case");
    }
}

/// Only guests and a collector run, on a few pages. Again and again, a fault gives a permission while the marks
/// are taken.
#[test]
fn a_fault_meets_a_harvest_at_every_point() {
    for seed in 11..11 + tries(1) {
        for (way, track) in ways() {
            for around in [Around::Nothing, Around::Zaps] {
                let setting = Setting { around, ..Setting::plain(way, track, seed) };
                println!("{setting:?}: {}", run::<Ept4>(setting));
            }
        }
    }
}

/// Plain worlds: a harvest, beside everything.
#[test]
fn a_harvest_beside_everything_misses_no_store() {
    for seed in 1..=tries(1) {
        for track in [Track::Writes, Track::DirtyBits] {
            let setting = Setting::plain(Way::Harvest, track, seed);
            println!("{setting:?}: {}", run::<Npt4>(setting));
        }
    }
}

/// Runs worlds with a mistake until one finds it.
fn is_found(mistake: Mistake, way: Way, track: Track) -> bool {
    (1..=20).any(|seed| {
        let setting = Setting { mistake, ..Setting::plain(way, track, seed) };
        run::<Npt4>(setting).wrong > 0
    })
}

#[test]
fn negative_control_without_the_flush_after_arming_stores_are_lost() {
    for way in Way::ALL {
        assert!(is_found(Mistake::NoFlush, way, Track::Writes), "{way:?}");
    }
    assert!(is_found(Mistake::NoFlush, Way::Harvest, Track::DirtyBits));
    assert!(is_found(Mistake::NoFlush, Way::Manual, Track::DirtyBits));
}

#[test]
fn negative_control_a_harvest_that_is_committed_but_not_copied_is_found_out() {
    for way in [Way::Harvest, Way::HarvestAll, Way::Ring] {
        assert!(is_found(Mistake::CommitsTooEarly, way, Track::Writes), "{way:?}");
    }
}

#[test]
fn negative_control_a_device_that_does_not_mark_is_found_out() {
    assert!(is_found(Mistake::SilentDevice, Way::Harvest, Track::Writes));
}

#[test]
fn negative_control_pages_copied_before_they_are_cleared_are_found_out() {
    assert!(is_found(Mistake::CopiesFirst, Way::Manual, Track::Writes));
}
