//! `slat bench reclaim` as its users meet it: its output and its exit status.

use serde_json::Value;
use std::process::Output;

fn bench(args: &[&str]) -> Output {
    crate::common::bench(&[&["reclaim"], args].concat())
}

#[test]
fn the_rows_are_there_and_their_counts_agree() {
    let output = bench(&["-a", "1000", "--runs", "1", "--limit", "30,60", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["bench"], &report["params"]["runs"]), (&"reclaim".into(), &1.into()));
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["baseline"].is_f64() && row["slat"].is_f64()));
    // Faults beside a slow device are no claim of the series.
    let beside = rows.iter().filter(|row| row["series"] != "mglru-aging");
    assert_eq!(beside.filter(|row| row["name"] == "no slow device").count(), 4);
    for guest in ["cc1", "sort", "boot", "phases"] {
        for limit in ["30%", "60%"] {
            let figure = |name: &str, figure: &str| {
                let is = |row: &&Value| {
                    let params = &row["params"];
                    row["name"] == name
                        && (&params["guest"], &params["limit"]) == (&guest.into(), &limit.into())
                        && params["figure"].as_str().unwrap().starts_with(figure)
                };
                let mut rows = rows.iter().filter(is);
                let row = rows.next().unwrap_or_else(|| panic!("{guest}, {limit}, {name}, {figure}"));
                assert!(rows.next().is_none());
                (row["baseline"].as_f64().unwrap(), row["slat"].as_f64().unwrap())
            };
            let before = "walk-secondary off: before";
            let (off, on) = figure(before, "pages brought in again");
            let ((lru, on_again), (belady, _)) =
                (figure("exact LRU", "pages brought"), figure("Belady's optimum", "pages brought"));
            assert!((on_again - on).abs() < 0.5 && belady <= lru && belady <= on && belady <= off);
            for what in ["mean rank", "pages that were to go", "aging passes", "guest wall time"] {
                figure(before, what);
            }
            figure("no limit", "guest wall time");
        }
    }
    let checks = report["checks"].as_array().unwrap();
    assert_eq!(checks.len(), 4 * 2 * 8 + 1, "the bars are for whole programs");
    assert!(checks.iter().all(|check| check["ok"] == true), "{checks:?}");
}
