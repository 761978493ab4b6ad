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

use crate::source::{Finding, Source};
use anyhow::Result;
use circles::{Circle, circles};
use graph::Graph;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Circles that still stand: a crate, a module with a folder, and the number of entries of each of its circles. Each
/// must be as large as listed. The list may only shrink.
const STANDING: &[(&str, &str, &[usize])] = &[];

/// Modules of the engine by which it calls its optional parts, nested guests and the oracle. They name the types of
/// those that call them, so an import of one does not count.
const SEAMS: [&str; 2] = ["hooks", "oracle"];
const ENGINE: &str = "slat/src/lib.rs";

/// Checks all crates and packages of the repository.
pub fn check(sources: &[Source]) -> Result<Vec<Finding>> {
    let texts: BTreeMap<&Path, &Source> = sources.iter().map(|source| (&*source.path, source)).collect();
    let read = |path: &Path| texts.get(normal(path).as_path()).map(|source| source.lines.join("\n"));
    let packages = packages::read(Path::new("."))?;
    let mut findings = Vec::new();
    for package in &packages {
        let manifest = package.folder.join("Cargo.toml");
        for import in packages::upwards(package)? {
            let what = format!(
                "{} may not import {}: xtask/src/house/imports/packages.rs",
                package.folder.display(),
                import.display()
            );
            findings.push(Finding { path: manifest.clone(), line: 1, what });
        }
    }
    let roots: BTreeSet<&Path> =
        packages.iter().flat_map(|package| &package.roots).map(PathBuf::as_path).collect();
    for root in roots {
        let mut graph = Graph::read(root, &read)?;
        if root == Path::new(ENGINE) {
            let is_seam = |module: &str| SEAMS.contains(&module.split("::").next().unwrap_or_default());
            graph.imports.retain(|(from, to), _| is_seam(from) || !is_seam(to));
            let wrong = engine::disorder(&graph).into_iter();
            findings.extend(wrong.map(|what| Finding { path: root.to_owned(), line: 1, what }));
        }
        findings.extend(judge(&root.to_string_lossy(), &graph, STANDING));
    }
    let known = |(root, ..): &&(&str, &str, &[usize])| !Path::new(root).exists();
    let unknown = STANDING.iter().filter(known);
    findings.extend(unknown.map(|(root, ..)| stale(root, format!("no such crate in {LIST}"))));
    Ok(findings)
}

const LIST: &str = "STANDING of xtask/src/house/imports/mod.rs";

fn stale(root: &str, what: String) -> Finding {
    Finding { path: root.into(), line: 1, what }
}

/// Returns the circles of a crate that are not listed, and what is listed without a circle.
fn judge(root: &str, graph: &Graph, standing: &[(&str, &str, &[usize])]) -> Vec<Finding> {
    let mut folders = BTreeMap::<String, Vec<Circle>>::new();
    for circle in circles(graph) {
        folders.entry(circle.folder.clone()).or_default().push(circle);
    }
    let listed = standing.iter().filter(|(of, ..)| *of == root);
    let mut listed: BTreeMap<&str, &[usize]> = listed.map(|(_, folder, sizes)| (*folder, *sizes)).collect();
    let mut findings = Vec::new();
    for (folder, circles) in &folders {
        let may = listed.remove(&**folder).unwrap_or_default();
        let sizes: Vec<usize> = circles.iter().map(|circle| circle.entries.len()).collect();
        let larger = circles
            .iter()
            .enumerate()
            .filter(|(at, circle)| may.get(*at).is_none_or(|&most| most < circle.entries.len()));
        let larger: Vec<Finding> = larger.map(|(_, circle)| describe(graph, circle)).collect();
        if larger.is_empty() && sizes != may {
            findings.push(stale(
                root,
                format!("fewer in a circle in `{folder}`: {sizes:?}, not {may:?}, in {LIST}"),
            ));
        }
        findings.extend(larger);
    }
    findings.extend(
        listed
            .keys()
            .map(|folder| stale(root, format!("no circle in `{folder}` any more: take it from {LIST}"))),
    );
    findings
}

/// Describes a circle, at the first import to cut.
fn describe(graph: &Graph, circle: &Circle) -> Finding {
    let place = |cut: &(String, String)| {
        let (name, line) = &graph.imports[cut];
        (graph.files[&cut.0].clone(), *line, name.clone())
    };
    let cuts: Vec<_> = circle.cuts.iter().map(place).collect();
    let entries: Vec<&str> = circle.entries.iter().map(String::as_str).collect();
    let text = cuts.iter().map(|(path, line, name)| format!("\n    {}:{line}: {name}", path.display()));
    let (count, entries) = (entries.len(), entries.join(", "));
    let what = format!(
        "{count} entries of a folder import each other in a circle: {entries}. Without these imports they do not:{}",
        text.collect::<String>()
    );
    let (path, line, _) = cuts[0].clone();
    Finding { path, line, what }
}

/// Returns a path without `..`.
fn normal(path: &Path) -> PathBuf {
    packages::normal(Path::new(""), path)
}
