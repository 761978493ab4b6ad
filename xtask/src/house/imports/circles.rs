//! Circles among the entries of each folder: [`super`] has the rule.

use super::graph::Graph;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The entry of a folder that is the folder's own file.
pub const OWN: &str = "mod";

/// Entries of a folder that import each other in a circle.
#[derive(Debug, PartialEq, Eq)]
pub struct Circle {
    /// The module whose folder it is.
    pub folder: String,
    /// Their names: [`OWN`] is one.
    pub entries: BTreeSet<String>,
    /// Few imports whose removal leaves no circle: importing and imported module.
    pub cuts: Vec<(String, String)>,
}

/// By importing and imported entry of one folder: the modules.
type Imports = BTreeMap<(String, String), Vec<(String, String)>>;

/// Returns the circles of a crate, by folder, a folder's largest first.
pub fn circles(graph: &Graph) -> Vec<Circle> {
    let mut folders = BTreeMap::<String, Imports>::new();
    for (from, to) in graph.imports.keys() {
        let parts = |module: &str| -> Vec<String> {
            module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect()
        };
        let (importing, imported) = (parts(from), parts(to));
        let common = importing.iter().zip(&imported).take_while(|(a, b)| a == b).count();
        let entry = |parts: &[String]| parts.get(common).cloned().unwrap_or(OWN.to_owned());
        let imports = folders.entry(importing[..common].join("::")).or_default();
        let between = imports.entry((entry(&importing), entry(&imported))).or_default();
        between.push((from.clone(), to.clone()));
    }
    let mut circles = Vec::new();
    for (folder, imports) in &folders {
        let mut here = connected(imports);
        here.sort_by_key(|entries| Reverse(entries.len()));
        circles.extend(here.into_iter().map(|entries| {
            let cuts = cuts(imports, &entries);
            Circle { folder: folder.clone(), entries, cuts }
        }));
    }
    circles
}

/// Returns the strongly connected components of more than one entry.
fn connected(imports: &Imports) -> Vec<BTreeSet<String>> {
    let reached = |from: &String| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(entry) = left.pop() {
            let next = imports.keys().filter(|(from, _)| *from == entry).map(|(_, to)| to.clone());
            left.extend(next.filter(|to| seen.insert(to.clone())));
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        imports.keys().map(|(from, _)| (from, reached(from))).collect();
    let with = |(entry, reaches): (&&String, &BTreeSet<String>)| -> BTreeSet<String> {
        let is_back = |other: &&String| reached.get(other).is_some_and(|back| back.contains(*entry));
        reaches.iter().filter(is_back).cloned().collect()
    };
    let circles: BTreeSet<_> = reached.iter().map(with).filter(|circle| !circle.is_empty()).collect();
    circles.into_iter().collect()
}

/// Returns few imports whose removal leaves no circle among `entries`, by the order of Eades, Lin and Smyth.
fn cuts(imports: &Imports, entries: &BTreeSet<String>) -> Vec<(String, String)> {
    // Entries that import come before those that they import.
    let (mut left, mut first, mut last) = (entries.clone(), Vec::new(), Vec::new());
    while !left.is_empty() {
        let among = |(from, to): &&(String, String)| left.contains(from) && left.contains(to);
        let imported =
            |entry: &String| imports.keys().filter(among).filter(|(from, _)| from == entry).count();
        let importing = |entry: &String| imports.keys().filter(among).filter(|(_, to)| to == entry).count();
        if let Some(lowest) = left.iter().find(|entry| imported(entry) == 0).cloned() {
            left.remove(&lowest);
            last.push(lowest);
            continue;
        }
        let highest = left.iter().max_by_key(|entry| imported(entry) as isize - importing(entry) as isize);
        let highest = highest.expect("an entry is left").clone();
        left.remove(&highest);
        first.push(highest);
    }
    first.extend(last.into_iter().rev());
    let place = |entry: &String| first.iter().position(|other| other == entry);
    let up = imports
        .iter()
        .filter(|((from, to), _)| entries.contains(from) && entries.contains(to) && place(from) > place(to));
    up.flat_map(|(_, modules)| modules.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(imports: &[(&str, &str)]) -> Vec<(String, String, usize)> {
        let imports =
            imports.iter().map(|(from, to)| ((from.to_string(), to.to_string()), (String::new(), 1)));
        let graph = Graph { imports: imports.collect(), ..Graph::default() };
        let circles = circles(&graph).into_iter();
        let text = |entries: BTreeSet<String>| entries.into_iter().collect::<Vec<_>>().join(" ");
        circles.map(|circle| (circle.folder, text(circle.entries), circle.cuts.len())).collect()
    }

    #[test]
    fn files_that_import_each_other_are_a_circle() {
        assert_eq!(found(&[("a", "b"), ("b", "c"), ("d", "a")]), []);
        let circle = [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a"), ("c", "e")];
        assert_eq!(found(&circle), [(String::new(), "a b c".to_owned(), 1)]);
    }

    #[test]
    fn folders_are_a_circle_where_their_files_are_none() {
        let folders = [("a::x", "b::y"), ("b::z", "a::w")];
        assert_eq!(found(&folders), [(String::new(), "a b".to_owned(), 1)]);
        assert_eq!(found(&folders[..1]), []);
    }

    #[test]
    fn a_file_and_its_folders_own_file_are_a_circle_within_the_folder() {
        let within = [("a", "a::b"), ("a::b", "a"), ("c", "a"), ("", "c")];
        assert_eq!(found(&within), [("a".to_owned(), "b mod".to_owned(), 1)]);
    }

    #[test]
    fn two_circles_are_told_apart_and_few_imports_cut_them() {
        let two = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "c"), ("e", "d")];
        assert_eq!(
            found(&two),
            [(String::new(), "c d e".to_owned(), 1), (String::new(), "a b".to_owned(), 1)]
        );
    }
}
