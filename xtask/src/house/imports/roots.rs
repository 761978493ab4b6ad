//! The crates of the repository.

use crate::source::without_dots;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Returns the first file of each library and program of these packages. `sources` are all files with code.
pub fn roots(manifests: &[(PathBuf, Table)], sources: &BTreeSet<&Path>) -> BTreeSet<PathBuf> {
    let packages = manifests.iter().filter(|(_, manifest)| manifest.contains_key("package"));
    let roots = packages.flat_map(|(path, manifest)| {
        let folder = path.parent().unwrap_or(Path::new(""));
        let programs = manifest.get("bin").and_then(Value::as_array).into_iter().flatten();
        let named = manifest.get("lib").into_iter().chain(programs);
        let named = named.filter_map(|target| target.get("path")?.as_str());
        let usual = named.chain(["src/lib.rs", "src/main.rs"]).map(|path| without_dots(&folder.join(path)));
        let programs = folder.join("src/bin");
        let is_program = |path: &&&Path| {
            let above = path.parent().unwrap_or(path);
            above == programs || (path.ends_with("main.rs") && above.parent() == Some(&programs))
        };
        let programs = sources.iter().filter(is_program).map(|path| path.to_path_buf());
        usual.chain(programs).collect::<Vec<_>>()
    });
    roots.filter(|root| sources.contains(&**root)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_those_that_a_manifest_names_and_the_usual_ones() {
        let manifests = [
            ("Cargo.toml", "[workspace]"),
            ("a/Cargo.toml", "[package]\nname = \"a\""),
            (
                "b/c/Cargo.toml",
                "[package]\n[lib]\npath = \"../../a/src/lib.rs\"\n[[bin]]\npath = \"src/d.rs\"",
            ),
        ];
        let manifests = manifests.map(|(path, text)| (PathBuf::from(path), text.parse().unwrap()));
        let sources = ["a/src/lib.rs", "a/src/x.rs", "b/c/src/main.rs", "b/c/src/d.rs"];
        let programs = ["a/src/bin/e.rs", "a/src/bin/f/main.rs", "a/src/bin/f/g.rs"];
        let sources = sources.into_iter().chain(programs).map(Path::new).collect();
        let found = roots(&manifests, &sources);
        let expected =
            ["a/src/bin/e.rs", "a/src/bin/f/main.rs", "a/src/lib.rs", "b/c/src/d.rs", "b/c/src/main.rs"];
        assert!(found.iter().eq(expected.map(Path::new)), "{found:?}");
    }
}
