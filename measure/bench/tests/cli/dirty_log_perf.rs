//! `slat bench dirty-log-perf` as its users meet it: its output and its exit status.

use serde_json::Value;

fn report(args: &[&str]) -> Value {
    crate::common::report(&[&["dirty-log-perf", "--runs", "1", "--json"], args].concat())
}

/// How many rows have these parameters; each has both figures.
fn compared(report: &Value, params: &[(&str, &str)]) -> usize {
    let rows = report["rows"].as_array().unwrap().iter();
    let rows = rows.filter(|row| params.iter().all(|(key, value)| row["params"][key] == *value));
    rows.filter(|row| row["baseline"].is_number() && row["slat"].is_number()).count()
}

#[test]
fn each_stage_of_kvms_test_has_its_row() {
    let args = "--tests log -v 2 -b 4M -x 4 -w 30 -i 2 --exits 0 --ring 4K";
    let report = report(&args.split(' ').collect::<Vec<_>>());
    assert_eq!((&report["bench"], &report["params"]["slots"]), (&"dirty-log-perf".into(), &4.into()));
    for pages in ["4k", "2m"] {
        for slat in ["write protection", "D bits", "manual, write protection", "manual, D bits", "ring"] {
            let params = [("test", "log"), ("pages", pages), ("slat", slat), ("split", "eager")];
            assert_eq!(compared(&report, &params), 8, "{params:?}");
        }
    }
}

#[test]
fn only_what_was_asked_for_is_measured() {
    let args = "--tests log -v 1 -b 2M -g --lazy --pages 2m --track writes -i 1 --exits 100";
    let report = report(&args.split(' ').collect::<Vec<_>>());
    // One iteration has no later ones.
    let params = [("slat", "write protection"), ("split", "lazy"), ("pages", "2m"), ("exit", "100 ns")];
    assert_eq!((compared(&report, &params), report["rows"].as_array().unwrap().len()), (6, 6));
}

#[test]
fn tests_of_the_engine_have_their_rows() {
    let args = "--tests enable,harvest,split,disable -v 2 --sparse 64M --dense 4M --harvested 4M --huge 16M";
    let report = report(&args.split(' ').chain(["--exits", "0"]).collect::<Vec<_>>());
    for (test, rows) in [("enable", 6), ("harvest", 18), ("disable", 6)] {
        assert_eq!(compared(&report, &[("test", test)]), rows, "{test}");
    }
    // A split may be over before the onlooker could look: then there are no latencies.
    for baseline in ["zap and refault", "split by the first store"] {
        assert_eq!(compared(&report, &[("test", "split"), ("baseline", baseline)]), 6);
    }
}
