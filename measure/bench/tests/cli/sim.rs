//! `slat sim` and `slat calibrate` as their users meet them: the same bytes twice, what a report carries, and what is said of
//! bad input.

use crate::common::{refused, slat};
use serde_json::Value;
use std::path::PathBuf;

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The output of a run that must succeed, and say nothing on standard error.
fn printed(args: &[&str]) -> String {
    let output = slat(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "{args:?}: a bar is for terminals");
    text(&output.stdout).to_owned()
}

fn report(args: &[&str]) -> Value {
    serde_json::from_str(&printed(args)).unwrap()
}

/// A place for a file of this test's.
fn place(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[test]
fn two_runs_are_the_same_to_the_byte() {
    let run = ["sim", "demand-paging", "-v", "1,4,16", "--quick", "--json"];
    assert_eq!(printed(&run), printed(&run));
    let other = ["sim", "demand-paging", "-v", "1,4,16", "--quick", "--json", "--guest-ns", "101"];
    assert_ne!(printed(&run), printed(&other), "or it would always be the same");
}

#[test]
fn a_report_carries_what_its_figures_hang_on() {
    let run = ["sim", "demand-paging", "-v", "16,1,16", "--quick"];
    let report = report(&[&run[..], &["--json"]].concat());
    assert_eq!((&report["clock"], &report["sim"]), (&"virtual".into(), &"demand-paging".into()));
    let rows = report["rows"].as_array().unwrap();
    let shape = |row: &Value| (row["vcpus"].as_u64().unwrap(), row["policy"].as_str().unwrap().to_owned());
    let policies = ["exclusive", "read-write", "none"];
    let expected: Vec<_> =
        [1, 16].iter().flat_map(|&vcpus| policies.map(|policy| (vcpus, policy.to_owned()))).collect();
    assert_eq!(rows.iter().map(shape).collect::<Vec<_>>(), expected);
    assert!(rows.iter().all(|row| row["figures"][0]["value"].as_f64().unwrap() > 0.0));
    let sweep = report["sweep"].as_array().unwrap();
    assert_eq!(sweep.len(), 6);
    for swept in sweep {
        assert!(swept["rows"].as_array().unwrap().iter().all(|row| row["vcpus"] == 16));
        assert!(swept["factor"] != 1.0 || swept["ranking_holds"] == true);
    }
    let costs = report["costs_from"].as_object().unwrap();
    assert!(costs.len() >= 19 && costs.values().all(|from| from == "assumed"));
    assert!(report["checks"].as_array().unwrap().iter().all(|check| check["ok"] == true));
    assert_eq!(report["against_series"], Value::Array(vec![]), "the series speaks of 416 vCPUs");

    let said = printed(&run);
    assert!(said.lines().next().unwrap().contains("simulated"), "{said}");
    for part in
        ["ns per fault", "waiting for locks", "near+far x 2", "costs of operations", "assumed", "hold"]
    {
        assert!(said.contains(part), "{part} in:\n{said}");
    }
}

#[test]
fn policies_can_be_picked_and_the_sweep_left_out() {
    let run = ["sim", "demand-paging", "-v", "2", "--policy", "none", "--quick", "--no-sweep", "--json"];
    let report = report(&run);
    assert_eq!(report["rows"].as_array().unwrap().len(), 1);
    assert_eq!(report["sweep"], Value::Array(vec![]));
}

#[test]
fn what_is_measured_can_be_simulated_with() {
    let file = place("sim-measured.costs");
    // A longer file that was there before leaves nothing behind.
    std::fs::write(&file, "x".repeat(1 << 14)).unwrap();
    assert_eq!(printed(&["calibrate", "--quick", "-o", file.to_str().unwrap()]), "");
    let costs = ["--costs", file.to_str().unwrap()];
    let report = report(&[&["sim", "demand-paging", "-v", "1", "--quick", "--json"][..], &costs].concat());
    for (cost, from) in [("rmw", "measured"), ("step", "measured"), ("far", "assumed"), ("kick", "assumed")] {
        assert_eq!(report["costs_from"][cost], from, "{cost}");
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let rmw = text.lines().find_map(|line| line.strip_prefix("rmw = { value = ")).unwrap();
    let rmw: f64 = rmw.split(',').next().unwrap().parse().unwrap();
    assert_eq!(report["costs"]["rmw"], rmw);
    std::fs::remove_file(file).unwrap();
}

#[test]
fn bad_flags_are_refused() {
    for (flags, says) in [
        (&["-v", "0"][..], "0 is not in 1..=1024"),
        (&["-v", "1,1025"], "1025 is not in 1..=1024"),
        (&["-v", "99999999999999999999"], "'--vcpus <N,…>'"),
        (&["-v", "-4"], "-4"),
        (&["-v", "many"], "invalid digit"),
        (&["-v", ""], "'--vcpus <N,…>'"),
        (&["--policy", "fast"], "--policy fast: demand-paging has exclusive, read-write, none"),
        (&["--guest-ns", "1000000001"], "a whole number up to 1000000000"),
        (&["--mm-lines", "1001"], "1001 is not in 0..=1000"),
    ] {
        refused(&[&["sim", "demand-paging", "--quick"], flags].concat(), &[says]);
    }
    refused(&["sim", "nothing"], &["unrecognized subcommand"]);
    refused(&["sim", "validate", "--bench", "nothing"], &["--bench nothing: there are "]);
    refused(&["sim", "validate", "--runs", "0"], &["0 is not in 3..=1000"]);
}

#[test]
fn broken_cost_files_are_refused_with_their_line() {
    let good = printed(&["calibrate", "--quick"]);
    let file = place("sim-broken.costs");
    let path = file.to_str().unwrap();
    let lines = good.lines().count();
    for (bytes, says) in [
        (format!("neat = 3\n{good}").into_bytes(), "line 1: `neat` is no cost".to_owned()),
        (good.replace("near = { value = ", "near = { value = -").into_bytes(), "line 8: near: -".to_owned()),
        // As such files were before there was a source.
        (
            b"load = 0.5 # measured: a load\n".to_vec(),
            "line 1: `load` has no source: a cost is `load = {".to_owned(),
        ),
        (
            good.replace("near = ", "# near = ").into_bytes(),
            format!("line {lines}: the file ends without `near`"),
        ),
        (good.replace("load = { value = ", "load = { value = nan").into_bytes(), "line 2: ".to_owned()),
        (vec![], "line 1: the file ends without `load`".to_owned()),
        (vec![b'\n'; 1 << 20], "line 65537: a cost file ends before its byte 65536".to_owned()),
        (vec![0xff; 100], "stream did not contain valid UTF-8".to_owned()),
    ] {
        std::fs::write(&file, bytes).unwrap();
        refused(&["sim", "demand-paging", "--costs", path], &[&format!("slat: --costs {path}: {says}")]);
    }
    std::fs::remove_file(&file).unwrap();
    refused(&["sim", "demand-paging", "--costs", path], &[&format!("slat: --costs {path}: No such file")]);
    refused(&["sim", "demand-paging", "--costs", "/"], &["slat: --costs /: "]);
    refused(&["sim", "demand-paging", "--costs", "/dev/zero"], &["slat: --costs /dev/zero: line 1: "]);
}

#[test]
fn a_place_that_cannot_be_written_is_refused() {
    refused(&["calibrate", "-o", "/nowhere/costs"], &["slat: --output /nowhere/costs: No such file"]);
    refused(&["calibrate", "-o", "/"], &["slat: --output /: "]);
}
