//! Each `ORDER(tag)` of the engine has a row in the table of `slat/src/loom_tests.rs`: the room whose `loom_tests.rs` shows
//! it, and the test. It stands on both sides, in two places at least, unless the table says that it `is one-sided`.

use super::{Finding, Source};
use crate::verify::kept::cells;
use std::path::Path;

const TABLE: &str = "slat/src/loom_tests.rs";

/// Findings of all files together; none without a table.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let Some(table) = sources.iter().find(|source| source.path == Path::new(TABLE)) else {
        return Vec::new();
    };
    // | `tag` | `room` | `test` |; the head has no marks around it.
    let lines = table.lines.iter().enumerate().filter(|(_, line)| line.starts_with("//! | `"));
    let rows: Vec<(usize, [&str; 3])> =
        lines.filter_map(|(at, line)| Some((at, cells(&line[4..])?))).collect();
    let uses: Vec<(&Source, usize, &str)> = sources.iter().flat_map(uses).collect();
    let unknown = uses.iter().filter(|(_, _, tag)| !rows.iter().any(|(_, row)| row[0] == *tag));
    let unknown =
        unknown.map(|(source, at, tag)| source.finding(*at, format!("ORDER({tag}) is not in {TABLE}")));
    let mut findings: Vec<Finding> = unknown.collect();
    for (at, [tag, room, test]) in rows {
        let sides = uses.iter().filter(|(_, _, used)| *used == tag).count();
        let excused = format!("`{tag}` is one-sided: ");
        let mut find = |what: String| findings.push(table.finding(at, what));
        if sides == 0 {
            find(format!("no ORDER({tag}) in the engine"));
        } else if sides == 1 && !table.lines.iter().any(|line| line.contains(&excused)) {
            find(format!("ORDER({tag}) stands on one side only"));
        }
        let tests = Path::new("slat/src").join(room).join("loom_tests.rs");
        let start = format!("fn {test}(");
        match sources.iter().find(|source| source.path == tests) {
            None => find(format!("no {}", tests.display())),
            Some(tests) if tests.code.iter().any(|code| code.starts_with(&start)) => {}
            Some(_) => find(format!("no {test} in {}", tests.display())),
        }
    }
    findings
}

/// The tags that a shipped file of the engine names, with the indices of their lines.
fn uses(source: &Source) -> Vec<(&Source, usize, &str)> {
    let lines = source.lines[..source.shipped()].iter().enumerate();
    let tags = lines.flat_map(|(at, line)| line.split("ORDER(").skip(1).map(move |rest| (at, rest)));
    tags.filter_map(|(at, rest)| Some((source, at, rest.split_once(')')?.0))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str =
        "//! | tag | tests in | first of all |\n//! |---|---|---|\n//! | `a` | `room` | `it_holds` |\n";
    const BOTH: &str = "// ORDER(a): before.\nx;\n// ORDER(a): after.\n";

    fn found(table: &str, code: &str, tests: &str) -> Vec<String> {
        let sources = [
            Source::new(TABLE, table),
            Source::new("slat/src/room.rs", code),
            Source::new("slat/src/room/loom_tests.rs", tests),
        ];
        check(&sources).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn a_tag_has_two_sides_and_a_test_or_says_that_it_is_one_sided() {
        let test = "fn it_holds() {";
        assert!(found(ROW, BOTH, test).is_empty());
        assert_eq!(found(ROW, BOTH, "fn it_holds_not() {"), ["no it_holds in slat/src/room/loom_tests.rs"]);
        assert_eq!(found(ROW, "", test), ["no ORDER(a) in the engine"]);
        assert_eq!(found("", BOTH, ""), ["ORDER(a) is not in slat/src/loom_tests.rs"; 2]);
        let elsewhere = ROW.replace("`room`", "`other`");
        assert_eq!(found(&elsewhere, BOTH, test), ["no slat/src/other/loom_tests.rs"]);
        // Tests are no side.
        let one = "// ORDER(a): b.\n#[cfg(test)]\nmod tests {\n    // ORDER(a): c.\n}";
        assert_eq!(found(ROW, one, test), ["ORDER(a) stands on one side only"]);
        assert!(found(&format!("{ROW}//! `a` is one-sided: nobody answers.\n"), one, test).is_empty());
    }
}
