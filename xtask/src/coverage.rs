//! `coverage`: counts the lines of the engine that the tests run, and lists the others.
//!
//! ```text
//! the tests of slat, slat-mm and slat-vcpu, built with counters  ─▶  profiles  ─▶  counts, line by line
//! ```
//! Build and run are those of the address sanitizer ([`sanitize`]), whose reports are failures here. cargo-llvm-cov is
//! not used: it must be the compiler's wrapper, and slat has its own (`xtask/compilers`).
//!
//! Below [`LEAST`] percent it fails. It lists each line that no test runs, with its reason in `xtask/coverage.txt`. A
//! line without a reason is not a failure, since races decide whether some lines run. A reason for a line that no
//! longer exists is a failure.

use crate::outcome::Outcome;
use crate::process::{answer, cargo, emptied, executables, said, with_compiler};
use crate::sanitize::{self, ADDRESS, PROFILES, TESTS};
use crate::source::Source;
use anyhow::{Context as _, Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// Percent of the engine's lines that tests must run.
const LEAST: f64 = 95.0;
const ENGINE: [&str; 2] = ["slat/src", "crates/slots/src"];
const REASONS: &str = "xtask/coverage.txt";
/// Files that make mistakes and faults for tests.
const FOR_TESTS: [&str; 2] = ["slat/src/inject.rs", "slat/src/inject/planned.rs"];

pub fn run() -> Outcome {
    let counts = read(&measured()?, &std::env::current_dir()?)?;
    let reasons = reasons(&fs::read_to_string(REASONS)?)?;
    let (mut run, mut missed, mut unexplained) = (0, 0, 0);
    let mut sources = Vec::new();
    for (path, counts) in &counts {
        let source = Source::new(path, &fs::read_to_string(path)?);
        let end = source.shipped();
        if end == 0 || FOR_TESTS.iter().any(|file| path.ends_with(file)) {
            continue;
        }
        // A closing bracket is not a line of its own.
        let says = |line: usize| source.lines[line - 1].contains(char::is_alphanumeric);
        for (&line, &count) in counts.iter().filter(|&(&line, _)| line <= end && says(line)) {
            if count > 0 {
                run += 1;
                continue;
            }
            missed += 1;
            let why = reasons.iter().find(|it| it.covers(&source, line - 1)).map(|reason| &reason.why);
            unexplained += usize::from(why.is_none());
            println!("{}:{line}: {}", path.display(), source.lines[line - 1].trim());
            println!("    {}", why.map_or("(no reason given)", String::as_str));
        }
        sources.push(source);
    }
    let percent = 100.0 * f64::from(run) / f64::from((run + missed).max(1));
    println!("{percent:.1}% of {} lines; {missed} are not run, {unexplained} without a reason", run + missed);
    let idle: Vec<_> = reasons.iter().filter(|reason| reason.is_idle(&sources)).map(Reason::place).collect();
    ensure!(idle.is_empty(), "{REASONS} has reasons for lines that do not exist: {}", idle.join("; "));
    ensure!(percent >= LEAST, "under {LEAST}%");
    Ok(())
}

/// Builds and runs the tests. Returns the counts in lcov's format.
fn measured() -> Result<String> {
    let merged = "target/coverage/merged.profdata";
    emptied(Path::new(PROFILES))?;
    sanitize::address()?;
    let mut cargo = cargo(&format!("test --locked --no-run --message-format=json {TESTS}"));
    with_compiler(&mut cargo, ADDRESS)?;
    let programs = executables(&said(&mut cargo)?.succeeded()?.out);
    // Rustup's folder of LLVM's tools.
    let tools = Path::new(&answer("rustc", "--print target-libdir")?).with_file_name("bin");
    ensure!(tools.join("llvm-cov").exists(), "LLVM's tools are missing: rustup component add llvm-tools");
    let raw = fs::read_dir(PROFILES)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    // A killed child process leaves an incomplete profile.
    let merge = ["merge", "-sparse", "-failure-mode=all", "-o", merged];
    said(Command::new(tools.join("llvm-profdata")).args(merge).args(raw))?.succeeded()?;
    let mut export = Command::new(tools.join("llvm-cov"));
    export.args(["export", "-format=lcov", "-instr-profile", merged]);
    export.args(programs.iter().flat_map(|program| ["-object", program]));
    let engine = ENGINE.map(std::path::absolute).into_iter().collect::<io::Result<Vec<_>>>()?;
    Ok(said(export.arg("-sources").args(engine))?.succeeded()?.out)
}

/// Counts of lines (from 1) of each file.
type Counts = BTreeMap<PathBuf, BTreeMap<usize, u64>>;

/// Parses lcov's text to counts by file, relative to `root`: `SF:` begins a file, `DA:line,count` is a line with code.
fn read(text: &str, root: &Path) -> Result<Counts> {
    let (mut counts, mut file) = (Counts::new(), Path::new(""));
    for line in text.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            file = Path::new(path).strip_prefix(root).unwrap_or(Path::new(path));
        } else if let Some((line, count)) = line.strip_prefix("DA:").and_then(|rest| rest.split_once(',')) {
            *counts.entry(file.into()).or_default().entry(line.parse()?).or_default() +=
                count.parse::<u64>()?;
        }
    }
    Ok(counts)
}

/// The reason why no test runs some lines.
struct Reason {
    /// `*` for any file.
    path: String,
    /// `fn name`, for the whole of a function, or a piece of the line itself.
    what: String,
    why: String,
}

/// Parses reasons: `path: what — why`, one for each line, `#` for remarks.
fn reasons(text: &str) -> Result<Vec<Reason>> {
    let reason = |line: &str| {
        let (place, why) = line.split_once(" — ")?;
        let (path, what) = place.split_once(": ")?;
        Some(Reason { path: path.to_owned(), what: what.to_owned(), why: why.to_owned() })
    };
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| reason(line).with_context(|| format!("not `path: what — why`: {line}"))).collect()
}

impl Reason {
    fn place(&self) -> String {
        format!("{}: {}", self.path, self.what)
    }

    /// Returns whether it is about the line with this index.
    fn covers(&self, source: &Source, index: usize) -> bool {
        (self.path == "*" || Path::new(&self.path) == source.path)
            && match self.what.strip_prefix("fn ") {
                Some(name) => function_around(source, index) == Some(name),
                None => source.lines[index].contains(&self.what),
            }
    }

    fn is_idle(&self, sources: &[Source]) -> bool {
        !sources.iter().any(|source| (0..source.lines.len()).any(|index| self.covers(source, index)))
    }
}

/// Returns the function of the line with this index: the nearest one above with less indentation.
fn function_around(source: &Source, index: usize) -> Option<&str> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let own = indent(&source.lines[index]);
    source.lines[..=index].iter().enumerate().rev().find_map(|(at, line)| {
        // The closing brace of a function has the indentation of its first line.
        let around =
            at == index || indent(line) < own || (indent(line) == own && source.lines[index].trim() == "}");
        let after = line.split_once("fn ").filter(|_| around && !line.trim_start().starts_with("//"))?.1;
        Some(&after[..after.find(['(', '<'])?])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_by_file() {
        let text = "SF:/r/a/b.rs\nFN:3,f\nDA:3,0\nDA:4,18\nend_of_record\nSF:/r/c.rs\nDA:1,1\n";
        let expected = [("a/b.rs", vec![(3, 0), (4, 18)]), ("c.rs", vec![(1, 1)])];
        let expected = expected.map(|(path, lines)| (path.into(), lines.into_iter().collect()));
        assert_eq!(read(text, Path::new("/r")).unwrap(), expected.into());
    }

    const CODE: &str = "impl A {\n    fn one(&self) {\n        a();\n        if b {\n            c();\n        }\n    }\n\n\
                        \x20   const fn two<T>() {\n        d();\n    }\n}";

    #[test]
    fn a_reason_covers_a_function_or_a_line() {
        let source = Source::new("a.rs", CODE);
        let text = "# why\n\na.rs: fn one — never\n*: d( — elsewhere\nb.rs: fn two — no\na.rs: fn gone — x\n";
        let (reasons, never) = (reasons(text).unwrap(), Some("never"));
        let why = |index| reasons.iter().find(|it| it.covers(&source, index)).map(|it| &*it.why);
        let why: Vec<_> = (0..source.lines.len()).map(why).collect();
        assert_eq!(why[..7], [None, never, never, never, never, never, never]);
        assert_eq!(why[7..], [None, None, Some("elsewhere"), None, None]);
        let sources = [source];
        let idle: Vec<_> = reasons.iter().filter(|it| it.is_idle(&sources)).map(Reason::place).collect();
        assert_eq!(idle, ["b.rs: fn two", "a.rs: fn gone"], "a reason for nothing is told");
        assert!(super::reasons("a.rs: fn gone").is_err());
    }
}
