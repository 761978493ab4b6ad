//! Tests of all scenarios, in virtual time and on threads.

use crate::scenarios::prelude::*;
use crate::scenarios::{ALL, by_name, demand_paging};
use std::collections::BTreeSet;

/// The checks that fail, with what was found.
fn failed(point: &Point) -> Vec<String> {
    point
        .checks
        .iter()
        .filter(|check| !check.ok)
        .map(|check| format!("{}: {}", check.name, check.detail))
        .collect()
}

/// Every other bench from `first` on, with one vCPU and with two.
fn find_what_they_should(first: usize) {
    for bench in ALL.iter().filter(|bench| bench.is_simulated()).skip(first).step_by(2) {
        for (number, &column) in bench.simulated.columns.iter().enumerate() {
            // One vCPU meets no other: of the columns one shows what there is to show.
            for vcpus in if number == 0 { 1..=2 } else { 2..=2 } {
                let setting = Setting { vcpus, ..setting(column) };
                let point = (bench.simulated.run)(&setting).unwrap();
                assert_eq!(failed(&point), [""; 0], "{} {vcpus} {}", bench.name, column.name);
                assert!(point.checks.len() > 1 && point.operations > 0);
                assert!(point.figures[0].value > 0.0, "{} {vcpus} {}", bench.name, column.name);
                let names: BTreeSet<_> = point.figures.iter().map(|figure| figure.name).collect();
                assert_eq!(names.len(), point.figures.len(), "{}: a name for each figure", bench.name);
            }
        }
    }
}

// Two tests, so that they run side by side.
#[test]
fn benches_at_even_places_find_what_they_should() {
    find_what_they_should(0);
}

#[test]
fn benches_at_odd_places_find_what_they_should() {
    find_what_they_should(1);
}

#[test]
fn every_kind_of_work_is_done_in_both_worlds() {
    let short = Work { guest_ns: 0, exit_ns: 10, host_ns: 10, handler_ns: 10, ..Work::default() };
    for work in [
        Work { handlers: true, ..short.clone() },
        Work { handlers: true, host_first: false, ..short.clone() },
        Work { under_lock_ns: 10, mm_lines: 2, host_first: false, ..short.clone() },
    ] {
        for &column in demand_paging::SCENARIO.simulated.columns {
            let setting = Setting { work: work.clone(), ..setting(column) };
            let point = (demand_paging::SCENARIO.simulated.run)(&setting).unwrap();
            assert_eq!(failed(&point), [""; 0], "{} {work:?}", column.name);
        }
    }
}

#[test]
fn a_bench_is_found_by_its_name_and_names_are_not_shared() {
    for bench in ALL {
        assert_eq!(by_name(bench.name).map(|found| found.series), Some(bench.series));
        let mut names: Vec<_> = bench.simulated.columns.iter().map(|column| column.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), bench.simulated.columns.len());
    }
    assert!(by_name("demand").is_none());
}
