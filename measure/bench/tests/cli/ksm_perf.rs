//! `slat bench ksm-perf` as its users meet it: what it prints, how it ends, what it says of bad input.

use serde_json::Value;
use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_slat-bench")).args(["bench", "ksm-perf"]).args(args).output().unwrap()
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

#[test]
fn bad_input_is_one_line_and_exit_status_2() {
    for (bytes, text) in [("1M", "1M"), ("65537", "65537"), ("2G", "2G")] {
        let output = bench(&["-b", bytes]);
        assert_eq!(output.status.code(), Some(2));
        let says = format!("slat: --bytes: {text} is not a multiple of 2M up to 1G\n");
        assert_eq!(String::from_utf8_lossy(&output.stderr), says);
        assert!(output.stdout.is_empty());
    }
    for (bytes, text) in [("4K", "4K"), ("9M", "9M"), ("12345", "12345")] {
        let output = bench(&["--mergeable", bytes]);
        let says = format!("slat: --mergeable: {text} is not a multiple of 4K from 8K to 8M\n");
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr)), (Some(2), says.into()));
    }
    assert_eq!(bench(&["--vms", "2"]).status.code(), Some(2), "the test has three kinds of contents");
}
