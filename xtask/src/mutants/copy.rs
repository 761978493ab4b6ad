//! The copy of the workspace that has every mistake.

use super::record::{Edit, Mistake};
use crate::process::{COMPILERS, answer};
use crate::source::Source;
use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// The folder of the copy.
const FOLDER: &str = "target/mutants";

/// The packages' sources, by path.
pub type Sources = BTreeMap<String, String>;

/// The variable that chooses a mistake.
pub const VARIABLE: &str = "SLAT_MISTAKE";

/// The module that each mutated package gets: it decides whether a mistake is made. Names become numbers when the copy
/// is built.
const CHOICE: &str = "
#[doc(hidden)]
pub mod mistakes {
    //! Made by `cargo xtask mutants`.
    extern crate std;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// A mistake's number, by its name (FNV-1a); 0 and 1 are no mistake's.
    pub const fn number(name: &str) -> u64 {
        let (mut hash, mut at) = (0xcbf2_9ce4_8422_2325_u64, 0);
        while at < name.len() {
            hash = (hash ^ name.as_bytes()[at] as u64).wrapping_mul(0x100_0000_01b3);
            at += 1;
        }
        hash | 2
    }

    /// Whether the mistake of this number is made.
    #[inline(always)]
    pub fn is(number: u64) -> bool {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let made = MADE.load(Relaxed);
        if made == 0 { first(&MADE, number) } else { made == number }
    }

    #[cold]
    fn first(cell: &AtomicU64, wanted: u64) -> bool {
        let made = std::env::var(\"SLAT_MISTAKE\").map_or(1, |name| number(&name));
        cell.store(made, Relaxed);
        made == wanted
    }
}
";

/// Returns the expression of whether a mistake is made.
fn made(name: &str) -> String {
    format!("crate::mistakes::is(const {{ crate::mistakes::number({name:?}) }})")
}

/// A copy that is written, and that no other process writes or uses.
pub struct Copied {
    pub folder: PathBuf,
    _alone: File,
}

impl Copied {
    /// Writes the copy. Files that stay as they are keep their times, for cargo.
    pub fn of(mistakes: &[Mistake]) -> Result<Self> {
        let sources = sources()?;
        let mutated = mutated(&sources, mistakes)?;
        Self::write(|path| mutated.get(path).map(|text| text.as_bytes().to_vec()))
    }

    /// Writes the copy, with other contents for some files.
    pub fn write(instead: impl Fn(&str) -> Option<Vec<u8>>) -> Result<Self> {
        let folder = std::path::absolute(FOLDER)?;
        let alone = alone(&folder)?;
        let files = tracked()?;
        for path in &files {
            let contents = match instead(path) {
                Some(contents) => contents,
                None => fs::read(path).with_context(|| path.clone())?,
            };
            let to = folder.join(path);
            if !fs::read(&to).is_ok_and(|old| old == contents) {
                fs::create_dir_all(to.parent().context("a file is in a folder")?)?;
                fs::write(&to, contents)?;
            }
            let permissions = fs::metadata(path)?.permissions();
            if fs::metadata(&to)?.permissions() != permissions {
                fs::set_permissions(&to, permissions)?;
            }
        }
        remove_others(&folder, &folder, &files.into_iter().collect())?;
        Ok(Self { folder, _alone: alone })
    }

    /// Makes cargo build the copy, beside the outputs in a folder of the workspace, so that common dependencies are
    /// built once. One of [`COMPILERS`] builds the workspace's crates, whose path, the copy's, keeps them apart from
    /// the shipped ones. Programs have no such path, and so lie in a folder of the copy.
    pub fn builds<'a>(
        &self,
        cargo: &'a mut Command,
        target: &str,
        compiler: &str,
    ) -> io::Result<&'a mut Command> {
        cargo.current_dir(&self.folder).env("CARGO_BUILD_BUILD_DIR", std::path::absolute(target)?);
        cargo.env("CARGO_TARGET_DIR", self.folder.join(target));
        Ok(cargo.env("RUSTC_WORKSPACE_WRAPPER", self.folder.join(COMPILERS).join(compiler)))
    }
}

/// Makes a folder, and keeps other processes that ask the same from it. Waits while one has it.
fn alone(folder: &Path) -> Result<File> {
    fs::create_dir_all(folder)?;
    let file = File::open(folder)?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        eprintln!("waits for another process that uses {}", folder.display());
        flock(&file, FlockOperation::LockExclusive)?;
    }
    Ok(file)
}

/// Removes files of the copy that the workspace has no more.
fn remove_others(root: &Path, folder: &Path, files: &BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        if path.is_dir() && name != "target" {
            remove_others(root, &path, files)?;
        } else if path.is_file() && !files.contains(&name) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// The files of the workspace, without what git ignores.
fn tracked() -> Result<Vec<String>> {
    let files = answer("git", "ls-files --cached --others --exclude-standard")?;
    Ok(files.lines().filter(|path| Path::new(path).is_file()).map(str::to_owned).collect())
}

/// Reads the sources in which mistakes can be made.
pub fn sources() -> Result<Sources> {
    let files = tracked()?.into_iter().filter(|path| Path::new(path).extension() == Some("rs".as_ref()));
    files.map(|path| Ok((path.clone(), fs::read_to_string(&path).with_context(|| path)?))).collect()
}

/// A part of a file, and the text that takes its place.
struct Change {
    at: Range<usize>,
    text: String,
    name: String,
}

/// Returns the files that change. Fails if a record's text is not there exactly once, or if two overlap.
pub fn mutated(sources: &Sources, mistakes: &[Mistake]) -> Result<Sources> {
    let mut changes: BTreeMap<&str, Vec<Change>> = BTreeMap::new();
    let named: BTreeSet<&str> =
        mistakes.iter().filter(|mistake| mistake.edits.is_empty()).map(|mistake| &*mistake.name).collect();
    let mut found = BTreeSet::new();
    for (path, text) in sources.iter().filter(|(path, _)| path.starts_with("slat/src/")) {
        for order in orders(text)? {
            ensure!(named.contains(&*order.name), "{path}: no record has the ordering {}", order.name);
            found.insert(order.name.clone());
            changes.entry(path).or_default().push(order);
        }
    }
    for name in named {
        ensure!(found.contains(name), "{name}: its record has no edit, and no ordering has this name");
    }
    for Mistake { name, edits, .. } in mistakes {
        for edit in edits {
            let (path, text) = sources
                .get_key_value(&edit.file)
                .with_context(|| format!("{name}: no file {}", edit.file))?;
            let at = place(text, &edit.find).with_context(|| format!("{name}: {path}"))?;
            ensure!(
                is_shipped(path, text, at.start, sources),
                "{name}: {path}: this is no code of a library"
            );
            let text = changed(name, &text[at.clone()], edit);
            changes.entry(path).or_default().push(Change { at, text, name: name.clone() });
        }
    }
    let mut mutated = Sources::new();
    for (path, mut changes) in changes {
        mutated
            .insert(path.to_owned(), applied(&sources[path], &mut changes).with_context(|| path.to_owned())?);
        let root = root(path).context("the place is in a library")?;
        mutated.entry(root.clone()).or_insert_with(|| sources[&root].clone());
    }
    for (path, text) in &mut mutated {
        if path.ends_with("/src/lib.rs") {
            text.push_str(CHOICE);
        }
    }
    Ok(mutated)
}

/// Returns the place of the text that `find` marks.
fn place(text: &str, find: &str) -> Result<Range<usize>> {
    let plain = find.replace(['«', '»'], "");
    let at = text.find(&plain).with_context(|| format!("there is no\n{plain}"))?;
    // From the other end, so that places which overlap are two.
    ensure!(text.rfind(&plain) == Some(at), "there is more than one\n{plain}");
    let marks: Vec<(usize, &str)> = find.match_indices(['«', '»']).collect();
    let (begin, end) = match marks[..] {
        [] => (0, plain.len()),
        [(begin, "«"), (end, "»")] => (begin, end - '«'.len_utf8()),
        _ => bail!("one « and one » after it, or none\n{find}"),
    };
    Ok(at + begin..at + end)
}

/// Returns whether a place of a file is shipped code of a package's library, and not of its tests.
fn is_shipped(path: &str, text: &str, at: usize, sources: &Sources) -> bool {
    let library = root(path).is_some_and(|root| sources.contains_key(&root));
    library && text[..at].matches('\n').count() < Source::new(path, text).own()
}

/// Returns the path of the library whose folder of sources has a file.
fn root(path: &str) -> Option<String> {
    path.split_once("/src/").map(|(package, _)| format!("{package}/src/lib.rs"))
}

fn changed(name: &str, found: &str, edit: &Edit) -> String {
    let made = made(name);
    if edit.replace.contains("MISTAKE") {
        return edit.replace.replace("MISTAKE", &made);
    }
    format!("if {made} {{ {} }} else {{ {found} }}", edit.replace)
}

const ORDER: &str = "order!(";

/// Returns the named orderings of a file.
fn orders(text: &str) -> Result<Vec<Change>> {
    let mut orders = Vec::new();
    for kind in [ORDER, "fence!("] {
        for (at, _) in text.match_indices(kind) {
            let line = text[..at].rsplit('\n').next().unwrap_or_default();
            let end = at + text[at..].find(')').context("a parenthesis is open")?;
            let words: Vec<&str> = text[at + kind.len()..end].split(',').map(str::trim).collect();
            // In a comment, or in the macro itself.
            if line.trim_start().starts_with("//") || words[0].starts_with('$') {
                continue;
            }
            let (name, made) = (words[0].to_owned(), made(words[0]));
            let order = format!("crate::sync::prim::{}", words.get(1).unwrap_or(&"SeqCst"));
            let text = if kind == ORDER {
                format!("(if {made} {{ crate::sync::prim::Relaxed }} else {{ {order} }})")
            } else {
                format!("if !{made} {{ crate::sync::prim::fence({order}) }}")
            };
            orders.push(Change { at: at..end + 1, text, name });
        }
    }
    Ok(orders)
}

fn applied(text: &str, changes: &mut [Change]) -> Result<String> {
    changes.sort_by_key(|change| (change.at.start, change.at.end));
    for pair in changes.windows(2) {
        ensure!(pair[0].at.end <= pair[1].at.start, "{} and {} overlap", pair[0].name, pair[1].name);
    }
    let (mut out, mut done) = (String::new(), 0);
    for Change { at, text: instead, .. } in changes {
        write!(out, "{}{instead}", &text[done..at.start])?;
        done = at.end;
    }
    Ok(out + &text[done..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(name: &str, find: &str, replace: &str) -> Mistake {
        let edit = Edit { file: "slat/src/a.rs".into(), find: find.into(), replace: replace.into() };
        let edits = if find.is_empty() { vec![] } else { vec![edit] };
        Mistake { name: name.into(), what: String::new(), seen: Err(String::new()), edits }
    }

    fn of(text: &str, mistakes: &[Mistake]) -> Result<String> {
        let sources = [("slat/src/a.rs", text), ("slat/src/lib.rs", "")];
        let sources = sources.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        let mutated = mutated(&sources, mistakes)?;
        assert!(mutated["slat/src/lib.rs"].contains("fn is("));
        Ok(mutated["slat/src/a.rs"].clone())
    }

    #[test]
    fn a_mistake_takes_the_place_of_what_is_found() {
        let both = [mistake("no-b", "a && «b»", "true"), mistake("late", "c();«»", "if MISTAKE { d() }")];
        let [no_b, late] = ["no-b", "late"].map(made);
        assert_eq!(
            of("let x = a && b; c();", &both).unwrap(),
            format!("let x = a && if {no_b} {{ true }} else {{ b }}; c();if {late} {{ d() }}")
        );
    }

    #[test]
    fn a_named_ordering_becomes_relaxed() {
        let [store, fence] = [mistake("a.b", "", ""), mistake("c.d", "", "")];
        let text =
            of("x.store(1, order!(a.b, Release));\nfence!(c.d);\n// order!(x.y, Acquire)", &[store, fence]);
        let [store, fence] = ["a.b", "c.d"].map(made);
        assert_eq!(
            text.unwrap(),
            format!(
                "x.store(1, (if {store} {{ crate::sync::prim::Relaxed }} else {{ crate::sync::prim::Release }}));\n\
                 if !{fence} {{ crate::sync::prim::fence(crate::sync::prim::SeqCst) }};\n\
                 // order!(x.y, Acquire)"
            )
        );
    }

    #[test]
    fn a_record_without_its_text_and_texts_that_overlap_are_refused() {
        let refused = |mistakes: &[Mistake]| format!("{:#}", of("f(a + b) + a", mistakes).unwrap_err());
        assert!(refused(&[mistake("gone", "c", "1")]).contains("there is no\nc"));
        assert!(refused(&[mistake("two", "a", "1")]).contains("more than one\na"));
        assert!(refused(&[mistake("one", "a + b", "1"), mistake("other", "b) +", "1")]).contains("overlap"));
        assert!(refused(&[mistake("x.y", "", "")]).contains("no ordering has this name"));
        assert!(refused(&[mistake("marks", "(«a «+» b)", "1")]).contains("one « and one » after it"));
        assert!(refused(&[mistake("none", "", "1")]).contains("no ordering has this name"));
        assert!(of("f((f((f(", &[mistake("both", "f((f(", "1")]).unwrap_err().to_string().contains("both"));
    }

    #[test]
    fn a_mistake_is_made_in_a_library_and_not_in_its_tests() {
        let text = "f();\n#[cfg(test)]\nmod tests {\n    g();\n}\n";
        assert!(of(text, &[mistake("code", "f()", "h()")]).is_ok());
        let in_tests = of(text, &[mistake("test", "g()", "h()")]).unwrap_err();
        assert!(in_tests.to_string().contains("no code of a library"), "{in_tests}");
        for file in
            ["slat/examples/a.rs", "slat/src/a/tests/b.rs", "xtask/src/main.rs", "slat/tests/src/a.rs"]
        {
            let sources = [(file, "f()"), ("slat/src/lib.rs", "")];
            let sources = sources.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
            let mut mistake = mistake("other", "f()", "h()");
            mistake.edits[0].file = file.into();
            let refused = mutated(&sources, &[mistake]).unwrap_err();
            assert!(refused.to_string().contains("no code of a library"), "{file}: {refused}");
        }
    }

    #[test]
    fn a_place_for_an_insertion_may_lie_at_another_s_begin() {
        let both = [mistake("b", "«b»;", "1"), mistake("a", "«»b;", "MISTAKE; ")];
        let [a, b] = ["a", "b"].map(made);
        assert_eq!(of("b;", &both).unwrap(), format!("{a}; if {b} {{ 1 }} else {{ b }};"));
    }

    #[test]
    fn a_second_process_waits_for_the_copy() {
        let folder = std::env::temp_dir().join(format!("slat-alone-{}", std::process::id()));
        let first = alone(&folder).unwrap();
        let other = File::open(&folder).unwrap();
        assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err());
        drop(first);
        assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_ok());
        fs::remove_dir(folder).unwrap();
    }
}
