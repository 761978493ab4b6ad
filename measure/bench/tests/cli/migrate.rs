//! `slat bench migrate` as its users meet it: every byte comes, whatever breaks, and a lost bit is found out.

use crate::thorough::thorough;
use serde_json::Value;
use std::process::Output;

fn bench(args: &[&str]) -> Output {
    crate::common::bench(&[&["migrate"], args].concat())
}

/// A small migration that has rounds: a slow connection, and a guest that stands still for a moment only.
const SMALL: [[&str; 2]; 5] =
    [["-b", "2M"], ["--bandwidth", "64M"], ["--downtime", "20"], ["--max-rounds", "6"], ["--runs", "1"]];

/// Its report, with other settings where `args` say so.
fn report(args: &[&str], status: i32) -> Value {
    let small = SMALL.iter().filter(|[flag, _]| !args.contains(flag)).flatten();
    let all: Vec<&str> = small.chain(args).chain(&["--json", "--quiet"]).copied().collect();
    let output = bench(&all);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {stderr}");
    assert_eq!(stderr, "");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The names of the rounds, in order.
fn rounds(report: &Value) -> Vec<String> {
    let rows = report["rows"].as_array().unwrap().iter();
    let told = rows.filter(|row| row["params"]["figure"] == "pages told");
    told.map(|row| row["name"].as_str().unwrap().to_owned()).collect()
}

/// How often something happened, in a report of one run.
fn count(report: &Value, name: &str) -> usize {
    let mut rows = report["rows"].as_array().unwrap().iter().filter(|row| row["name"] == name);
    let row = rows.next().unwrap_or_else(|| panic!("{name}"));
    assert!(rows.next().is_none());
    row["slat"].as_f64().unwrap() as usize
}

fn whole(report: &Value) {
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() == 4 && checks.iter().all(|check| check["ok"] == true), "{checks:?}");
}

#[test]
fn every_byte_comes_however_writes_are_noticed() {
    let all = [
        &[] as &[_],
        &["--ring", "4K", "--log-at-start"],
        &["--pages", "thp", "--track", "dirty-bits"],
        &["-v", "3", "--working-set", "2M"],
        &["--track", "dirty-bits"],
        &["--log-at-start"],
        &["--ring", "4K"],
        &["--pages", "thp"],
    ];
    for how in &all[..thorough(all.len(), 4)] {
        let report = report(how, 0);
        whole(&report);
        assert_eq!(count(&report, "rounds failed"), 0, "{how:?}");
        // A ring of 256 cannot hold what the guest fills its memory with.
        let full = how.contains(&"--ring") && how.contains(&"4K") && how.contains(&"--log-at-start");
        assert!(count(&report, "exits with a full ring") > 0 || !full, "{how:?}");
        assert_eq!(count(&report, "rounds received"), rounds(&report).len(), "{how:?}");
    }
}

#[test]
fn nothing_is_lost_where_each_round_fails_first() {
    let all = [&["--track", "dirty-bits"] as &[_], &["--ring", "4K"], &[], &["--log-at-start"]];
    for how in &all[..thorough(all.len(), 2)] {
        let report = report(&[&["--fail-each-round"], *how].concat(), 0);
        whole(&report);
        let rounds = rounds(&report);
        assert!(rounds.len() >= 4, "{how:?}: {rounds:?}");
        for (pair, number) in rounds.chunks(2).zip(1..) {
            assert_eq!(pair, [format!("round {number}, failed"), format!("round {number}")], "{how:?}");
        }
    }
}

#[test]
fn one_round_fails_where_one_is_asked_to() {
    let report = report(&["--fail-at-round", "2", "--max-rounds", "2", "--working-set", "2M"], 0);
    whole(&report);
    assert_eq!(
        rounds(&report),
        ["round 1", "round 2, failed", "round 2"],
        "the guest stood still in the last"
    );
}

/// The checks that fail under sabotage.
fn found_out(args: &[&str]) {
    let report = report(args, 1);
    for name in ["byte-identical with the sender", "byte-identical with what the guest has written"] {
        let check = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == name).unwrap();
        assert_eq!(check["ok"], false, "{args:?}: {name}");
    }
}

#[test]
fn negative_control_a_failed_round_that_is_committed_is_found_out() {
    // The guest runs for a moment between the round that fails and the next one, which is all that there is.
    let args =
        ["-b", "16M", "--bandwidth", "1G", "--fail-at-round", "1", "--max-rounds", "1", "--sabotage-commit"];
    found_out(&args);
}

/// The working set fits in the TLBs, which go on believing that the guest may write there. What a round has told of once is
/// not told of again; only the last one, for which the guest stands still, has nothing to miss.
#[test]
fn negative_control_a_harvest_without_its_flush_is_detected() {
    for how in ["writes", "dirty-bits"] {
        // On a busy machine the guest may not run beside the round that matters: in one of 12 runs, when 6 of them ran at once.
        found_out(&["-b", "4M", "--downtime", "1", "--track", how, "--sabotage-rearm", "--runs", "4"]);
    }
}

#[test]
fn the_rounds_are_a_table_for_people() {
    let output = bench(&["-b", "1M", "-v", "1", "--runs", "2", "--fail-at-round", "1"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("failed: given back").count(), 2, "{text}");
    assert_eq!(text.matches("the guest stands still").count(), 2, "{text}");
    assert!(text.contains("of 256 pages 0 differ from the sender's, 0 from what the guest wrote"), "{text}");
    assert!(text.ends_with("checks: 4 of 4 hold\n"), "{text}");
}
