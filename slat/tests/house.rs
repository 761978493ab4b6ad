//! Checks of the sources by reading them.

use std::collections::{BTreeMap, BTreeSet};
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

/// The engine's modules, the lowest first: each imports only modules above it in this list, except for [`UP`].
const ORDER: [&str; 34] = [
    "callbacks",
    "lent",
    "why",
    "fallible",
    "sync",
    "slots",
    "table",
    "trace",
    "host",
    "space",
    "age",
    "map",
    "tlb",
    "loaded",
    "waits",
    "vm",
    "walk",
    "notify",
    "guest_space",
    "huge",
    "dirty",
    "memslots",
    "writes",
    "guest_memory",
    "vcpu",
    "stats",
    "shadows",
    "hooks",
    "fault",
    "held",
    "nested",
    "owned",
    "budget",
    "oracle",
];

/// The hooks of nested guests and of the oracle, which name types above their callers.
const SEAMS: [&str; 2] = ["hooks", "oracle"];

/// Imports in the other direction. The list may only shrink.
const UP: [&str; 5] = [
    "slots/publish imports table/entry",
    "vcpu imports fault/memo",
    "vm imports dirty/ring",
    "vm imports dirty/settings",
    "vm imports notify/active",
];

#[test]
fn the_engines_modules_import_downwards_and_its_files_in_no_circle() {
    let mut graph = Graph::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    // The seam of an optional part: the engine calls up through it, and only through it.
    let is_seam = |file: &str| SEAMS.contains(&file.split('/').next().unwrap_or_default());
    graph.imports.retain(|(from, to)| is_seam(from) || !is_seam(to));
    assert_eq!(graph.circles(), [""; 0]);
    let place = |file: &str| {
        let module = file.split('/').next().unwrap();
        ORDER.iter().position(|name| *name == module).unwrap_or_else(|| panic!("{module} is in no order"))
    };
    let up = graph.imports.iter().filter(|(from, to)| place(from) < place(to));
    let up: Vec<String> = up.map(|(from, to)| format!("{from} imports {to}")).collect();
    assert_eq!(up, UP);
}

#[test]
fn the_primary_mmus_and_the_commands_files_import_in_no_circle() {
    for folder in ["../crates/mm/src", "../cli/src"] {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        // The published package has no repository around it.
        if sources.exists() {
            assert_eq!(Graph::read(&sources).circles(), [""; 0], "{folder}");
        }
    }
}

#[test]
fn circles_are_found() {
    let text = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let files = [
        text("a", "use crate::b::{self, C};\nmod d;"),
        text("a/d", "use super::E; // use crate::f::G;"),
        text("b", "pub use f::{G as C, H};\nmod f;"),
        text("b/f", "fn f() { crate::a::E::new() }\n#[cfg(test)]\nmod tests {\n    use crate::i::J;\n}"),
        text("i", "use crate::{b::H, a};"),
    ];
    let graph = Graph::of(&files.into_iter().collect());
    assert_eq!(graph.circles(), ["a b/f"]);
    assert!(
        graph.imports.contains(&("i".into(), "b/f".into())) && graph.imports.iter().all(|(_, to)| to != "i")
    );
}

/// Returns which file imports which: by `use`, or by a path in its code. A re-exported name counts for the file that
/// defines it.
struct Graph {
    imports: BTreeSet<(String, String)>,
}

impl Graph {
    fn read(root: &Path) -> Self {
        let (mut files, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(root).unwrap().with_extension("");
                let name = name.to_str().unwrap().replace('\\', "/");
                let for_tests = name.ends_with("tests")
                    || ["seeded", "inject", "edges", "table/history"].contains(&&*name);
                if path.is_dir() && !for_tests {
                    folders.push(path);
                } else if path.extension().is_some_and(|end| end == "rs") && !for_tests {
                    let module = name.strip_suffix("/mod").unwrap_or(&name);
                    let module = if module == "lib" { "" } else { module };
                    files.insert(module.to_owned(), fs::read_to_string(&path).unwrap());
                }
            }
        }
        Self::of(&files)
    }

    /// Imports of these files, by module. The crate's root has no name; it re-exports, and imports nothing.
    fn of(files: &BTreeMap<String, String>) -> Self {
        let (mut uses, mut handed_on) = (Vec::new(), BTreeMap::new());
        for (file, text) in files {
            for (path, name) in paths(text) {
                let Some(path) = absolute(files, file, &path) else { continue };
                match name {
                    Some(name) => _ = handed_on.insert(join(file, &name), path),
                    None => uses.push((file, path)),
                }
            }
        }
        let home = |path: &str| {
            let mut path = path.to_owned();
            loop {
                let ends = [path.len()].into_iter().chain(path.rmatch_indices('/').map(|(at, _)| at));
                let module = ends.map(|end| &path[..end]).find(|module| files.contains_key(*module));
                let module = module.unwrap_or_default();
                let rest = path[module.len()..].trim_start_matches('/');
                let (name, below) = rest.split_once('/').unwrap_or((rest, ""));
                match handed_on.get(&join(module, name)) {
                    Some(to) if !name.is_empty() => path = join(to, below),
                    _ => return module.to_owned(),
                }
            }
        };
        let imports = uses.into_iter().map(|(from, path)| (from.clone(), home(&path)));
        Self {
            imports: imports.filter(|(from, to)| from != to && !from.is_empty() && !to.is_empty()).collect(),
        }
    }

    /// Returns the files of each cycle.
    fn circles(&self) -> Vec<String> {
        let reached = |from: &str| {
            let (mut seen, mut left) = (BTreeSet::new(), vec![from.to_owned()]);
            while let Some(file) = left.pop() {
                let next = self.imports.iter().filter(|(from, _)| *from == file).map(|(_, to)| to.clone());
                left.extend(next.filter(|to| seen.insert(to.clone())));
            }
            seen
        };
        let all: BTreeMap<&str, _> = self.imports.iter().map(|(from, _)| (&**from, reached(from))).collect();
        let of = |(file, reaches): (&&str, &BTreeSet<String>)| {
            let back = reaches.iter().filter(|to| all.get(&***to).is_some_and(|seen| seen.contains(*file)));
            back.map(String::as_str).collect::<Vec<_>>().join(" ")
        };
        let circles: BTreeSet<String> = all.iter().map(of).filter(|circle| !circle.is_empty()).collect();
        circles.into_iter().collect()
    }
}

/// Returns the paths that a file's code names, without tests. Re-exports come with their new name.
fn paths(text: &str) -> Vec<(String, Option<String>)> {
    let (mut code, mut lines) = (String::new(), text.lines().peekable());
    while let Some(line) = lines.next() {
        let line = line.split("//").next().unwrap_or_default();
        if line.trim().starts_with("#[cfg(") && line.contains("test") && !line.contains("not(test") {
            // An item of tests: the module at the file's end, or a line.
            if lines.next().is_some_and(|next| next.starts_with("mod ") && next.ends_with('{')) {
                break;
            }
        } else {
            code += line;
            code.push('\n');
        }
    }
    let mut found = Vec::new();
    for statement in code.split(';') {
        let begins = |begin: &str| {
            statement.match_indices(begin).map(|(at, _)| at).find(|&at| {
                statement[..at].trim_start_matches(char::is_whitespace).is_empty()
                    || statement[..at].ends_with(['\n', ' '])
            })
        };
        let own = begins("use ");
        let (body, import) = statement.split_at(own.unwrap_or(statement.len()));
        let hands_on = body.trim_end().lines().last().is_some_and(|line| line.trim().starts_with("pub"));
        for path in expand(import.trim_start_matches("use ").trim()) {
            let (path, name) =
                path.split_once(" as ").unwrap_or((&path, path.rsplit("::").next().unwrap_or(&path)));
            found.push((path.to_owned(), hands_on.then(|| name.to_owned())));
        }
        for root in ["crate::", "super::"] {
            for (at, _) in body.match_indices(root) {
                let inside =
                    body[..at].ends_with([':', '_', '$']) || body[..at].ends_with(char::is_alphanumeric);
                let end = |char: char| !char.is_alphanumeric() && char != '_' && char != ':';
                let path = body[at..].split(end).next().unwrap_or_default();
                if !inside {
                    found.push((path.trim_end_matches(':').to_owned(), None));
                }
            }
        }
    }
    found
}

/// Expands `a::{b, c::{d, e}}` to three paths.
fn expand(import: &str) -> Vec<String> {
    let Some((before, inner)) = import.split_once('{') else {
        return if import.is_empty() { Vec::new() } else { vec![import.trim().to_owned()] };
    };
    let inner = inner.trim_end().strip_suffix('}').unwrap_or(inner);
    let (mut paths, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, char) in inner.char_indices().chain([(inner.len(), ',')]) {
        match char {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                paths.extend(
                    expand(inner[begin..at].trim()).into_iter().map(|path| format!("{before}{path}")),
                );
                begin = at + 1;
            }
            _ => {}
        }
    }
    paths
}

/// Returns a path from the crate's root; `None` for a path into another crate.
fn absolute(files: &BTreeMap<String, String>, file: &str, path: &str) -> Option<String> {
    let path = path.replace("::", "/");
    let mut path = path.strip_suffix("/self").unwrap_or(&path);
    let mut base = file;
    if let Some(rest) = path.strip_prefix("crate/") {
        return Some(rest.to_owned());
    }
    if !path.starts_with("super/") && !path.starts_with("self/") {
        let child = join(file, path.split('/').next()?);
        return files.contains_key(&child).then(|| join(file, path));
    }
    path = path.strip_prefix("self/").unwrap_or(path);
    while let Some(rest) = path.strip_prefix("super/") {
        (base, path) = (base.rsplit_once('/').map_or("", |(parent, _)| parent), rest);
    }
    Some(join(base, path))
}

fn join(module: &str, name: &str) -> String {
    if module.is_empty() || name.is_empty() { format!("{module}{name}") } else { format!("{module}/{name}") }
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
