//! Every test of the bench, small; and what its checks say of a VM that forgets to flush.

use super::log_stages::{Sample, Setting};
use super::logged_vm::Pages;
use super::{DirtyLogPerf, SCENARIO, Test, logged_vm};
use crate::scenarios::dirty_log::logged_vm::{Entrant, Way};
use crate::scenarios::threads_prelude::*;
use clap::{Args, Command, FromArgMatches};

const SETTINGS: [Setting; 2] = [(Level::K4, Duration::ZERO), (Level::M2, Duration::ZERO)];
const TRACKS: [Track; 2] = [Track::Writes, Track::DirtyBits];

/// The bench with these flags.
fn typed(flags: &str) -> DirtyLogPerf {
    let command = DirtyLogPerf::augment_args(Command::new(SCENARIO.name).no_binary_name(true));
    DirtyLogPerf::from_arg_matches(&command.get_matches_from(flags.split(' '))).unwrap()
}

fn stages() -> DirtyLogPerf {
    typed("-v 2 -b 4M -s 2 -w 30 -i 3")
}

fn entrants() -> Vec<Entrant> {
    let ways = TRACKS.into_iter().flat_map(|track| [Way::Auto(track), Way::Manual(track)]);
    let ways = ways.chain([ring()]);
    let of = |way| [Splitting::Eager, Splitting::Lazy].map(|splitting| Entrant::new(way, splitting));
    std::iter::once(Way::Before).chain(ways).flat_map(of).collect()
}

/// The smallest: it is full after 192 stores.
fn ring() -> Way {
    Way::Ring(RingSize::new(4096).unwrap())
}

fn sample(bench: &DirtyLogPerf, setting: Setting, entrant: Entrant) -> Sample {
    bench.lap(setting, entrant, entrant.builder(setting.0, bench.vcpus())).unwrap()
}

/// How many checks of a lap do not hold.
fn failed(bench: &DirtyLogPerf, setting: Setting, entrant: Entrant, sample: Sample) -> Vec<String> {
    let checks = bench.checks(setting, entrant, &[sample]);
    checks
        .into_iter()
        .filter(|check| !check.ok)
        .map(|check| format!("{}: {}", check.name, check.detail))
        .collect()
}

#[test]
fn every_way_tells_what_was_written() {
    let stages = stages();
    for setting in SETTINGS {
        for entrant in entrants() {
            let sample = sample(&stages, setting, entrant);
            assert_eq!(sample.iterations.len(), 3);
            for iteration in &sample.iterations {
                assert!((400..900).contains(&iteration.verdict.written), "30% of 2048 pages: {iteration:?}");
            }
            assert_eq!(sample.rings_full.is_some_and(|times| times > 0), entrant.way == ring());
            assert_eq!(failed(&stages, setting, entrant, sample), [""; 0], "{entrant:?}");
        }
    }
}

#[test]
fn large_pages_make_first_harvests_spurious_where_that_is_allowed() {
    let first = |way, setting| {
        let entrant = Entrant::new(way, Splitting::Eager);
        sample(&stages(), setting, entrant).iterations[0].verdict.spurious
    };
    for setting in SETTINGS {
        assert!(first(Way::Manual(Track::Writes), setting) > 1000, "all of a fresh log");
        assert_eq!(first(Way::Auto(Track::Writes), setting), 0);
    }
}

/// Negative control: pages are tracked again without a flush, so that vCPUs store through stale TLB entries.
#[test]
fn a_flush_that_is_left_out_is_found_out() {
    // A part of a vCPU must fit into its TLB.
    let (small, setting) = (typed("-v 1 -b 2M -s 1 -w 100 -i 2"), SETTINGS[0]);
    for entrant in entrants().into_iter().filter(|entrant| entrant.way != Way::Before) {
        assert_eq!(failed(&small, setting, entrant, sample(&small, setting, entrant)), [""; 0]);
        let silent = Pages { is_silent: true, ..logged_vm::host(setting.0) };
        let builder = entrant.builder_on(silent, small.vcpus());
        let sample = small.lap(setting, entrant, builder).unwrap();
        assert!(sample.iterations[1].verdict.lost > 0, "{entrant:?}");
        assert!(!failed(&small, setting, entrant, sample).is_empty());
    }
}

#[test]
fn every_test_of_the_engine_holds() {
    let report = &mut Report::of(SCENARIO.name, Machine::detect());
    let bench = typed("-v 2 --sparse 64M --dense 2M --harvested 2M --huge 8M --exits 0,100");
    for test in Test::value_variants().iter().filter(|&&test| test != Test::Log) {
        bench.measure(*test, report, 1).unwrap();
    }
    let rows = report.rows.len();
    assert!(rows >= 2 * 3 + (2 * 2 * 4 + 2) + 2 * 2 * 6 + 2 * 6, "{rows}");
    for check in &report.checks {
        assert!(check.ok, "{}: {}", check.name, check.detail);
    }
}
