//! The packages of the repository, and which of them each imports, as their `Cargo.toml` files say.

use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use toml::{Table, Value};

/// The rooms, from below, and those whose packages a room's packages may import, besides their own. A package is in
/// the longest room that its folder is below.
const ROOMS: [(&str, &[&str]); 10] = [
    ("crates/slots", &[]),
    ("slat", &["crates/slots"]),
    ("crates", &["crates/slots", "slat"]),
    ("cli", &["slat", "crates"]),
    ("pager", &[]),
    // The simulated machine, on which the checks of proof/explore run, too.
    ("measure/machine", &[]),
    ("proof", &["crates/slots", "slat", "crates", "pager", "measure/machine"]),
    ("measure", &["crates/slots", "slat", "crates", "cli", "measure/machine"]),
    ("clients", &["crates/slots", "slat", "crates", "cli", "pager"]),
    ("xtask", &[]),
];

#[derive(Debug)]
pub struct Package {
    /// Relative to the repository.
    pub folder: PathBuf,
    /// The first file of each of its libraries and programs.
    pub roots: BTreeSet<PathBuf>,
    /// Folders of the packages of the repository that it imports, its tests included.
    pub imports: BTreeSet<PathBuf>,
}

/// Returns the packages below `root`, by folder.
pub fn read(root: &Path) -> Result<Vec<Package>> {
    let (mut manifests, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if name == "Cargo.toml" {
                manifests.push(path);
            }
        }
    }
    manifests.sort();
    let packages =
        manifests.iter().map(|path| package(root, path).with_context(|| path.display().to_string()));
    packages.filter_map(Result::transpose).collect()
}

/// Returns the package of a manifest; `None` of a workspace without one.
fn package(root: &Path, path: &Path) -> Result<Option<Package>> {
    let manifest: Table = fs::read_to_string(path)?.parse()?;
    let folder = path.parent().unwrap_or(root);
    if !manifest.contains_key("package") {
        return Ok(None);
    }
    let named = manifest
        .get("lib")
        .into_iter()
        .chain(manifest.get("bin").and_then(Value::as_array).into_iter().flatten());
    let named = named.filter_map(|target| Some(folder.join(target.get("path")?.as_str()?)));
    let usual = ["src/lib.rs", "src/main.rs"].map(|file| folder.join(file)).into_iter();
    let programs =
        fs::read_dir(folder.join("src/bin")).into_iter().flatten().flatten().map(|entry| entry.path());
    let programs = programs.map(|path| if path.is_dir() { path.join("main.rs") } else { path });
    let roots = usual.chain(programs).chain(named).map(|path| normal(root, &path));
    let roots = roots.filter(|path| root.join(path).is_file()).collect();
    let mut imports = BTreeSet::new();
    for (name, needed) in dependencies(&manifest) {
        if let Some(below) = needed.get("path").and_then(Value::as_str) {
            imports.insert(normal(root, &folder.join(below)));
        } else if needed.get("workspace").is_some() {
            imports.extend(of_workspace(root, folder, name)?);
        }
    }
    let folder = normal(root, folder);
    imports.remove(&folder);
    Ok(Some(Package { folder, roots, imports }))
}

/// Returns the dependencies of a manifest, those of its tests and of single targets included.
fn dependencies(manifest: &Table) -> impl Iterator<Item = (&String, &Value)> {
    let targets = manifest.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values);
    let tables = targets.filter_map(Value::as_table).chain([manifest]);
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    let tables =
        tables.flat_map(move |table| kinds.into_iter().filter_map(|kind| table.get(kind)?.as_table()));
    tables.flatten()
}

/// Returns the folder of a dependency that the workspace around `folder` names, if it has a folder.
fn of_workspace(root: &Path, folder: &Path, name: &str) -> Result<Option<PathBuf>> {
    for above in folder.ancestors().take_while(|above| above.starts_with(root)) {
        let Ok(text) = fs::read_to_string(above.join("Cargo.toml")) else { continue };
        let manifest: Table = text.parse()?;
        let Some(workspace) = manifest.get("workspace") else { continue };
        let needed = workspace.get("dependencies").and_then(|all| all.get(name));
        let below = needed.and_then(|needed| needed.get("path")?.as_str());
        return Ok(below.map(|below| normal(root, &above.join(below))));
    }
    Ok(None)
}

/// Returns a path relative to `root`, without `..`.
fn normal(root: &Path, path: &Path) -> PathBuf {
    without_dots(path.strip_prefix(root).unwrap_or(path))
}

pub fn without_dots(path: &Path) -> PathBuf {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = parts.pop(),
            Component::CurDir => {}
            _ => parts.push(part),
        }
    }
    parts.into_iter().collect()
}

/// Returns the folders of the packages that this one may not import.
pub fn upwards(package: &Package) -> Result<Vec<&Path>> {
    // A foreign source that is unpacked into the build folder is in no room.
    let imports = package.imports.iter().filter(|import| !import.iter().any(|part| part == "target"));
    let (own, may) = room(&package.folder)?;
    let mut upwards = Vec::new();
    for import in imports {
        let (room, _) = room(import)?;
        if room != own && !may.contains(&room) {
            upwards.push(import.as_path());
        }
    }
    Ok(upwards)
}

fn room(folder: &Path) -> Result<(&'static str, &'static [&'static str])> {
    let rooms = ROOMS.into_iter().filter(|(room, _)| folder.starts_with(room));
    rooms.max_by_key(|(room, _)| room.len()).with_context(|| format!("{} is in no room", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn importing(folder: &str, imports: &[&str]) -> Package {
        let imports = imports.iter().map(PathBuf::from).collect();
        Package { folder: folder.into(), roots: BTreeSet::new(), imports }
    }

    #[test]
    fn a_package_imports_its_own_room_and_those_below() {
        let upwards = |folder, imports| upwards(&importing(folder, imports)).unwrap().len();
        assert_eq!(upwards("slat", &["crates/slots"]), 0);
        assert_eq!(upwards("slat", &["crates/mm"]), 1);
        assert_eq!(upwards("crates/mm", &["crates/vcpu", "slat", "crates/slots"]), 0);
        assert_eq!(upwards("crates/mm", &["cli", "measure/machine"]), 2);
        assert_eq!(upwards("proof/explore", &["proof/explored-engine", "measure/machine", "measure/sim"]), 1);
        assert_eq!(upwards("pager", &["slat"]), 1);
        assert_eq!(upwards("clients/rust-vmm/shim", &["clients/rust-vmm/target/crates/vm-memory-0.18.0"]), 0);
        assert!(super::upwards(&importing("attic", &[])).is_err(), "in no room");
    }

    #[test]
    fn imports_are_read_from_each_table_and_from_the_workspace() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let packages = read(root).unwrap();
        let of = |folder: &str| packages.iter().find(|package| package.folder == Path::new(folder)).unwrap();
        assert!(of("slat").imports.iter().eq([Path::new("crates/slots")]));
        // By the workspace; the tests' too; of a target; of a workspace that is no member of this one.
        assert!(of("crates/vm-memory").imports.contains(Path::new("crates/migrate")));
        assert!(of("clients/vmm").imports.contains(Path::new("cli")));
        assert!(of("proof/walkers/x86").imports.contains(Path::new("proof/walkers/judge")));
        assert!(of("proof/walkers/l1").roots.contains(Path::new("proof/walkers/l1/src/kvm/main.rs")));
        assert!(of("proof/explored-engine").roots.iter().eq([Path::new("slat/src/lib.rs")]));
    }
}
