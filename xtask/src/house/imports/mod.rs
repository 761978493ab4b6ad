//! Imports go downwards: within a crate in no circle, and between packages by the table of rooms.
//!
//! # The rule for files
//! Within each folder of a crate, the entries import each other in no circle. An entry is a file, a folder with all
//! that is below it, or the folder's own file (`mod.rs`, or `a.rs` beside the folder `a`; `lib.rs` and `main.rs` in
//! `src`). So no files import each other in a circle, and a folder can be read after those that it imports.
//!
//! A file imports another if its code names an item that the other defines: by `use`, by a path such as
//! `crate::a::b` or `child::f`, or by a name that it hands on and uses itself.
//!
//! * **A re-exported name counts for the file that defines it.** `pub use child::A` in `mod.rs` is no import of
//!   `child`, and a sibling that says `super::A` imports `child`, not `mod.rs`.
//! * `mod child;` is no import. Nor is the import of a module: what is named in it is.
//! * So `mod.rs` and its child are a circle only if each uses an item of the other.
//! * Tests and code that only simulations compile (`cfg` with `test`, `loom`, …) do not count. All features do.
//! * Calls of methods name no file, so an `impl` may be above its type. Macros count where a path or `use` names them.
//!
//! # The rule for packages
//! [`packages`] has the rooms, and which each may import.

mod circles;
mod engine;
mod graph;
mod names;
mod packages;
mod standing;

use crate::source::{Finding, Source};
use anyhow::Result;
use circles::{Circle, OWN, circles};
use graph::Graph;
use packages::without_dots;
use standing::{LIST, STANDING, Standing};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Modules of the engine by which it calls its optional parts, nested guests and the oracle. They name the types of
/// their callers, so an import of one does not count.
const SEAMS: [&str; 2] = ["hooks", "oracle"];
const ENGINE: &str = "slat/src/lib.rs";

/// Checks all crates and packages of the repository.
pub fn check(sources: &[Source]) -> Result<Vec<Finding>> {
    let texts: BTreeMap<&Path, &Source> = sources.iter().map(|source| (&*source.path, source)).collect();
    let read = |path: &Path| texts.get(&*without_dots(path)).map(|source| source.lines.join("\n"));
    let packages = packages::read(Path::new("."))?;
    let mut findings = Vec::new();
    for package in &packages {
        for import in packages::upwards(package)? {
            let (folder, import) = (package.folder.display(), import.display());
            let what =
                format!("{folder} may not import {import}: ROOMS of xtask/src/house/imports/packages.rs");
            findings.push(Finding { path: package.folder.join("Cargo.toml"), line: 1, what });
        }
    }
    let roots: BTreeSet<&PathBuf> = packages.iter().flat_map(|package| &package.roots).collect();
    for root in &roots {
        let mut graph = Graph::read(root, &read)?;
        if root.as_path() == Path::new(ENGINE) {
            let is_seam = |module: &str| SEAMS.contains(&module.split("::").next().unwrap_or_default());
            graph.imports.retain(|(from, to), _| is_seam(from) || !is_seam(to));
            findings.extend(engine::disorder(&graph).into_iter().map(|what| at_root(root, what)));
        }
        let standing = STANDING.iter().filter(|standing| Path::new(standing.root) == root.as_path());
        findings.extend(judge(root, &graph, &standing.collect::<Vec<_>>()));
    }
    let gone = STANDING.iter().map(|standing| Path::new(standing.root));
    let gone = gone.filter(|path| !roots.iter().any(|root| root.as_path() == *path));
    findings.extend(gone.map(|path| at_root(path, format!("no such crate any more: {LIST}"))));
    Ok(findings)
}

fn at_root(root: &Path, what: String) -> Finding {
    Finding { path: root.to_owned(), line: 1, what }
}

/// Returns the circles of a crate that are larger than listed, and lists of circles that are no more.
fn judge(root: &Path, graph: &Graph, standing: &[&Standing]) -> Vec<Finding> {
    let mut folders: BTreeMap<String, Vec<Circle>> =
        standing.iter().map(|listed| (listed.folder.to_owned(), Vec::new())).collect();
    for circle in circles(graph) {
        folders.entry(circle.folder.clone()).or_default().push(circle);
    }
    let mut findings = Vec::new();
    for (folder, circles) in &folders {
        let listed = standing.iter().find(|listed| listed.folder == folder);
        let sizes = listed.map_or(&[][..], |listed| listed.sizes);
        // A folder's largest circle comes first, in both.
        let may = |at: usize| sizes.get(at).copied().unwrap_or(0);
        let larger = circles.iter().enumerate().filter(|(at, circle)| circle.entries.len() > may(*at));
        findings.extend(larger.map(|(_, circle)| describe(graph, circle)));
        if circles.len() < sizes.len() {
            let (now, before) = (circles.len(), sizes.len());
            findings.push(at_root(root, format!("{now} circles in `{folder}`, not {before}: {LIST}")));
        }
    }
    findings
}

/// Describes a circle, at the first import to cut.
fn describe(graph: &Graph, circle: &Circle) -> Finding {
    let own = graph.files[&circle.folder].file_name().unwrap_or_default().to_string_lossy();
    let entries = circle.entries.iter().map(|entry| if entry == OWN { &own } else { entry.as_str() });
    let entries = entries.collect::<Vec<_>>().join(", ");
    let mut what = format!("{entries} import each other in a circle, but for:");
    for cut in &circle.cuts {
        let (name, line) = &graph.imports[cut];
        what += &format!(
            "\n    {}:{line}: {name}, of {}",
            graph.files[&cut.0].display(),
            graph.files[&cut.1].display()
        );
    }
    let (path, line) = circle
        .cuts
        .first()
        .map_or((&graph.files[&circle.folder], 1), |cut| (&graph.files[&cut.0], graph.imports[cut].1));
    Finding { path: path.clone(), line, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: &[(&str, &str)]) -> Graph {
        let read = |path: &Path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path);
            file.map(|(_, text)| (*text).to_owned())
        };
        Graph::read(Path::new(files[0].0), &read).unwrap()
    }

    fn found(graph: &Graph, standing: &[Standing]) -> Vec<String> {
        let standing: Vec<&Standing> = standing.iter().collect();
        judge(Path::new("src/lib.rs"), graph, &standing)
            .into_iter()
            .map(|finding| finding.to_string())
            .collect()
    }

    const CIRCLE: [(&str, &str); 3] = [
        ("src/lib.rs", "mod a;\nmod b;\n"),
        ("src/a.rs", "use crate::b::B;\npub struct A(B);\n"),
        ("src/b.rs", "\npub struct B(Option<Box<super::a::A>>);\n"),
    ];

    #[test]
    fn a_circle_is_reported_with_the_import_to_cut() {
        let [found] = &found(&graph(&CIRCLE), &[])[..] else { panic!() };
        assert!(found.starts_with("src/a.rs:1: a, b import each other in a circle"), "{found}");
        assert!(found.ends_with("\n    src/a.rs:1: crate::b::B, of src/b.rs"), "{found}");
    }

    #[test]
    fn a_circle_that_is_listed_may_only_shrink() {
        let listed = |sizes| [Standing { root: "src/lib.rs", folder: "", sizes }];
        assert_eq!(found(&graph(&CIRCLE), &listed(&[2])), [""; 0]);
        assert_eq!(found(&graph(&CIRCLE), &listed(&[3])), [""; 0]);
        assert_eq!(found(&graph(&CIRCLE), &listed(&[1])).len(), 1, "larger");
        assert_eq!(found(&graph(&CIRCLE), &listed(&[2, 2])).len(), 1, "one of two is gone");
        let cut = [CIRCLE[0], CIRCLE[1], ("src/b.rs", "pub struct B;")];
        assert_eq!(found(&graph(&cut), &[]), [""; 0]);
        assert_eq!(found(&graph(&cut), &listed(&[2])).len(), 1, "none is left");
    }

    fn imports(files: &[(&str, &str)]) -> Vec<String> {
        graph(files).imports.keys().map(|(from, to)| format!("{from} imports {to}")).collect()
    }

    #[test]
    fn a_name_counts_for_the_file_that_defines_it() {
        let files = [
            ("src/lib.rs", "pub mod a;\nmod b;\nmod c;\npub use b::Deep as Renamed;"),
            ("src/a.rs", "use crate::{Renamed, c::*};\nfn f() -> Seen { crate::b::g() }"),
            ("src/b/mod.rs", "mod deep;\npub use deep::{Deep, g};"),
            ("src/b/deep.rs", "pub struct Deep;\npub fn g() {}"),
            ("src/c.rs", "pub struct Seen;\npub struct Unseen;"),
        ];
        assert_eq!(imports(&files), ["a imports b::deep", "a imports c"]);
    }

    #[test]
    fn a_file_and_its_child_are_a_circle_if_each_uses_an_item_of_the_other() {
        let files =
            |parent| [("src/lib.rs", parent), ("src/a.rs", "use super::Own;\npub struct Child(Own);")];
        let handed_on = "mod a;\npub use a::Child;\npub struct Own;";
        assert_eq!(imports(&files(handed_on)), ["a imports "]);
        let used = "mod a;\npub use a::Child;\npub struct Own;\nfn f(_: Child) {}";
        assert_eq!(imports(&files(used)), [" imports a", "a imports "]);
        let by_path = "mod a;\npub struct Own;\nfn f(_: a::Child) {}";
        assert_eq!(imports(&files(by_path)).len(), 2);
    }

    #[test]
    fn tests_comments_texts_methods_and_modules_are_no_imports() {
        let files = [
            ("src/lib.rs", "mod a;\nmod b;\n#[cfg(test)]\nmod tests;"),
            (
                "src/a.rs",
                "use crate::b;\n// crate::b::B\nfn f(b: u8) { b.g(\"crate::b::B\") }\n\
                 #[cfg(test)]\nuse crate::b::{B};\n#[cfg(all(test, unix))]\nmod tests { use crate::b::B; }\n\
                 #[cfg(not(test))]\nfn own() {}",
            ),
            ("src/b.rs", "#[cfg(not(test))]\nuse crate::a::own;\npub struct B;"),
        ];
        assert_eq!(imports(&files), ["b imports a"]);
    }
}
