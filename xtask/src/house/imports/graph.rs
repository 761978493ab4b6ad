//! The imports of a crate, from module to module with a file of its own: [`super`] has the rule.

use super::names::{Import, Names, join};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A crate's modules that have a file, by path, as `a::b`; its root has the empty path.
#[derive(Default)]
pub struct Graph {
    /// The file of each module.
    pub files: BTreeMap<String, PathBuf>,
    /// By importing and imported module: the first name that is imported, and its line.
    pub imports: BTreeMap<(String, String), (String, usize)>,
}

/// Returns the text of a file; `None` where there is no such file.
pub type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// Number of imports that a name is followed through at most.
const FUEL: usize = 8;

/// The names in a crate.
struct Crate {
    /// The file of each module that has one, and the names in it.
    files: BTreeMap<String, (PathBuf, Names)>,
    /// By module, with the module whose file has it. This includes modules within files.
    imports: BTreeMap<String, Vec<(String, Import)>>,
}

impl Graph {
    /// Reads the crate with this root.
    pub fn read(root: &Path, read: Read<'_>) -> Result<Self> {
        let mut whole = Crate { files: BTreeMap::new(), imports: BTreeMap::new() };
        let folder = root.parent().unwrap_or(Path::new("")).to_owned();
        whole.add(String::new(), root.to_owned(), &folder, read)?;
        let files: Vec<String> = whole.files.keys().cloned().collect();
        for file in files {
            let Some((_, names)) = whole.files.get_mut(&file) else { continue };
            for import in std::mem::take(&mut names.imports) {
                whole
                    .imports
                    .entry(join(&file, &import.path.inner))
                    .or_default()
                    .push((file.clone(), import));
            }
        }
        Ok(whole.graph())
    }
}

impl Crate {
    /// Adds a file and those below it. `folder` has the files of its modules.
    fn add(&mut self, module: String, path: PathBuf, folder: &Path, read: Read<'_>) -> Result<()> {
        let text = read(&path).with_context(|| format!("no file {}", path.display()))?;
        let mut names = Names::read(&text).with_context(|| path.display().to_string())?;
        for child in std::mem::take(&mut names.modules) {
            let below = folder.join(&child.name);
            let (flat, nested) = (below.with_extension("rs"), below.join("mod.rs"));
            let file = match child.path {
                // A foreign file that a client unpacks.
                Some(name) if read(&path.with_file_name(&name)).is_none() => continue,
                Some(name) => path.with_file_name(name),
                None if read(&flat).is_some() => flat,
                None => nested,
            };
            self.add(join(&module, &child.name), file, &below, read)?;
        }
        self.files.insert(module, (path, names));
        Ok(())
    }

    fn graph(&self) -> Graph {
        let files = self.files.iter().map(|(module, (path, _))| (module.clone(), path.clone()));
        let mut graph = Graph { files: files.collect(), imports: BTreeMap::new() };
        // A name that is only handed on counts where it is used.
        let imports = self.imports.values().flatten().filter(|(_, import)| !import.is_public);
        let imports = imports.map(|(module, import)| (module, &import.path));
        let paths = self
            .files
            .iter()
            .flat_map(|(module, (_, names))| names.paths.iter().map(move |path| (module, path)));
        for (module, named) in imports.chain(paths) {
            let path = self.absolute(&join(module, &named.inner), &named.path, FUEL, true);
            let Some(to) = path.and_then(|path| self.home(&path, FUEL)).filter(|to| to != module) else {
                continue;
            };
            let name = named.path.join("::");
            graph.imports.entry((module.clone(), to)).or_insert((name, named.line));
        }
        graph
    }

    /// Returns a path from the root; `None` for a path into another crate, and for a name of the file itself.
    fn absolute(&self, module: &str, path: &[String], fuel: usize, globs: bool) -> Option<Vec<String>> {
        let mut base: Vec<String> = split(module);
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => return Some(rest[1..].to_vec()),
            "self" => rest = &rest[1..],
            "super" => {}
            first => {
                let fuel = fuel.checked_sub(1)?;
                if let Some(path) = self.imported(module, first, fuel, globs) {
                    return Some([path, rest[1..].to_vec()].concat());
                }
                if !self.is_module(&join(module, first)) {
                    return None;
                }
            }
        }
        while let Some((_, below)) = rest.split_first().filter(|(first, _)| *first == "super") {
            base.pop();
            rest = below;
        }
        Some([&base, rest].concat())
    }

    /// Returns the path of a name that a module imports. A `use` of another crate's item imports none.
    fn imported(&self, module: &str, name: &str, fuel: usize, globs: bool) -> Option<Vec<String>> {
        let imports = self.imports.get(module)?.iter().map(|(_, import)| import);
        for import in imports.clone().filter(|import| import.name.as_deref() == Some(name)) {
            // `use name;` imports a crate.
            if import.path.path == [name] {
                continue;
            }
            if let Some(path) = self.absolute(module, &import.path.path, fuel, false) {
                return Some(path);
            }
        }
        for import in imports.filter(|import| globs && import.name.is_none()) {
            let Some(path) = self.absolute(module, &import.path.path, fuel, false) else { continue };
            let from = path.join("::");
            if self.has(&from, name, fuel) {
                return Some([path, vec![name.to_owned()]].concat());
            }
        }
        None
    }

    /// Returns whether a module defines this name or re-exports it.
    fn has(&self, module: &str, name: &str, fuel: usize) -> bool {
        let Some(fuel) = fuel.checked_sub(1) else { return false };
        self.is_module(&join(module, name))
            || self.items(module).is_some_and(|(names, inner)| names.items.contains(&join(inner, name)))
            || self.imported(module, name, fuel, true).is_some()
    }

    /// Returns the file of a module, and the module's place in it.
    fn items<'a>(&self, module: &'a str) -> Option<(&Names, &'a str)> {
        let mut ends: Vec<usize> = module.match_indices("::").map(|(at, _)| at).collect();
        ends.extend([0, module.len()]);
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let found = ends.into_iter().find_map(|end| Some((end, self.files.get(&module[..end])?)));
        let (end, (_, names)) = found?;
        let inner = module[end..].trim_start_matches("::");
        (inner.is_empty() || names.inner.contains(inner)).then_some((names, inner))
    }

    fn is_module(&self, path: &str) -> bool {
        self.items(path).is_some()
    }

    /// Returns the module whose file defines the item of an absolute path; `None` if the item is a module.
    fn home(&self, path: &[String], fuel: usize) -> Option<String> {
        let mut module = String::new();
        let mut rest = path.iter();
        let name = loop {
            let name = rest.next()?;
            let below = join(&module, name);
            let is_last = rest.len() == 0;
            if self.is_module(&below) && !(is_last && self.imported(&module, name, fuel, false).is_some()) {
                module = below;
            } else {
                break name;
            }
        };
        if module.is_empty()
            && let Some(file) = self.files.iter().find(|(_, (_, names))| names.macros.contains(name))
        {
            return Some(file.0.clone());
        }
        let defines =
            self.items(&module).is_some_and(|(names, inner)| names.items.contains(&join(inner, name)));
        if !defines && let Some(to) = self.imported(&module, name, fuel, true) {
            let rest: Vec<String> = rest.cloned().collect();
            return self.home(&[to, rest].concat(), fuel.checked_sub(1)?);
        }
        // A name of another crate that this module hands on has no file here.
        let foreign = self.imports.get(&module).into_iter().flatten();
        let mut foreign = foreign.filter(|(_, import)| import.name.as_deref() == Some(name));
        if !defines && foreign.next().is_some() {
            return None;
        }
        let mut file = split(&module);
        while !self.files.contains_key(&file.join("::")) {
            file.pop();
        }
        Some(file.join("::"))
    }
}

fn split(module: &str) -> Vec<String> {
    module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect()
}
