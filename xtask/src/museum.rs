//! Checks `proof/verdicts/museum.md`: that each published bug names a test or a seeded mistake that exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The repository, from the folder in which `cargo test` runs a package's tests.
const ROOT: &str = "..";
/// Fewest published bugs.
const LEAST: usize = 60;
/// The verdict of a bug that slat has: no test shows it.
const POSSIBLE: &str = "Possible";
const VERDICTS: [&str; 6] =
    ["Impossible by type", "By protocol", "By format", "Tested", "Not slat's", POSSIBLE];
const HEAD: &str = "| source | system | what happened | slat | shown by |";

/// Names that the page may use: looked up in the sources, or made up by a test.
struct Names<'a> {
    mistakes: &'a BTreeSet<String>,
    /// Returns the text of a file of the repository.
    read: &'a dyn Fn(&str) -> Option<String>,
}

impl Names<'_> {
    fn exists(&self, name: &str) -> bool {
        match name.split_once("::") {
            Some((file, "compile_fail")) => {
                (self.read)(file).is_some_and(|text| text.contains("```compile_fail"))
            }
            Some((file, test)) => (self.read)(file).is_some_and(|text| is_test(&text, test)),
            None => self.mistakes.contains(name),
        }
    }
}

/// Whether the text has a test of this name: the attribute is on one of the lines directly above.
fn is_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let head = format!("fn {name}(");
    let starts = |line: &&str| line.strip_prefix("pub ").unwrap_or(line).starts_with(&head);
    lines.iter().position(starts).is_some_and(|at| {
        lines[..at].iter().rev().take_while(|line| line.starts_with("#[")).any(|line| *line == "#[test]")
    })
}

/// Returns the names between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the number of published bugs of the page, and what is wrong with it.
fn check(page: &str, names: &Names<'_>) -> (usize, Vec<String>) {
    let (mut bugs, mut wrong, mut sources) = (0, Vec::new(), BTreeSet::new());
    for class in page.split("\n## ").skip(1) {
        let title = class.lines().next().unwrap_or_default();
        let (prose, table) = class.split_once(HEAD).unwrap_or((class, ""));
        let seeded = prose.split_once("Seeded mistakes:").map_or("", |(_, list)| list);
        if quoted(seeded).next().is_none() {
            wrong.push(format!("{title}: no seeded mistake"));
        }
        for name in quoted(seeded).filter(|name| name.contains("::") || !names.exists(name)) {
            wrong.push(format!("{title}: no seeded mistake is called {name}"));
        }
        // After the head comes the line of dashes.
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let before = bugs;
        for row in rows {
            bugs += 1;
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let &[source, _, _, verdict, shown] = &cells[..] else {
                wrong.push(format!("{title}: no row of five cells: {row}"));
                continue;
            };
            if cells.contains(&"") {
                wrong.push(format!("{source}: an empty cell"));
            }
            if !VERDICTS.iter().any(|begin| verdict.starts_with(begin)) {
                wrong.push(format!("{source}: no verdict: {verdict}"));
            }
            wrong.extend(
                source.split(", ").filter(|name| !sources.insert(*name)).map(|name| format!("{name}: twice")),
            );
            if quoted(shown).next().is_none() && !verdict.starts_with(POSSIBLE) {
                wrong.push(format!("{source}: shown by nothing"));
            }
            let missing = quoted(shown).filter(|name| !names.exists(name));
            wrong.extend(missing.map(|name| format!("{source}: {name} does not exist")));
        }
        if bugs == before {
            wrong.push(format!("{title}: no published bug"));
        }
    }
    (bugs, wrong)
}

/// Returns the names of the mistakes that a tool finds: those of the model, and those in `proof/mistakes/`.
fn seeded() -> BTreeSet<String> {
    let mut seeded = BTreeSet::new();
    let model = fs::read_to_string(Path::new(ROOT).join("proof/model/src/bug.rs")).unwrap();
    for line in model.lines() {
        // `Name "scenario" "what",`
        let Some((name, rest)) = line.trim().split_once(' ') else { continue };
        if name.starts_with(char::is_uppercase) && rest.starts_with('"') {
            seeded.insert(kebab(name));
        }
    }
    assert!(seeded.len() > 100, "the model's mistakes: {}", seeded.len());
    records(&Path::new(ROOT).join("proof/mistakes"), &mut seeded);
    assert!(seeded.len() > 300, "all mistakes: {}", seeded.len());
    seeded
}

/// Adds the names of the records below a folder that name a tool.
fn records(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            records(&path, names);
        } else {
            let table: toml::Table = fs::read_to_string(&path).unwrap().parse().unwrap();
            names.extend(
                table.into_iter().filter(|(_, record)| record.get("tool").is_some()).map(|(name, _)| name),
            );
        }
    }
}

/// `NewerHidden` as `newer-hidden`, its name on command lines.
fn kebab(name: &str) -> String {
    let mut kebab = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !kebab.is_empty() {
            kebab.push('-');
        }
        kebab.extend(letter.to_lowercase());
    }
    kebab
}

#[test]
fn each_published_bug_names_a_test_or_a_mistake_that_exists() {
    let page = fs::read_to_string(Path::new(ROOT).join("proof/verdicts/museum.md")).unwrap();
    let (mistakes, read) = (seeded(), |file: &str| fs::read_to_string(Path::new(ROOT).join(file)).ok());
    let (bugs, wrong) = check(&page, &Names { mistakes: &mistakes, read: &read });
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(bugs >= LEAST, "{bugs} published bugs");
}

/// A page with one class, of these seeded mistakes and this row.
fn page(seeded: &str, row: &str) -> String {
    format!(
        "# Title\n\n## 1. Class\n\nWhat it is.\n\nSeeded mistakes: {seeded}.\n\n{HEAD}\n|---|---|---|---|---|\n{row}\n"
    )
}

#[test]
fn negative_control_a_page_that_names_nothing_is_reported() {
    let mistakes = BTreeSet::from(["made".to_owned()]);
    let source = "#[test]\n#[ignore]\nfn a_test() {}\n\nfn a_helper() {}\n\n/// ```compile_fail\n/// ```\n";
    let read = |file: &str| (file == "a.rs").then(|| source.to_owned());
    let names = Names { mistakes: &mistakes, read: &read };
    let row =
        |verdict: &str, shown: &str| format!("| XSA-1, CVE-1 | Xen | It was so. | {verdict} | {shown} |");
    for shown in ["`a.rs::a_test`", "`made`", "`a.rs::compile_fail`, `made`"] {
        assert_eq!(check(&page("`made`", &row("Tested: so", shown)), &names), (1, vec![]), "{shown}");
    }
    assert_eq!(check(&page("`made`", &row("Possible: so", "—")), &names), (1, vec![]));
    let twice = [row("Tested", "`made`"), row("By format", "`made`")].join("\n");
    for (page, wrong) in [
        (page("`made`", &row("Tested", "`a.rs::no_test`")), "a.rs::no_test does not exist"),
        (page("`made`", &row("Tested", "`a.rs::a_helper`")), "a.rs::a_helper does not exist"),
        (page("`made`", &row("Tested", "`b.rs::compile_fail`")), "b.rs::compile_fail does not exist"),
        (page("`made`", &row("Tested", "`not-made`")), "not-made does not exist"),
        (page("`made`", &row("Tested", "a test")), "shown by nothing"),
        (page("`made`", &row("Surely not", "`made`")), "no verdict"),
        (page("`made`", &row("", "`made`")), "an empty cell"),
        (page("`made`", "| XSA-1 | Xen | Tested | `made` |"), "no row of five cells"),
        (page("`made`", &twice), "CVE-1: twice"),
        (page("`made`", ""), "no published bug"),
        (page("none", &row("Tested", "`made`")), "no seeded mistake"),
        (page("`not-made`", &row("Tested", "`made`")), "no seeded mistake is called not-made"),
    ] {
        let (_, found) = check(&page, &names);
        assert!(found.iter().any(|found| found.contains(wrong)), "{wrong}: {found:?}");
    }
}
