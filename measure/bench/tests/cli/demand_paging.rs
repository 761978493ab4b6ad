//! `slat bench demand-paging` as its users meet it: its output and its exit status.

use serde_json::Value;
use std::process::Output;

fn bench(args: &[&str]) -> Output {
    crate::common::bench(&[&["demand-paging"], args].concat())
}

#[test]
fn every_mode_has_its_rows_and_every_check_holds() {
    for mode in [
        &["-u", "none"][..],
        &["--overlap"],
        &["--prefilled"],
        &["-u", "missing", "--single"],
        &["-u", "minor", "--overlap"],
    ] {
        let output = bench(&[&["-v", "3", "-b", "256K", "--runs", "1", "--json"], mode].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{mode:?}: {stderr}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&report["bench"], &report["params"]["vcpus"]), (&"demand-paging".into(), &3.into()));
        let rows = report["rows"].as_array().unwrap();
        for unit in ["ms", "k faults/s", "% of fault time", "ns"] {
            let of = rows.iter().filter(|row| row["unit"] == unit && row["series"] == "tdp-mmu");
            assert_eq!(of.count(), if unit == "ns" { 12 } else { 2 }, "{mode:?}: {unit}");
        }
        assert!(rows.iter().all(|row| row["baseline"].is_f64() && row["series_ratio"].is_null()));
        let checks = report["checks"].as_array().unwrap();
        assert_eq!(checks.len(), 16);
        assert!(checks.iter().all(|check| check["ok"] == true), "{checks:?}");
    }
}
