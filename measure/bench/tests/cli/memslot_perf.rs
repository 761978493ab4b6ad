//! `slat bench memslot-perf` as its users meet it: its output and its exit status.

use serde_json::Value;
use std::process::Output;

fn bench(args: &[&str]) -> Output {
    crate::common::bench(&[&["memslot-perf", "--runs", "1"], args].concat())
}

fn report(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"))
}

#[test]
fn every_test_has_its_rows_and_every_check_holds() {
    let report = report(&bench(&["-s", "10,100", "--seconds", "0", "--json"]));
    assert_eq!(report["bench"], "memslot-perf");
    let rows = report["rows"].as_array().unwrap();
    for test in ["map", "unmap", "unmap-2m", "move-active", "move-inactive", "setup"] {
        for slots in [10, 100] {
            let row = rows.iter().find(|row| row["name"] == test && row["params"]["slots"] == slots);
            let row = row.unwrap_or_else(|| panic!("{test} at {slots} slots"));
            assert!(row["baseline"].as_f64() > Some(0.0) && row["slat"].as_f64() > Some(0.0), "{row}");
            assert!(
                row["series"] == "scalable-memslots" && row["series_ratio"].as_f64() > Some(0.9),
                "{row}"
            );
        }
    }
    for operation in ["look-up", "hva range", "create", "move", "delete"] {
        let of = rows.iter().filter(|row| row["params"]["operation"] == operation);
        assert!(of.filter(|row| row["name"] == "array").count() == 2, "{operation}");
    }
    assert!(rows.iter().any(|row| row["unit"] == "bytes/slot" && row["baseline"].is_null()));
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() > 100 && checks.iter().all(|check| check["ok"] == true));
}

#[test]
fn kvm_is_measured_or_said_to_be_missing() {
    let output = bench(&["-s", "3", "--tests", "hva-range", "--kvm", "--json"]);
    let rows = report(&output)["rows"].as_array().unwrap().iter().filter(|row| row["name"] == "KVM").count();
    let said = String::from_utf8_lossy(&output.stderr).starts_with("skipped: /dev/kvm");
    assert_eq!((rows, said), if said { (0, true) } else { (5, false) });
}
