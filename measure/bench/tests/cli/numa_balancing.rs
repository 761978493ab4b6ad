//! `slat bench numa-balancing` as its users meet it.

use serde_json::Value;
use std::process::Output;

fn bench(args: &[&str]) -> Output {
    crate::common::bench(&[&["numa-balancing"], args].concat())
}

#[test]
fn every_policy_has_its_rows_and_loses_nothing() {
    // Each scan sees all memory. Where it sees a part, the vCPUs' turns decide whether a page moves.
    let output =
        bench(&["--passes", "2", "-a", "2000", "-e", "1000", "--scan", "256M", "--runs", "1", "--json"]);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stderr}{stdout}"));
    // How many flushes a run needs depends on which threads run together, the more the fewer it makes. The bench itself judges them.
    let (flushes, others): (Vec<_>, Vec<_>) = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .partition(|check| check["name"].as_str().unwrap().starts_with("remote flushes"));
    assert_eq!(flushes.len(), 2);
    assert!(!others.is_empty() && others.iter().all(|check| check["ok"] == true), "{stdout}");
    let held = flushes.iter().all(|check| check["ok"] == true);
    assert_eq!(output.status.success(), held, "{stderr}");
    let rows = |figure: &str, device: &str| {
        let rows = report["rows"].as_array().unwrap().iter().filter(|row| {
            (&row["params"]["mean of"], &row["params"]["device"]) == (&figure.into(), &device.into())
        });
        rows.map(|row| (row["name"].as_str().unwrap().to_owned(), row["baseline"].as_f64().unwrap()))
            .collect::<Vec<_>>()
    };
    for device in ["none", "pins all memory"] {
        let names: Vec<_> = rows("guest wall time", device).into_iter().map(|(name, _)| name).collect();
        let locked = ["range, yielding: KVM", "page, locked: KVM with the series"];
        let others = ["range: before", "page: the series", "page-batched by 2M", "no balancing"];
        assert_eq!(names, [&locked[..], &others].concat());
        for figure in ["remote flushes", "unmap calls", "hint faults", "pages moved to their node"] {
            assert_eq!(rows(figure, device).len(), 5, "{figure}");
        }
    }
    // Beside a device the range policy goes on unmapping, and nothing moves for it.
    for at in [0, 2] {
        let range = |figure| rows(figure, "pins all memory")[at].1;
        assert!(range("remote flushes") > 0.0 && range("unmap calls") > 0.0);
        assert_eq!((range("hint faults"), range("pages moved to their node")), (0.0, 0.0));
    }
}
