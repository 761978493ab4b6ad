//! Records of mistakes: `proof/mistakes/**/*.toml`, one table for each mistake.
//!
//! ```toml
//! [watch-unasked]
//! what = "a fault does not ask whether its frame is watched"
//! tool = "Shuttle"
//! test = "shuttle_tests::faults::telling"
//! says = ["untold"]
//! [[watch-unasked.edit]]
//! file = "slat/src/fault/leaf.rs"
//! find = "if «!self.space.watched.has(gfn)» {"
//! replace = "true"
//! ```
//!
//! `find` stands once in its file. With `«` and `»`, only the text between them is replaced; the rest of it is there to
//! make it unique. A replacement is an expression, or statements that end as those found end. If it contains `MISTAKE`,
//! it stands for the found text as it is, and `MISTAKE` is whether the mistake is made. A mistake without an edit is a
//! named ordering (`order!`, `fence!`) of the sources. One that no tool misses has `unseen`, the reason, in place of a tool
//! and a test.

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

/// A mistake, and the test that finds it.
#[derive(Debug)]
pub struct Mistake {
    pub name: String,
    pub what: String,
    /// The test that finds it, or the reason why no test does.
    pub seen: Result<Seen, String>,
    pub edits: Vec<Edit>,
}

/// The test that finds a mistake.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Seen {
    pub tool: Tool,
    /// The package whose test finds it: the first part of the record's path below `proof/mistakes/`.
    pub package: String,
    /// The path of the test in its program.
    pub test: String,
    /// The failed test says one of these; anything if there are none.
    pub says: Vec<String>,
}

/// A text of a file, and another one that takes its place.
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    pub file: String,
    pub find: String,
    pub replace: String,
}

/// The kind of test that finds a mistake.
#[derive(Deserialize, clap::ValueEnum, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[value(rename_all = "PascalCase")]
pub enum Tool {
    /// Every execution of a tiny scenario that the memory model allows: the `loom_tests`.
    Loom,
    /// Many schedules of a whole VM: the `shuttle_tests`.
    Shuttle,
    /// A look at the tables after each write: the `history_tests`.
    History,
    /// A unit test beside the code.
    Unit,
    /// Panics of each callback in turn, and memory that runs out: `inject_tests`.
    Inject,
    /// Whole worlds on simulated CPUs, with an oracle that checks each write: `proof/explore`.
    Explore,
    /// Operations against a plain model, drawn by libFuzzer: `proof/fuzz`. The test is a target.
    Fuzz,
    /// Small worlds under Miri: `slat/tests/miri`.
    Miri,
    /// Misuse that the oracle beside a VM reports: `slat/tests/oracle`.
    Oracle,
    /// `slat/tests/engine` under `AddressSanitizer`, `slat/tests/soak` under `ThreadSanitizer`: the test begins with the
    /// program's name.
    Sanitizer,
    /// Guests that store beside everything else, and the dirty log that must report the stores: `crates/vcpu/tests`.
    Worlds,
    /// Guests on processors that they share: `crates/vcpu/tests/vcpu`.
    Shared,
    /// Guests, devices, pins, swap, limits and merging on `slat-mm`: `crates/mm/tests/load`.
    Load,
    /// A test of `slat-mm`'s own: `crates/mm/tests/mm`.
    Host,
    /// The daemon, guests that know each of their bytes, and hosts that share a store: `pager/tests/pager`.
    Pager,
    /// Guests on the machine's own KVM: `crates/kvm/tests/kvm.rs`.
    Kvm,
}

impl Tool {
    /// Returns the package that has the tool's tests, if it is always the same.
    pub fn package(self) -> Option<&'static str> {
        match self {
            Self::Worlds | Self::Shared => Some("vcpu"),
            Self::Explore => Some("explore"),
            Self::Fuzz => Some("fuzz"),
            _ => None,
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    what: String,
    tool: Option<Tool>,
    test: Option<String>,
    #[serde(default)]
    says: Vec<String>,
    unseen: Option<String>,
    #[serde(default)]
    edit: Vec<Edit>,
}

/// The folder of the records.
const FOLDER: &str = "proof/mistakes";

/// Reads all records, in the order of their files and names.
pub fn mistakes() -> Result<Vec<Mistake>> {
    let mut files = Vec::new();
    list(Path::new(FOLDER), &mut files)?;
    files.sort();
    let mut mistakes = Vec::new();
    for file in files {
        read(&file, &mut mistakes).with_context(|| file.display().to_string())?;
    }
    let mut names = BTreeSet::new();
    for mistake in &mistakes {
        ensure!(names.insert(&mistake.name), "two mistakes are called {}", mistake.name);
    }
    Ok(mistakes)
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else if path.extension().is_some_and(|end| end == "toml") {
            files.push(path);
        }
    }
    Ok(())
}

fn read(file: &Path, mistakes: &mut Vec<Mistake>) -> Result<()> {
    let package = file.strip_prefix(FOLDER)?.components().next().context("a file has a name")?;
    let package = package.as_os_str().to_string_lossy();
    let package = package.trim_end_matches(".toml").to_owned();
    records(&package, &fs::read_to_string(file)?, mistakes)
}

/// Reads the records of a package.
fn records(package: &str, text: &str, mistakes: &mut Vec<Mistake>) -> Result<()> {
    let tables: BTreeMap<String, Table> = toml::from_str(text)?;
    for (name, Table { what, tool, test, says, unseen, edit }) in tables {
        let seen = match (tool, test, unseen) {
            (Some(tool), Some(test), None) => {
                Ok(Seen { tool, package: tool.package().unwrap_or(package).to_owned(), test, says })
            }
            (None, None, Some(unseen)) if edit.is_empty() => Err(unseen),
            _ => bail!("{name}: a tool and a test; or, for a named ordering, the reason why it is unseen"),
        };
        let is_word = !name.is_empty() && !name.contains(char::is_whitespace);
        ensure!(is_word, "{name:?}: the name of a mistake is one word");
        ensure!(!what.trim().is_empty() && !what.contains('\n'), "{name}: `what` is one line");
        mistakes.push(Mistake { name, what, seen, edits: edit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_that_evidence_is_made_of_are_checked() {
        let read = |text: &str| records("slat", text, &mut Vec::new()).map_err(|error| format!("{error:#}"));
        assert_eq!(read("[a-b]\nwhat = \"an a\"\ntool = \"Unit\"\ntest = \"t\""), Ok(()));
        for (text, why) in [
            ("['a b']\nwhat = 'w'\nunseen = 'u'", "one word"),
            ("['']\nwhat = 'w'\nunseen = 'u'", "one word"),
            ("[a]\nwhat = ' '\nunseen = 'u'", "one line"),
            ("[a]\nwhat = \"w\\nBUG\"\nunseen = 'u'", "one line"),
            ("[a]\nwhat = 'w'\ntool = 'Magic'\ntest = 't'", "unknown variant `Magic`"),
            ("[a]\nwhat = 'w'\ntool = 'Unit'", "a tool and a test"),
        ] {
            assert!(read(text).is_err_and(|error| error.contains(why)), "{text}");
        }
    }
}
