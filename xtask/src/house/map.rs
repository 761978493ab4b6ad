//! Rules for the documents that lead through the repository: the map of the rooms, and paths in texts.

use super::{Finding, Source, read_all};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use toml::{Table, Value};

/// The document with the map.
pub const MAP: &str = "ARCHITECTURE.md";

/// The manifests of the repository, parsed.
pub fn manifests() -> Result<Vec<(PathBuf, Table)>> {
    let texts = read_all(Path::new("."), "Cargo.toml")?;
    let parse = |text: Source| {
        let table = text.lines.join("\n").parse().with_context(|| text.path.display().to_string())?;
        Ok((text.path, table))
    };
    texts.into_iter().map(parse).collect()
}

/// The map has a row for each room that has a manifest. The row names the rooms that the room's manifests import by
/// path, except for tests, and no other room.
pub fn rooms(map: &Source, manifests: &[(PathBuf, Table)]) -> Vec<Finding> {
    let imports = imports(manifests);
    let mut findings = Vec::new();
    let mut rows = BTreeSet::new();
    for (at, line) in map.lines.iter().enumerate().filter(|(_, line)| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let Some([room, _, allowed, _]) = cells.get(1..5) else { continue };
        let named = |cell: &str| -> BTreeSet<String> {
            cell.split('`').skip(1).step_by(2).map(|name| name.trim_end_matches('/').to_owned()).collect()
        };
        let (room, allowed) = (named(room).into_iter().collect::<String>(), named(allowed));
        let found = imports.get(&room).cloned().unwrap_or_default();
        for wrong in found.symmetric_difference(&allowed) {
            let does = if found.contains(wrong) { "imports" } else { "does not import" };
            findings.push(map.finding(at, format!("{room}/ {does} {wrong}/")));
        }
        rows.insert(room);
    }
    let unlisted = imports.keys().filter(|room| !rows.contains(*room));
    findings.extend(unlisted.map(|room| map.finding(0, format!("the map has no row for {room}/"))));
    findings
}

/// The rooms that each room imports.
fn imports(manifests: &[(PathBuf, Table)]) -> BTreeMap<String, BTreeSet<String>> {
    let mut imports = BTreeMap::<String, BTreeSet<String>>::new();
    for (path, manifest) in manifests {
        let Some(room) = room(path) else { continue };
        let own = imports.entry(room.clone()).or_default();
        for (name, dependency) in dependencies(manifest) {
            let target = if dependency.get("workspace").is_some() {
                shared(manifests, path, name)
            } else {
                target(path, dependency)
            };
            own.extend(target.filter(|target| *target != room));
        }
    }
    imports
}

/// Returns the folder at the root that has this file; `None` for a file at the root.
fn room(path: &Path) -> Option<String> {
    let mut parts = path.components();
    let first = parts.next()?;
    parts.next().map(|_| first.as_os_str().to_string_lossy().into_owned())
}

/// All dependencies of a manifest except those of its tests.
fn dependencies(manifest: &Table) -> impl Iterator<Item = (&String, &Value)> {
    let targets = manifest.get("target").and_then(Value::as_table).into_iter().flatten();
    let tables = targets.filter_map(|(_, target)| target.as_table()).chain([manifest]);
    let lists = tables.flat_map(|table| ["dependencies", "build-dependencies"].map(|kind| table.get(kind)));
    lists.flatten().filter_map(Value::as_table).flatten()
}

/// Returns the room of a dependency by path; `None` for a dependency from a registry.
fn target(manifest: &Path, dependency: &Value) -> Option<String> {
    let mut target = manifest.parent()?.to_owned();
    for part in Path::new(dependency.get("path")?.as_str()?).components() {
        match part {
            Component::ParentDir => _ = target.pop(),
            part => target.push(part),
        }
    }
    room(&target.join("Cargo.toml"))
}

/// The room of a dependency that the workspace around this manifest names.
fn shared(manifests: &[(PathBuf, Table)], path: &Path, name: &str) -> Option<String> {
    let above = path.ancestors().skip(1).map(|folder| folder.join("Cargo.toml"));
    let mut above = above.filter_map(|path| manifests.iter().find(|(other, _)| *other == path));
    let (root, workspace) = above.find_map(|(path, table)| Some((path, table.get("workspace")?)))?;
    target(root, workspace.get("dependencies")?.get(name)?)
}

/// A path in a text, between backquotes and from the root of the repository, exists. Patterns and code blocks are
/// exempt.
pub fn paths(text: &Source) -> Vec<Finding> {
    const ROOMS: [&str; 9] =
        ["slat/", "crates/", "cli/", "measure/", "proof/", "clients/", "pager/", "book/", "xtask/"];
    let mut in_block = false;
    text.find(text.lines.len(), |at, _| {
        let line = &text.lines[at];
        in_block ^= line.trim_start().starts_with("```");
        let spans = line.split('`').skip(1).step_by(2).filter(|_| !in_block);
        let paths = spans.filter_map(|span| span.split([' ', ':', ',']).next());
        let mut paths = paths.filter(|path| ROOMS.iter().any(|room| path.starts_with(room)));
        let is_pattern = |path: &str| path.contains(['*', '{', '<', '[']) || path.contains("NAME");
        let gone = paths.find(|path| !is_pattern(path) && !Path::new(path).exists())?;
        Some(format!("no {gone}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rows: &str) -> Vec<String> {
        let manifests = [
            ("Cargo.toml", "[workspace.dependencies]\na = { path = \"a\" }\nc = \"1\""),
            ("a/Cargo.toml", "[dependencies]\nc.workspace = true\n[dev-dependencies]\nb.path = \"../b\""),
            (
                "b/x/Cargo.toml",
                "[dependencies]\na.workspace = true\n[target.'cfg(y)'.dependencies]\nz.path = \"../z\"",
            ),
            ("d/x/y/Cargo.toml", "[build-dependencies]\nz = { path = \"../../../b/z\" }"),
        ];
        let parse = |(path, text): (&str, &str)| (PathBuf::from(path), text.parse().unwrap());
        let findings = rooms(&Source::new(MAP, rows), &manifests.map(parse));
        findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn the_map_says_what_each_room_imports() {
        let right = "| `a/` | it | – | x |\n| `b/` | it | `a/` (x) | x |\n| `d/` | it | `b/` | x |\n";
        assert_eq!(found(right), [""; 0]);
        assert_eq!(found(&right.replace("`a/` (x)", "–")), ["b/ imports a/"]);
        assert_eq!(found(&right.replace('–', "`b/`")), ["a/ does not import b/"]);
        assert_eq!(found(&right.replace("| `d/`", "| d")), ["the map has no row for d/"]);
    }

    #[test]
    fn a_path_in_a_text_exists() {
        // The tests run in xtask/.
        let found = |text: &str| paths(&Source::new("a.md", text)).len();
        assert_eq!(found("`slat/src/nothing.rs`, `crates/x`"), 1);
        assert_eq!(found("`slat/src/*.rs`, `src/main.rs`, slat/nothing, `measure/NAME.rs`"), 0);
        assert_eq!(found("```\n`slat/src/nothing.rs`\n```"), 0);
    }
}
