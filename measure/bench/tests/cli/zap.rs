//! `slat bench zap` and `slat bench invalidate` as their users meet them.

use crate::common::report;
use serde_json::Value;

/// Every row of these names and parameters has both figures.
fn compared(report: &Value, name: &str, params: &[(&str, &str)]) -> usize {
    let rows = report["rows"].as_array().unwrap().iter();
    let rows = rows
        .filter(|row| row["name"] == name && params.iter().all(|(key, value)| row["params"][key] == *value));
    rows.inspect(|row| assert!(row["baseline"].is_number() && row["slat"].is_number(), "{row}")).count()
}

#[test]
fn a_zap_has_its_rows_and_its_checks_hold() {
    let report = report(&["zap", "--sizes", "4M,16M", "-v", "2", "--runs", "1", "--json"]);
    assert_eq!((&report["bench"], &report["params"]["vcpus_beside"]), (&"zap".into(), &2.into()));
    for size in ["4M", "16M"] {
        for pages in ["dense", "sparse"] {
            for (name, baseline) in [
                ("unhook: total", "leaf by leaf"),
                ("zap all: total", "leaf by leaf"),
                ("unhook: collect", "--mmu-lock exclusive"),
                ("leaf by leaf: longest wait of a memslot", "--mmu-lock exclusive"),
            ] {
                let params = [("size", size), ("pages", pages), ("baseline", baseline)];
                assert_eq!(compared(&report, name, &params), 1, "{name}, {params:?}");
            }
        }
    }
    // Leaf tables only: the range has no table above them for itself.
    let freed = report["rows"].as_array().unwrap().iter().filter(|row| row["name"] == "unhook: tables freed");
    assert!(freed.map(|row| row["slat"].as_f64().unwrap()).eq([2.0, 2.0, 8.0, 8.0]));
}

#[test]
fn only_what_was_asked_for_is_mapped() {
    let pages = |flags: &[&str]| {
        let report = report(&[&["zap", "--sizes", "2M", "--runs", "1", "--json"], flags].concat());
        let rows = report["rows"].as_array().unwrap().clone();
        ["dense", "sparse"].map(|pages| rows.iter().any(|row| row["params"]["pages"] == pages))
    };
    assert_eq!(pages(&["--dense"]), [true, false]);
    assert_eq!(pages(&["--sparse"]), [false, true]);
    assert_eq!(pages(&["--dense", "--sparse"]), [true, true]);
}

#[test]
fn faults_beside_invalidations_have_their_rows_and_their_checks_hold() {
    let report = report(&["invalidate", "-b", "8M", "--runs", "1", "--json"]);
    assert_eq!(report["bench"], "invalidate");
    for lock in ["slat --mmu-lock read-write", "slat --mmu-lock exclusive"] {
        for beside in ["elsewhere, mapped", "elsewhere, holes", "same 2M"] {
            assert_eq!(compared(&report, lock, &[("beside", beside)]), 7, "{lock}, {beside}");
        }
        assert_eq!(compared(&report, lock, &[("beside", "none")]), 1);
    }
}

#[test]
fn several_of_both_with_ranges_and_a_host_that_sleeps_have_the_same_rows() {
    for (bytes, pages) in [("16M", "4k"), ("2G", "2m"), ("2G", "1g")] {
        let flags = ["invalidate", "-b", bytes, "-p", pages, "--runs", "1", "--json"];
        let more = ["-v", "2", "--invalidators", "3", "--range", "32K", "--host-sleeps-ns", "100"];
        let report = report(&[&flags[..], &more].concat());
        assert_eq!((&report["params"]["vcpus"], &report["params"]["invalidators"]), (&2.into(), &3.into()));
        for beside in ["elsewhere, mapped", "elsewhere, holes", "same 2M"] {
            assert_eq!(
                compared(&report, "slat --mmu-lock exclusive", &[("beside", beside)]),
                7,
                "{pages}, {beside}"
            );
        }
    }
}
