//! `house --lines`: the size of `slat/src`.
//!
//! **A code line** is a line of shipped code that is not blank and not only a comment. Tests are not shipped: files named
//! `tests.rs` or `*_tests.rs`, folders named so, and what `cfg` leaves out without `test`, `loom`, `shuttle`, `explored`,
//! `virtual_time`, `tsan` and `miri`. All features count.
//!
//! **A public function** is a `pub fn` of a type that users can name, or a free one in a public module or re-exported:
//! shipped, neither hidden from the documentation nor behind the feature `baselines`, and not in `crates/slots/src`. Functions of
//! traits have no `pub` and are not counted.

use crate::source::Source;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const ROOT: &str = "slat/src";
/// The folders of nested guests, which the feature `nested` leaves out.
const NESTED: [&str; 2] = ["nested", "shadows"];
/// Configurations of tests and of simulations.
const OF_TESTS: [&str; 7] = ["test", "loom", "shuttle", "explored", "virtual_time", "tsan", "miri"];

/// Prints the code lines of each folder, and the number of public functions.
pub fn print(sources: &[Source]) {
    let files = files(sources);
    let mut folders = BTreeMap::<&str, usize>::new();
    for (path, file) in &files {
        *folders.entry(folder(path)).or_default() += file.lines.len();
    }
    println!("code lines of {ROOT}:");
    for (folder, lines) in &folders {
        println!("  {folder:<12}{lines:>6}");
    }
    let all: usize = folders.values().sum();
    let nested: usize = NESTED.iter().filter_map(|folder| folders.get(folder)).sum();
    println!("  {:<12}{all:>6}, without {} {}", "in all", NESTED.join(" and "), all - nested);
    println!("public functions of slat: {}", functions(&files).len());
}

/// Returns the engine's files that are shipped.
fn files(sources: &[Source]) -> BTreeMap<&Path, Shipped> {
    let files = sources.iter().filter(|file| file.path.starts_with(ROOT));
    let mut files = files.map(|file| (&*file.path, shipped(file))).collect();
    let left_out = left_out(&files);
    files.retain(|path, _| !left_out.iter().any(|gone| path.starts_with(gone)));
    files
}

/// Returns the first folder below [`ROOT`]; a module's file counts to the module's folder.
fn folder(path: &Path) -> &str {
    let below = path.strip_prefix(ROOT).unwrap_or(path);
    let first = below.iter().next().and_then(|part| part.to_str()).unwrap_or_default();
    let module = first.trim_end_matches(".rs");
    if below.components().count() > 1 || Path::new(ROOT).join(module).is_dir() { module } else { "(files)" }
}

/// The shipped code of a file.
struct Shipped {
    /// Its code lines.
    lines: Vec<String>,
    /// Modules of the file that have a file of their own: whether public, and whether shipped.
    modules: Vec<(String, bool, bool)>,
}

/// Returns what of a file is shipped, if the file is.
fn shipped(file: &Source) -> Shipped {
    let mut lines = Vec::new();
    let mut modules = Vec::new();
    let mut is_in = true;
    let mut depth = 0;
    let both = file.code.iter().zip(&file.lines).take(file.own());
    for (line, text) in both.filter(|(code, _)| !code.trim().is_empty()) {
        let code = line.trim();
        if is_in && depth == 0 {
            let condition = code.strip_prefix("#[cfg(").and_then(|rest| rest.strip_suffix(")]"));
            is_in = condition.is_none_or(|condition| holds(condition) != Some(false));
            if let Some((name, public)) = module(code).filter(|_| is_in) {
                let is_stable = !lines.last().is_some_and(|line: &String| is_apart(line));
                modules.push((name, public && is_stable, true));
            }
            if is_in {
                // With the names of features.
                lines.push(if condition.is_some() { text.clone() } else { line.clone() });
            }
            continue;
        }
        // Up to the end of the item that is left out.
        if let Some((name, public)) = module(code) {
            modules.push((name, public, false));
        }
        if code.starts_with("#[") {
            continue;
        }
        let count = |brackets: [char; 3]| code.matches(brackets).count() as isize;
        depth += count(['{', '(', '[']) - count(['}', ')', ']']);
        if depth <= 0 && code.ends_with(['}', ';', ',']) {
            (is_in, depth) = (true, 0);
        }
    }
    Shipped { lines, modules }
}

/// Returns the name of a module with a file of its own, and whether it is public.
fn module(code: &str) -> Option<(String, bool)> {
    let (before, name) = code.strip_suffix(';')?.split_once("mod ")?;
    matches!(before, "" | "pub " | "pub(crate) " | "pub(super) ").then(|| (name.to_owned(), before == "pub "))
}

/// Whether a condition of `cfg` holds in what is shipped; `None` if it depends on the build.
fn holds(condition: &str) -> Option<bool> {
    let condition = condition.trim();
    let inner = |name: &str| condition.strip_prefix(name)?.strip_suffix(')');
    if let Some(one) = inner("not(") {
        return holds(one).map(|holds| !holds);
    }
    let (all, parts) = match (inner("all("), inner("any(")) {
        (Some(parts), _) => (true, parts),
        (_, Some(parts)) => (false, parts),
        _ => return OF_TESTS.contains(&condition).then_some(false),
    };
    let parts: Vec<_> = split(parts).into_iter().map(holds).collect();
    if parts.contains(&Some(!all)) {
        return Some(!all);
    }
    (!parts.contains(&None)).then_some(all)
}

/// Splits at commas outside brackets.
fn split(parts: &str) -> Vec<&str> {
    let (mut depth, mut start, mut split) = (0, 0, Vec::new());
    for (at, char) in parts.char_indices() {
        match char {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                split.push(&parts[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    split.push(&parts[start..]);
    split
}

/// Returns the files, and the folders, of modules that are not shipped.
fn left_out(files: &BTreeMap<&Path, Shipped>) -> BTreeSet<PathBuf> {
    let mut gone = BTreeSet::new();
    for (path, file) in files {
        for (name, ..) in file.modules.iter().filter(|(.., shipped)| !shipped) {
            let is_also_shipped = file.modules.iter().any(|(other, _, shipped)| other == name && *shipped);
            if !is_also_shipped {
                let folder = home(path).join(name);
                gone.extend([folder.with_extension("rs"), folder]);
            }
        }
    }
    gone
}

/// Returns the folder of the modules of a file.
fn home(path: &Path) -> PathBuf {
    let is_folder = path.ends_with("mod.rs") || path == Path::new(ROOT).join("lib.rs");
    if is_folder { path.with_file_name("") } else { path.with_extension("") }
}

/// Returns the public functions, by file and line of code.
fn functions<'f>(files: &'f BTreeMap<&Path, Shipped>) -> Vec<(&'f Path, &'f str)> {
    let root = Path::new(ROOT).join("lib.rs");
    let mut public = BTreeSet::from([root.clone()]);
    let mut next = vec![root];
    while let Some(path) = next.pop() {
        let Some(file) = files.get(&*path) else { continue };
        for (name, ..) in file.modules.iter().filter(|(_, public, shipped)| *public && *shipped) {
            let folder = home(&path).join(name);
            let found = [folder.with_extension("rs"), folder.join("mod.rs")];
            next.extend(
                found.into_iter().filter(|path| files.contains_key(&**path) && public.insert(path.clone())),
            );
        }
    }
    // Names of items that users can reach.
    let mut names = BTreeSet::new();
    for path in &public {
        names.extend(declared(&files[&**path].lines));
        names.extend(used(&files[&**path].lines));
    }
    let mut functions = Vec::new();
    for (path, file) in files {
        let (mut of, mut is_hidden) = (None, false);
        for (at, line) in file.lines.iter().enumerate() {
            let code = line.trim();
            if line.starts_with("impl") {
                of = implemented(&file.lines[at..]);
            } else if line.starts_with('}') {
                of = None;
            }
            if code.starts_with("#[") {
                is_hidden |= is_apart(line);
                continue;
            }
            let is_reachable = match (&of, line.starts_with("pub ")) {
                (Some(of), false) => names.contains(of),
                (None, true) => {
                    public.contains(*path) || function(code).is_some_and(|name| names.contains(name))
                }
                _ => false,
            };
            if function(code).is_some() && is_reachable && !is_hidden {
                functions.push((*path, code));
            }
            is_hidden = false;
        }
    }
    functions
}

/// Whether an attribute makes an item no part of the stable API.
fn is_apart(attribute: &str) -> bool {
    let condition = attribute.trim().strip_prefix("#[cfg(").filter(|condition| !condition.contains("not("));
    attribute.trim() == "#[doc(hidden)]"
        || condition.is_some_and(|condition| condition.contains("\"baselines\""))
}

/// Returns the name of a public function that begins on this line.
fn function(code: &str) -> Option<&str> {
    let (before, rest) = code.strip_prefix("pub ")?.split_once("fn ")?;
    let is_function = before.split_whitespace().all(|word| ["const", "unsafe", "async"].contains(&word));
    is_function.then(|| rest.split(['(', '<']).next())?
}

/// Returns the name of the type of an inherent implementation, whose head begins with these lines.
fn implemented(lines: &[String]) -> Option<String> {
    let end = lines.iter().position(|line| line.contains('{'))?;
    let head = lines[..=end].join(" ");
    let mut rest = head.strip_prefix("impl")?;
    if rest.starts_with('<') {
        let mut depth = 0;
        let end = rest.char_indices().find(|(_, char)| {
            depth += isize::from(*char == '<') - isize::from(*char == '>');
            depth == 0
        });
        rest = &rest[end?.0 + 1..];
    }
    let name = rest.split('{').next()?.split(" where ").next()?;
    if name.contains(" for ") {
        return None;
    }
    Some(name.split('<').next()?.rsplit("::").next()?.trim().to_owned())
}

/// Returns the names of the public types that these lines declare.
fn declared(lines: &[String]) -> impl Iterator<Item = String> {
    lines.iter().filter_map(|line| {
        let (what, rest) = line.strip_prefix("pub ")?.split_once(' ')?;
        let is_type = ["struct", "enum", "trait", "type", "union"].contains(&what);
        is_type.then(|| {
            rest.split(|char: char| !char.is_alphanumeric() && char != '_').next().map(str::to_owned)
        })?
    })
}

/// Returns the names that these lines re-export.
fn used(lines: &[String]) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_open = false;
    for (at, line) in lines.iter().enumerate() {
        is_open |= line.starts_with("pub use ") && !(at > 0 && is_apart(&lines[at - 1]));
        if is_open {
            let words = line.split(|char: char| !char.is_alphanumeric() && char != '_');
            names.extend(words.filter(|word| !word.is_empty()).map(str::to_owned));
            is_open = !line.ends_with(';');
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_of_tests_hold_in_nothing_that_is_shipped() {
        for (condition, expected) in [
            ("test", Some(false)),
            ("not(loom)", Some(true)),
            ("all(test, not(any(loom, shuttle)))", Some(false)),
            ("not(any(loom, shuttle, virtual_time))", Some(true)),
            ("feature = ", None),
            ("all(feature = , any(test, explored))", Some(false)),
            ("not(all(feature = , any(test, explored)))", Some(true)),
            ("any(not(feature = ), miri)", None),
        ] {
            assert_eq!(holds(condition), expected, "{condition}");
        }
    }

    #[test]
    fn tests_are_no_code_and_private_functions_are_not_public() {
        let root = "// Text.\npub mod open;\nmod closed;\n#[cfg(test)]\nmod tried;\npub use closed::Known;\n";
        let open = "pub fn free() {}\n\npub struct Wide;\nimpl<T: Into<u64>> Wide<T> {\n    pub fn a(&self) {}\n    \
            fn b() {}\n    #[cfg(test)]\n    pub fn c(&self) {\n        d();\n    }\n    pub const fn e() {}\n}\n";
        let closed = "pub struct Known;\nimpl Known {\n    pub fn f() {}\n    #[doc(hidden)]\n    pub fn g() {}\n}\n\
            pub struct Unknown;\nimpl Unknown {\n    pub fn h() {}\n}\npub fn free() {}\n\
            impl From<u8> for Known {\n    fn from() {}\n}\n";
        let sources = [("lib", root), ("open", open), ("closed", closed), ("tried", closed)];
        let sources = sources.map(|(name, text)| Source::new(format!("{ROOT}/{name}.rs"), text));
        let files = files(&sources);
        let counts: Vec<_> = files.values().map(|file| file.lines.len()).collect();
        assert_eq!(counts, [14, 3, 7], "closed, lib, open");
        let functions: Vec<_> = functions(&files).into_iter().map(|(_, code)| function(code)).collect();
        assert_eq!(functions, ["f", "free", "a", "e"].map(Some));
    }
}
