//! `slat run --nested`: the traces run in L2, whose hypervisor L1 changes its tables at random.

use crate::common::{File, refused, report, slat, text};
use crate::run::trace;
use serde_json::Value;

/// One change per few hundred accesses.
const EDITS: [&str; 3] = ["--nested", "--l1-edits", "200"];

#[test]
fn an_inner_guest_reads_what_it_wrote_on_each_family() {
    let file = File::new("nested.trace", trace(30, 60).as_bytes());
    for flags in [
        &["-f", "ept4", "--churn", "20000"][..],
        &["-f", "npt5", "--dirty-log", "ring"],
        &["-f", "arm64", "--dirty-log", "bitmap"],
        &["-f", "sv39x4", "--pages", "thp"],
        &["-f", "ept4-noad", "--mmu-lock", "read-write"],
    ] {
        let args = [&["-t", file.path(), "-v", "2"], &EDITS[..], flags].concat();
        let report = report(&args, b"");
        assert_eq!((&report["corrupt_reads"], &report["dirty_log"]["lost_pages"]), (&0.into(), &0.into()));
        let of_l1 = |name: &str| report["nested"][name].as_u64().unwrap();
        for name in ["stored_protected", "stored_clean", "wrong"] {
            assert_eq!(of_l1(name), 0, "{flags:?}: {name}");
        }
        assert!(of_l1("refused") > 0 && of_l1("moved") + of_l1("protected") > 0, "{flags:?}: {report}");
    }
    assert!(report(&["-t", file.path()], b"").get("nested").is_none());
}

#[test]
fn negative_controls_of_what_the_inner_guest_relies_on_are_found() {
    let file = File::new("nested-sabotage.trace", trace(40, 400).as_bytes());
    let args =
        [&["-t", file.path(), "-i", "8", "-v", "2", "--churn", "100000", "--json"], &EDITS[..]].concat();
    for left_out in ["--sabotage-flushes", "--sabotage-l1-flushes", "--sabotage-l2-tag"] {
        let output = slat(&[&args[..], &[left_out]].concat());
        assert_eq!(output.status.code(), Some(3), "{left_out}: {}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let of_l1 = |name: &str| report["nested"][name].as_u64().unwrap();
        let found = of_l1("stored_protected") + of_l1("stored_clean") + of_l1("wrong");
        assert!(found + report["corrupt_reads"].as_u64().unwrap() > 0, "{left_out}");
    }
}

#[test]
fn l1_edits_without_nested_are_refused() {
    refused(&["--l1-edits", "5"], b"", "--nested");
    refused(&["--nested", "--l1-edits", "many"], b"", "many");
}
