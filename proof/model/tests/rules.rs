//! The rules of the protocol, `slat/src/notify/protocol.md`: every name on that page exists, and every number of a rule
//! elsewhere is on that page.

use slat_model::Bug;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = include_str!("../../../slat/src/notify/protocol.md");

/// The protocol of nested guests.
const NESTED: &str = include_str!("../../../slat/src/nested/protocol.md");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Files below `folder` whose names end so, but for what is built.
fn files(folder: &Path, end: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            files(&path, end, found);
        } else if name.ends_with(end) {
            found.push(path);
        }
    }
}

/// The text of all of them.
fn text(folder: &str, end: &str) -> String {
    let mut found = Vec::new();
    files(&root().join(folder), end, &mut found);
    found.into_iter().map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// The rules that the page states, by number, each with its text.
fn rules(page: &str) -> Vec<(usize, &str)> {
    let sections = page.split("\n## ").filter_map(|section| section.strip_prefix("Rule "));
    sections.map(|text| (text.split(':').next().unwrap().parse().unwrap(), text)).collect()
}

/// The texts between marks of code in the line of this label.
fn names<'a>(rule: &'a str, label: &str) -> Vec<&'a str> {
    let line = rule.lines().find_map(|line| line.strip_prefix(&*format!("* **{label}**: ")));
    line.into_iter().flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

/// Names on the page that are nowhere.
fn unknown(page: &str) -> Vec<String> {
    let (tests, model_tests) = (text("slat/src", "tests.rs"), text("proof/model/tests", "protocol.rs"));
    let shuttle = text("slat/src/shuttle_tests", ".rs");
    let mistakes = text("proof/mistakes", ".toml");
    let mut unknown = Vec::new();
    for (number, rule) in rules(page) {
        let mut check = |known: bool, name: &str| {
            if !known {
                unknown.push(format!("rule {number}: {name}"));
            }
        };
        for name in names(rule, "Model") {
            let is_test = model_tests.contains(&format!("fn {name}("));
            check(is_test || Bug::ALL.iter().any(|bug| bug.name() == name), name);
        }
        for label in ["Loom", "Shuttle", "History", "Fuzz", "Load"] {
            for name in names(rule, label) {
                let is_test = [&tests, &shuttle].iter().any(|tests| tests.contains(&format!("fn {name}(")));
                let is_mistake = [format!("\n[{name}]\n"), format!("\n[\"{name}\"]\n")];
                check(is_test || is_mistake.iter().any(|head| mistakes.contains(head)), name);
            }
        }
        let mut file = String::new();
        for name in names(rule, "Code") {
            if Path::new(name).extension().is_some() {
                file = fs::read_to_string(root().join("slat/src").join(name)).unwrap_or_default();
                check(!file.is_empty(), name);
                continue;
            }
            let last = name.rsplit("::").next().unwrap();
            let declared = ["fn ", "struct ", "for "].iter().any(|word| {
                let word = format!("{word}{last}");
                file.split(&word)
                    .skip(1)
                    .any(|after| !after.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
            });
            check(declared || name == "Drop" && file.contains(" Drop for "), name);
        }
    }
    unknown
}

#[test]
fn every_name_on_the_page_exists() {
    assert_eq!(unknown(PAGE), Vec::<String>::new());
    let wrong = PAGE.replace("`region-unscanned`", "`region-unseen`").replace("Line::list`", "Line::lists`");
    assert_eq!(unknown(&wrong), ["rule 1: Line::lists", "rule 2: region-unseen"]);
}

#[test]
fn every_rule_is_guarded() {
    let rules = rules(PAGE);
    let numbers: Vec<usize> = rules.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=rules.len()).collect::<Vec<_>>());
    for (number, rule) in rules {
        let guards = ["Loom", "Shuttle"].iter().flat_map(|label| names(rule, label)).count();
        // Rule 13 is about progress: nothing but the model looks for that.
        assert!(!names(rule, "Model").is_empty() && (guards > 0 || number == 13), "rule {number}");
        assert!(
            !names(rule, "Code").is_empty() && (rule.contains("broken: ") || number == 13),
            "rule {number}"
        );
    }
}

/// The mistakes in the last cells of that page's table of rules, and which of the model's are not there.
fn nested_names(page: &str) -> (Vec<&str>, Vec<String>) {
    let rules = page.split("\n## ").find(|section| section.starts_with("The rules")).unwrap_or_default();
    let cells = rules.lines().filter_map(|line| line.strip_suffix(" |")?.rsplit(" | ").next());
    let named: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let nested = Bug::ALL.iter().filter(|bug| bug.scenario().starts_with("nested: ")).map(|bug| bug.name());
    let missing = nested.filter(|name| !named.contains(&&**name)).collect();
    (named, missing)
}

#[test]
fn every_mistake_with_nested_guests_is_in_their_design() {
    let (named, missing) = nested_names(NESTED);
    assert_eq!(missing, Vec::<String>::new());
    assert!(named.iter().all(|name| Bug::ALL.iter().any(|bug| bug.name() == *name)), "{named:?}");
    assert!(nested_names(&NESTED.replace("`chunk-answers`", "")).1 == ["chunk-answers"]);
}

/// Numbers behind the word "rule" or "rules".
fn cited(text: &str) -> BTreeSet<usize> {
    let mut cited = BTreeSet::new();
    for (at, _) in text.to_lowercase().match_indices("rule") {
        let rest = &text.get(at + 4..).unwrap_or_default();
        let rest = rest.strip_prefix('s').unwrap_or(rest);
        let Some(rest) = rest.strip_prefix(' ') else { continue };
        let list = rest.split(|c: char| !(c.is_ascii_digit() || c == ',' || c == ' ')).next().unwrap();
        cited.extend(list.split([',', ' ']).filter_map(|number| number.parse::<usize>().ok()));
        // The last of a list.
        let after = rest[list.len()..].strip_prefix("and ").filter(|_| !list.trim().is_empty());
        cited.extend(after.and_then(|rest| {
            rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse::<usize>().ok()
        }));
    }
    cited
}

#[test]
fn every_rule_that_is_cited_is_on_the_page() {
    assert_eq!(
        cited("Rule 3. rules 4, 7 and 11 of; the rules of 5; rule of 6"),
        BTreeSet::from([3, 4, 7, 11])
    );
    let known = rules(PAGE).len();
    let mut found = Vec::new();
    for folder in ["slat", "crates", "measure", "proof/model/src", "proof/explore", "proof/fuzz", "book"] {
        files(&root().join(folder), ".rs", &mut found);
        files(&root().join(folder), ".md", &mut found);
    }
    found.extend(["ARCHITECTURE.md", "README.md"].map(|name| root().join(name)));
    let mut citations = 0;
    for path in found {
        let cited = cited(&fs::read_to_string(&path).unwrap());
        citations += cited.len();
        assert!(cited.iter().all(|number| (1..=known).contains(number)), "{}: {cited:?}", path.display());
    }
    assert!(citations > 20, "{citations}: they are not looked for");
}
