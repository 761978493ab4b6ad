//! Checks of the sources by reading them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Each feature in the book's table names a test that exists.
#[test]
fn the_tests_that_the_feature_table_names_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    // The published package has no book.
    let Ok(table) = fs::read_to_string(root.join("book/src/features.md")) else { return };
    let folders = ["slat", "crates", "pager", "proof/model", "cli", "proof/walkers"];
    let sources: String = folders.iter().map(|folder| sources(&root.join(folder))).collect();
    let names: BTreeSet<&str> = table.split('`').skip(1).step_by(2).filter_map(test_named).collect();
    assert!(names.len() > 20, "{names:?}");
    let exists = |name: &&str| sources.contains(&format!("fn {name}("));
    assert_eq!(names.into_iter().filter(|name| !exists(name)).collect::<Vec<_>>(), [""; 0]);
}

/// The reason why no test runs a line is valid only while the line exists.
#[test]
fn each_reason_for_a_line_that_no_test_runs_names_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let Ok(reasons) = fs::read_to_string(root.join("xtask/coverage.txt")) else { return };
    let everything: String = ["slat", "crates/mm", "crates/vcpu"]
        .iter()
        .map(|name| sources(&root.join(name).join("src")))
        .collect();
    let stale = |line: &&str| {
        let (path, rest) = line.split_once(": ").expect(line);
        let (what, _why) = rest.split_once(" — ").expect(line);
        let source = if path == "*" { Ok(everything.clone()) } else { fs::read_to_string(root.join(path)) };
        !source.is_ok_and(|source| source.contains(what))
    };
    let reasons = reasons.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    assert_eq!(reasons.filter(stale).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn names_of_tests_are_told_from_other_code() {
    assert_eq!(test_named("huge::tests::a_leaf_is_split"), Some("a_leaf_is_split"));
    assert_eq!(
        ["Ready::go", "slat/tests/engine", "KVM_PRE_FAULT_MEMORY", "-p slat"].map(test_named),
        [None; 4]
    );
}

/// Returns the name of a test in a span of code: a sentence of at least four words.
fn test_named(code: &str) -> Option<&str> {
    let name = code.rsplit("::").next()?;
    let word = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_';
    (name.matches('_').count() >= 3 && name.chars().all(word)).then_some(name)
}

/// Returns the sources below a folder, concatenated.
fn sources(folder: &Path) -> String {
    let below = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let text = below.filter(|path| !path.ends_with("target")).map(|path| {
        if path.is_dir() {
            sources(&path)
        } else if path.extension().is_some_and(|end| end == "rs") {
            fs::read_to_string(&path).unwrap()
        } else {
            String::new()
        }
    });
    text.collect()
}

/// Hosts that examples may hide, because the page of the hosts shows them.
const SHOWN: [&str; 3] = ["Identity", "Nothing", "Ram"];

#[test]
fn an_example_that_hides_its_host_says_where_to_copy_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let shown = fs::read_to_string(root.join("host/examples.md")).unwrap();
    assert!(SHOWN.iter().all(|name| shown.contains(&format!("\nimpl Host for {name} {{"))));
    let mut found = Vec::new();
    let mut folders = vec![root];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs" || end == "md") {
                let text = fs::read_to_string(&path).unwrap();
                found.extend(without_host(&text).map(|line| format!("{}:{line}", path.display())));
            }
        }
    }
    assert_eq!(found, [""; 0], "link to slat::host#hosts-of-the-examples");
}

#[test]
fn examples_that_hide_their_hosts_are_found() {
    let example =
        |link: &str, host: &str| format!("/// {link}\n/// ```\n/// # impl Host for {host} {{\n/// ```\n");
    let found = |text: &str| without_host(text).collect::<Vec<_>>();
    let link = "[hosts](crate::host#hosts-of-the-examples)";
    assert_eq!(found(&example(link, "Identity")), [0; 0]);
    assert_eq!(found(&example("", "Identity")), [3]);
    assert_eq!(found(&(example(link, "Ram") + "fn f() {}\n" + &example("", "Ram"))), [8]);
    assert_eq!(found(&example("", "Huge")), [0; 0], "a host of its own, in an example of that host");
}

/// Returns the numbers of the lines that hide a host, in a text without a link to it.
fn without_host(text: &str) -> impl Iterator<Item = usize> {
    let lines: Vec<&str> = text.lines().collect();
    let is_doc = |line: &str| {
        !["/// ", "//! ", "///", "//!"].iter().all(|begin| !line.trim_start().starts_with(begin))
    };
    let hides = |line: &str| {
        let code = line.trim_start().trim_start_matches("///").trim_start_matches("//!").trim_start();
        SHOWN.iter().any(|name| code.starts_with('#') && code.contains(&format!("impl Host for {name} ")))
    };
    let found = (0..lines.len()).filter(|&at| hides(lines[at])).filter(|&at| {
        let page = lines[..at].iter().rev().take_while(|line| is_doc(line));
        !page.into_iter().any(|line| line.contains("#hosts-of-the-examples"))
    });
    found.map(|at| at + 1).collect::<Vec<_>>().into_iter()
}
