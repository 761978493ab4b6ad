//! What holds in both worlds.

use super::*;

/// Names of the checks that fail.
fn failed(point: &Point) -> Vec<String> {
    point
        .checks
        .iter()
        .filter(|check| !check.ok)
        .map(|check| format!("{}: {}", check.name, check.detail))
        .collect()
}

#[test]
fn every_bench_finds_what_it_should_with_one_vcpu_and_with_two() {
    for bench in ALL {
        for vcpus in [1, 2] {
            for &policy in bench.policies() {
                let setting = Setting {
                    costs: &Costs::SERVER,
                    vcpus,
                    policy,
                    quick: true,
                    seed: 1,
                    work: Work::default(),
                };
                let point = bench.run(&setting).unwrap();
                assert_eq!(failed(&point), [""; 0], "{} {vcpus} {}", bench.name(), policy.name());
                assert!(point.checks.len() > 1 && point.operations > 0);
                assert!(point.figures[0].value > 0.0, "{} {vcpus} {}", bench.name(), policy.name());
            }
        }
    }
}

#[test]
fn a_bench_is_found_by_its_name_and_names_are_not_shared() {
    for bench in ALL {
        assert_eq!(by_name(bench.name()).map(Bench::seed), Some(bench.seed()));
        let mut names: Vec<_> = bench.policies().iter().map(|policy| policy.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), bench.policies().len());
    }
    assert!(by_name("demand").is_none());
}
