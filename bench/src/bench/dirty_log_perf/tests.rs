//! Every test of the bench, small; and what its checks say of a VM that forgets to flush.

use super::logging::{Entrant, Way};
use super::stages::{Sample, Stages};
use super::{ABOUT, disable, enable, harvest, split};
use crate::bench::Report;
use crate::bench::machine::Machine;
use slat::{Level, RingSize, Splitting, Track};
use std::time::Duration;

const SIZES: [Level; 2] = [Level::K4, Level::M2];
const TRACKS: [Track; 2] = [Track::Writes, Track::DirtyBits];
const M2: u64 = 2 << 20;
const NO_EXITS: Duration = Duration::ZERO;

fn stages(size: Level) -> Stages {
    Stages { vcpus: 2, bytes_per_vcpu: 2 * M2, slots: 2, percent: 30, iterations: 3, size, exit: NO_EXITS }
}

fn entrants() -> Vec<Entrant> {
    let ways = TRACKS.into_iter().flat_map(|track| [Way::Auto(track), Way::Manual(track)]);
    let ways = ways.chain([ring()]);
    let of = |way| [Splitting::Eager, Splitting::Lazy].map(|splitting| Entrant { way, splitting });
    std::iter::once(Way::Before).chain(ways).flat_map(of).collect()
}

/// The smallest: it is full after 192 stores.
fn ring() -> Way {
    Way::Ring(RingSize::new(4096).unwrap())
}

fn sample(stages: &Stages, entrant: Entrant) -> Sample {
    stages.lap(entrant, entrant.builder(stages.size, stages.vcpus)).unwrap()
}

/// How many checks of a lap do not hold.
fn failed(stages: &Stages, entrant: Entrant, sample: Sample) -> Vec<String> {
    let checks = stages.checks(entrant, &[sample]);
    checks
        .into_iter()
        .filter(|check| !check.ok)
        .map(|check| format!("{}: {}", check.name, check.detail))
        .collect()
}

#[test]
fn every_way_tells_what_was_written() {
    for size in SIZES {
        for entrant in entrants() {
            let sample = sample(&stages(size), entrant);
            assert_eq!(sample.iterations.len(), 3);
            for iteration in &sample.iterations {
                assert!((400..900).contains(&iteration.verdict.written), "30% of 2048 pages: {iteration:?}");
            }
            assert_eq!(sample.rings_full > 0, entrant.way == ring());
            assert_eq!(failed(&stages(size), entrant, sample), [""; 0], "{entrant:?}");
        }
    }
}

#[test]
fn large_pages_make_first_harvests_spurious_where_that_is_allowed() {
    let first = |way, size: Level| {
        let entrant = Entrant { way, splitting: Splitting::Eager };
        sample(&stages(size), entrant).iterations[0].verdict.spurious
    };
    for size in SIZES {
        assert!(first(Way::Manual(Track::Writes), size) > 1000, "all of a fresh log");
        assert_eq!(first(Way::Auto(Track::Writes), size), 0);
    }
}

/// Negative control: pages are tracked again without a flush, so that vCPUs store through stale TLB entries.
#[test]
fn a_flush_that_is_left_out_is_found_out() {
    // A part of a vCPU must fit into its TLB.
    let small = Stages {
        vcpus: 1,
        bytes_per_vcpu: M2,
        slots: 1,
        percent: 100,
        iterations: 2,
        size: Level::K4,
        exit: NO_EXITS,
    };
    for entrant in entrants().into_iter().filter(|entrant| entrant.way != Way::Before) {
        let builder = entrant.builder(small.size, small.vcpus);
        assert_eq!(failed(&small, entrant, small.lap(entrant, builder).unwrap()), [""; 0]);
        let builder = entrant.builder(small.size, small.vcpus).sabotage_rearm();
        let sample = small.lap(entrant, builder).unwrap();
        assert!(sample.iterations[1].verdict.lost > 0, "{entrant:?}");
        assert!(!failed(&small, entrant, sample).is_empty());
    }
}

#[test]
fn every_test_of_the_engine_holds() {
    let report = &mut Report::of(ABOUT.name, Machine::detect());
    let exits = [NO_EXITS, NO_EXITS + Duration::from_nanos(100)];
    enable::measure(report, (64 * M2, 2 * M2), &TRACKS, 2).unwrap();
    harvest::measure(report, 2 * M2, &TRACKS, 1).unwrap();
    split::measure(report, 8 * M2, (2, &exits), &TRACKS, 1).unwrap();
    disable::measure(report, 8 * M2, (2, &[NO_EXITS]), 1).unwrap();
    let rows = report.rows.len();
    assert!(rows >= 2 * 3 + (2 * 2 * 4 + 2) + 2 * 2 * 6 + 6, "{rows}");
    for check in &report.checks {
        assert!(check.ok, "{}: {}", check.name, check.detail);
    }
}
