//! `slat plan`: the printed table.

use serde_json::Value;
use std::process::Command;

fn plan(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_slat")).arg("plan").args(args).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    String::from_utf8(output.stdout).unwrap()
}

/// The book includes `plan.txt`.
#[test]
fn the_plan_is_the_table_of_the_book() {
    assert_eq!(include_str!("plan.txt"), plan(&[]));
}

#[test]
fn json_has_the_same_rows() {
    let report: Value = serde_json::from_str(&plan(&["--json"])).unwrap();
    let rows = report["plan"].as_array().unwrap();
    assert_eq!(rows.len() + 1, plan(&[]).lines().count());
    let replaced = |row: &&Value| row["edit"] == "replace in place" && row["why"] == "change-pte";
    assert_eq!(rows.iter().filter(replaced).count(), 1);
    assert!(rows.iter().all(|row| (row["tables"] == "freed")
        == ["unmap", "remap", "exit", "slot"].contains(&row["why"].as_str().unwrap())));
}
