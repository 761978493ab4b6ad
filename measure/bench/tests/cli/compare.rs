//! `slat bench compare` as its users meet it.

use crate::common::bench;
use serde_json::Value;
use std::fs;

#[test]
fn two_results_are_compared_and_anything_else_is_refused_in_a_line() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let taken = |name: &str| {
        let output = bench(&["invalidate", "-b", "2M", "--runs", "3", "--json", "-q"]);
        assert!(output.status.success());
        let file = folder.join(name).into_os_string().into_string().unwrap();
        fs::write(&file, output.stdout).unwrap();
        file
    };
    let [old, new] = ["compare-old.json", "compare-new.json"].map(taken);
    let output = bench(&["compare", &old, &new, "--json"]);
    let compared: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = compared["rows"].as_array().unwrap();
    assert!(rows.len() > 20 && rows.iter().any(|row| row["interval"][0].is_number()));
    assert_eq!((&compared["bench"], &compared["only_old"]), (&"invalidate".into(), &0.into()));

    let text = fs::read_to_string(&old).unwrap();
    let wrong = |name: &str, text: &str| {
        let file = folder.join(name).into_os_string().into_string().unwrap();
        fs::write(&file, text).unwrap();
        let output = bench(&["compare", &file, &new]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.lines().count() == 1, "{said}");
        said
    };
    assert!(wrong("compare-text.json", "no result").contains("not what `slat bench --json` prints"));
    assert!(wrong("compare-cut.json", &text[..text.len() / 2]).contains("compare-cut.json"));
    assert!(
        wrong("compare-schema.json", &text.replacen("\"schema\":1", "\"schema\":2", 1)).contains("schema 2")
    );
    let other = text.replacen("\"bench\":\"invalidate\"", "\"bench\":\"zap\"", 1);
    assert!(wrong("compare-other.json", &other).contains("two benches"));
}
