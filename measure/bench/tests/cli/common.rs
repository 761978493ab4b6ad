//! Helpers for tests of `slat bench`: a run, and the report of a run whose checks hold.

use serde_json::Value;
use std::process::{Command, Output};

pub fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_slat-bench")).arg("bench").args(args).output().unwrap()
}

/// Its JSON: it must succeed, and every check must hold.
pub fn report(args: &[&str]) -> Value {
    let output = bench(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}{}", String::from_utf8_lossy(&output.stdout));
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    let checks = report["checks"].as_array().unwrap();
    assert!(!checks.is_empty() && checks.iter().all(|check| check["ok"] == true));
    report
}
