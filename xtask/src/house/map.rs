//! Rules for the documents that lead through the repository: the map of the rooms, and paths in texts.

use crate::source::{Finding, Source, read_all, without_dots};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
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
/// path, except for tests, and no other room. Where names in brackets follow a room, the others below it are not
/// imported.
pub fn rooms(map: &Source, manifests: &[(PathBuf, Table)]) -> Vec<Finding> {
    let imports = imports(manifests);
    let mut findings = Vec::new();
    let mut rows = BTreeSet::new();
    for (at, line) in map.lines.iter().enumerate().filter(|(_, line)| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let Some([room, _, allowed, _]) = cells.get(1..5) else { continue };
        let (room, allowed) = (named(room).into_keys().collect::<String>(), named(allowed));
        let found = imports.get(&room).cloned().unwrap_or_default();
        let mut find = |what: String| findings.push(map.finding(at, format!("{room}/ {what}")));
        for (other, packages) in &found {
            match allowed.get(other) {
                None => find(format!("imports {other}/")),
                Some(only) => {
                    let more = packages.iter().filter(|package| !only.is_empty() && !only.contains(*package));
                    more.for_each(|package| find(format!("imports {package} of {other}/")));
                }
            }
        }
        for unused in allowed.keys().filter(|allowed| !found.contains_key(*allowed)) {
            find(format!("does not import {unused}/"));
        }
        rows.insert(room);
    }
    let unlisted = imports.keys().filter(|room| !rows.contains(*room));
    findings.extend(unlisted.map(|room| map.finding(0, format!("the map has no row for {room}/"))));
    findings
}

/// Names of packages, or of folders of packages, by room.
type Rooms = BTreeMap<String, BTreeSet<String>>;

/// Returns the rooms that a cell of the map names, with the names in brackets.
fn named(cell: &str) -> Rooms {
    let rooms = cell.split('`').skip(1).collect::<Vec<_>>();
    let rooms = rooms.chunks(2).map(|pair| {
        let below = pair.get(1).and_then(|after| after.trim_start().strip_prefix('(')?.split(')').next());
        let below = below.into_iter().flat_map(|names| names.split(',')).map(|name| name.trim().to_owned());
        (pair[0].trim_end_matches('/').to_owned(), below.collect())
    });
    rooms.collect()
}

/// Returns what each room imports of other rooms.
fn imports(manifests: &[(PathBuf, Table)]) -> BTreeMap<String, Rooms> {
    let mut imports = BTreeMap::<String, Rooms>::new();
    for (path, manifest) in manifests {
        let Some((own, _)) = room(path) else { continue };
        let rooms = imports.entry(own.clone()).or_default();
        for (name, dependency) in dependencies(manifest) {
            let target = if dependency.get("workspace").is_some() {
                shared(manifests, path, name)
            } else {
                target(path, dependency)
            };
            if let Some((other, package)) = target.filter(|(other, _)| *other != own) {
                rooms.entry(other).or_default().insert(package);
            }
        }
    }
    imports
}

/// Returns the folder at the root that has this file, and the name below it that leads to the file; none of a file at
/// the root.
fn room(path: &Path) -> Option<(String, String)> {
    let mut parts = path.iter().map(|part| part.to_string_lossy().into_owned());
    let (first, second) = (parts.next()?, parts.next()?);
    Some((first, second))
}

/// All dependencies of a manifest except those of its tests.
fn dependencies(manifest: &Table) -> impl Iterator<Item = (&String, &Value)> {
    let targets = manifest.get("target").and_then(Value::as_table).into_iter().flatten();
    let tables = targets.filter_map(|(_, target)| target.as_table()).chain([manifest]);
    let lists = tables.flat_map(|table| ["dependencies", "build-dependencies"].map(|kind| table.get(kind)));
    lists.flatten().filter_map(Value::as_table).flatten()
}

/// The room and name of a dependency by path; none of one from a registry.
fn target(manifest: &Path, dependency: &Value) -> Option<(String, String)> {
    let target = manifest.parent()?.join(dependency.get("path")?.as_str()?).join("Cargo.toml");
    room(&without_dots(&target))
}

/// The room and name of a dependency that the workspace around this manifest names.
fn shared(manifests: &[(PathBuf, Table)], path: &Path, name: &str) -> Option<(String, String)> {
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
            (
                "d/x/y/Cargo.toml",
                "[build-dependencies]\nz = { path = \"../../../b/z\" }\nw.path = \"../../../b/w\"",
            ),
        ];
        let parse = |(path, text): (&str, &str)| (PathBuf::from(path), text.parse().unwrap());
        let findings = rooms(&Source::new(MAP, rows), &manifests.map(parse));
        findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn the_map_says_what_each_room_imports() {
        let right = "| `a/` | it | – | x |\n| `b/` | it | `a/` | x |\n| `d/` | it | `b/` | x |\n";
        assert_eq!(found(right), [""; 0]);
        assert_eq!(found(&right.replace("| it | `a/` |", "| it | – |")), ["b/ imports a/"]);
        assert_eq!(found(&right.replace("| it | `b/` |", "| it | `b/` (w, z) |")), [""; 0]);
        assert_eq!(found(&right.replace("| it | `b/` |", "| it | `b/` (w) |")), ["d/ imports z of b/"]);
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
