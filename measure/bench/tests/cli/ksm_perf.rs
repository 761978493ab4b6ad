//! `slat bench ksm-perf` as its users meet it: its output and its exit status.

use serde_json::Value;
use std::process::Output;

fn bench(args: &[&str]) -> Output {
    crate::common::bench(&[&["ksm-perf"], args].concat())
}

#[test]
fn the_rows_are_there_and_the_counts_are_the_tests() {
    let output = bench(&["--vms", "3", "-b", "2M", "--mergeable", "256K", "--runs", "1", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["bench"], &report["params"]["vms"]), (&"ksm-perf".into(), &3.into()));
    let rows = report["rows"].as_array().unwrap();
    assert!(
        rows.iter()
            .all(|row| row["series"] == "change-pte" && row["baseline"].is_f64() && row["slat"].is_f64())
    );
    let figure = |name: &str, figure: &str| {
        let mut rows = rows.iter().filter(|row| row["name"] == name && row["params"]["figure"] == figure);
        rows.next().unwrap_or_else(|| panic!("{figure}"))
    };
    let mean = figure("mean", "time in MMU code");
    assert!((mean["series_ratio"].as_f64().unwrap() - 1.0748).abs() < 1e-4);
    figure("standard deviation", "time in MMU code");
    let all = "median, best and worst";
    figure(all, "rate (ratio: slat / baseline)");
    assert_eq!(figure(all, "faults for want of a translation inside changes of the entry")["slat"], 0.0);
    // Four stages of 3 × 64 pages, all but one merged, and 8 of each VM's once more in each.
    assert!(figure(all, "pages merged")["slat"].as_f64().unwrap() >= f64::from(4 * 3 * (64 + 8) - 1));
    let checks = report["checks"].as_array().unwrap();
    assert_eq!(checks.len(), 16 * 6 + 7 + 3 + 1, "and none of a time");
    assert!(checks.iter().all(|check| check["ok"] == true), "{checks:?}");
}
