//! Helpers: a run, its report, the rows of a report, and bad input.

use serde_json::Value;
use std::process::{Command, Output};

pub fn slat(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_slat-bench")).args(args).output().unwrap()
}

pub fn bench(args: &[&str]) -> Output {
    slat(&[&["bench"], args].concat())
}

/// Bad input: exit status 2, nothing on standard output, and a line of ours, or clap's text, that says each of these.
pub fn refused(args: &[&str], says: &[&str]) {
    let output = slat(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert!(says.iter().all(|says| error.contains(says)), "{args:?}: {says:?} in: {error}");
    assert!(error.lines().count() == 1 || error.starts_with("error: "), "{args:?}: {error}");
    assert!(output.stdout.is_empty(), "{args:?}");
}

/// The JSON of one round: it must succeed, and every check must hold.
pub fn report(line: &str) -> Value {
    let output = bench(&line.split(' ').chain(["--runs", "1", "--json"]).collect::<Vec<_>>());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {stderr}{}", String::from_utf8_lossy(&output.stdout));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = checks(&report);
    assert!(!checks.is_empty() && checks.iter().all(|check| check["ok"] == true), "{checks:?}");
    assert_eq!(report["bench"], line.split(' ').next().unwrap());
    report
}

pub fn checks(report: &Value) -> &[Value] {
    report["checks"].as_array().unwrap()
}

/// The rows with this name, unit, series and parameters: `name=array;slots=10`.
pub fn rows<'r>(report: &'r Value, wanted: &str) -> Vec<&'r Value> {
    let is = |row: &&Value| {
        wanted.split(';').filter_map(|one| one.split_once('=')).all(|(key, value)| {
            let has = if ["name", "unit", "series"].contains(&key) { &row[key] } else { &row["params"][key] };
            has == value || has.as_u64().is_some_and(|has| has.to_string() == value)
        })
    };
    report["rows"].as_array().unwrap().iter().filter(is).collect()
}

/// The number of these rows that have both figures.
pub fn compared(report: &Value, wanted: &str) -> usize {
    let has_both = |row: &&&Value| row["baseline"].is_number() && row["slat"].is_number();
    rows(report, wanted).iter().filter(has_both).count()
}
