//! The files of a crate import each other in no circle. [`super::map`] checks the imports of rooms.
//!
//! Within each folder of a crate, the entries import each other in no circle. An entry is a file, a folder with all
//! files below it, or the folder's own file (`mod.rs`, or `a.rs` beside the folder `a`; `lib.rs` and `main.rs` in
//! `src`). So no files import each other in a circle, and a folder can be read after those that it imports.
//!
//! A file imports another if its code names an item that the other defines: by `use`, by a path such as
//! `crate::a::b` or `child::f`, or by a name that it re-exports and uses itself.
//!
//! * **A re-exported name counts for the file that defines it.** `pub use child::A` in `mod.rs` is no import of
//!   `child`, and a sibling that says `super::A` imports `child`, not `mod.rs`.
//! * `mod child;` is no import. Nor is the import of a module: a name in that module is.
//! * So `mod.rs` and its child are a circle only if each uses an item of the other.
//! * Tests and code that only simulations compile (`cfg` with `test`, `loom`, …) do not count. All features do.
//! * Calls of methods name no file, so an `impl` may be above its type. Macros count where a path or `use` names them.

mod circles;
mod engine;
mod graph;
mod names;
mod roots;

use crate::source::{Finding, Source, without_dots};
use anyhow::Result;
use circles::{Circle, OWN, circles};
use graph::Graph;
use roots::roots;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::Table;

/// Modules of the engine by which it calls its optional parts, nested guests and the oracle. They name the types of
/// their callers, so an import of one does not count.
const SEAMS: [&str; 2] = ["hooks", "oracle"];
const ENGINE: &str = "slat/src/lib.rs";

/// Checks all crates of these packages.
pub fn check(sources: &[Source], manifests: &[(PathBuf, Table)]) -> Result<Vec<Finding>> {
    let texts: BTreeMap<&Path, &Source> = sources.iter().map(|source| (&*source.path, source)).collect();
    let read = |path: &Path| texts.get(&*without_dots(path)).map(|source| source.lines.join("\n"));
    let roots = roots(manifests, &texts.keys().copied().collect());
    let mut findings = Vec::new();
    for root in &roots {
        let mut graph = Graph::read(root, &read)?;
        if root == Path::new(ENGINE) {
            let is_seam = |module: &str| SEAMS.contains(&module.split("::").next().unwrap_or_default());
            graph.imports.retain(|(from, to), _| is_seam(from) || !is_seam(to));
            let wrong = engine::disorder(&graph).into_iter();
            findings.extend(wrong.map(|what| Finding { path: root.clone(), line: 1, what }));
        }
        findings.extend(found(&graph));
    }
    Ok(findings)
}

/// Returns the circles of a crate.
fn found(graph: &Graph) -> Vec<Finding> {
    circles(graph).iter().map(|circle| describe(graph, circle)).collect()
}

/// Describes a circle, at the first import to cut.
fn describe(graph: &Graph, circle: &Circle) -> Finding {
    let own = graph.files[&circle.folder].file_name().unwrap_or_default().to_string_lossy();
    let entries = circle.entries.iter().map(|entry| if entry == OWN { &own } else { entry.as_str() });
    let entries = entries.collect::<Vec<_>>().join(", ");
    let cuts = circle.cuts.iter().map(|cut| {
        let (name, line) = &graph.imports[cut];
        let (from, to) = (graph.files[&cut.0].display(), graph.files[&cut.1].display());
        format!("\n    {from}:{line}: {name}, of {to}")
    });
    let cuts = cuts.collect::<String>();
    let what = format!("{entries} import each other in a circle, but for:{cuts}");
    // A circle has at least one import to cut.
    let (path, line) = (&graph.files[&circle.cuts[0].0], graph.imports[&circle.cuts[0]].1);
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

    fn told(graph: &Graph) -> Vec<String> {
        found(graph).iter().map(ToString::to_string).collect()
    }

    const CIRCLE: [(&str, &str); 3] = [
        ("src/lib.rs", "mod a;\nmod b;\n"),
        ("src/a.rs", "use crate::b::B;\npub struct A(B);\n"),
        ("src/b.rs", "\npub struct B(Option<Box<super::a::A>>);\n"),
    ];

    #[test]
    fn a_circle_is_reported_with_the_import_to_cut() {
        let [found] = &told(&graph(&CIRCLE))[..] else { panic!() };
        assert!(found.starts_with("src/a.rs:1: a, b import each other in a circle"), "{found}");
        assert!(found.ends_with("\n    src/a.rs:1: crate::b::B, of src/b.rs"), "{found}");
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
    fn names_of_items_fields_and_variants_are_no_imports() {
        let files = [
            (
                "src/lib.rs",
                "mod a;\nmod b;\npub use a::{A, f};\nenum E { A, B(u8) }\nimpl E { fn f(&self) { self.f() } }",
            ),
            ("src/a.rs", "pub struct A;\npub fn f() {}"),
            ("src/b.rs", "pub enum B { C(crate::A), D = crate::a::f() as isize }\ntype P = *const super::E;"),
        ];
        assert_eq!(imports(&files), ["b imports ", "b imports a"]);
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
