//! `coverage`: how many lines of the engine the tests run, and which they do not.
//!
//! ```text
//! the tests of slat, slat-mm and slat-vcpu, built with counters  ─▶  profiles  ─▶  counts, line by line ([`lines`])
//! ```
//! The build is the address sanitizer's, and the run too ([`sanitize`]): what that reports is a failure here.
//!
//! Below [`LEAST`] percent it fails. Each line that no test runs is listed, with the reason that `xtask/coverage.txt`
//! gives for it ([`reasons`]). A line without one is not a failure, since races decide whether some lines are run; a
//! reason for what is no longer there is.

mod lines;
mod reasons;

use crate::Outcome;
use crate::compiler::ADDRESS;
use crate::house::source::Source;
use crate::sanitize::{self, PROFILES, TESTS};
use reasons::Reasons;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Percent of the engine's lines that tests must run.
const LEAST: f64 = 95.0;
const ENGINE: &str = "slat/src";
const REASONS: &str = "xtask/coverage.txt";

/// The chore.
pub fn run(root: &Path) -> Outcome {
    let counts = lines::read(&measured(root)?, root);
    let reasons = Reasons::read(&fs::read_to_string(root.join(REASONS))?)?;
    let (mut run, mut missed, mut unexplained) = (0, 0, 0);
    let mut sources = Vec::new();
    for (path, counts) in counts.iter().filter(|(path, _)| is_engine(path)) {
        let source = Source::new(path, &fs::read_to_string(root.join(path))?);
        let end = source.tests_begin();
        // A bracket that closes a branch is no line of its own.
        let says = |line: usize| source.lines[line - 1].contains(char::is_alphanumeric);
        let counts = counts.iter().filter(|&(&line, _)| line <= end && says(line));
        let (hit, not): (Vec<_>, Vec<_>) = counts.partition(|&(_, &count)| count > 0);
        run += hit.len();
        missed += not.len();
        for (&line, _) in not {
            let why = reasons.of(&source, line - 1);
            unexplained += usize::from(why.is_none());
            println!("{}:{line}: {}", path.display(), source.lines[line - 1].trim());
            println!("    {}", why.unwrap_or("(no reason given)"));
        }
        sources.push(source);
    }
    let percent = 100.0 * run as f64 / (run + missed).max(1) as f64;
    println!("{percent:.1}% of {} lines; {missed} are not run, {unexplained} without a reason", run + missed);
    let idle = reasons.idle(&sources);
    if !idle.is_empty() {
        return Err(format!("{REASONS} gives reasons for what is not there: {}", idle.join("; ")).into());
    }
    if percent < LEAST { Err(format!("under {LEAST}%").into()) } else { Ok(()) }
}

/// Lines of the engine itself: not those of tests, nor of what makes mistakes and faults for them.
fn is_engine(path: &Path) -> bool {
    let is_tests = |part: &str| part.trim_end_matches(".rs").ends_with("tests");
    let mut parts = path.iter().map(|part| part.to_string_lossy());
    let for_tests = ["seeded.rs", "inject.rs"].iter().any(|name| path.ends_with(name));
    path.starts_with(ENGINE) && !for_tests && !parts.any(|part| is_tests(&part))
}

/// Builds and runs the tests; the counts as lcov writes them.
fn measured(root: &Path) -> Result<String, Box<dyn std::error::Error>> {
    let (folder, profiles) = (root.join("target/coverage"), root.join(PROFILES));
    if profiles.exists() {
        fs::remove_dir_all(&profiles)?;
    }
    sanitize::run(root, &["address".to_owned()])?;
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--locked", "--no-run", "--message-format=json"]).args(TESTS).current_dir(root);
    ADDRESS.for_cargo(root, &mut cargo)?;
    let messages = output(&mut cargo)?;
    let merged = folder.join("merged.profdata");
    let tools = tools()?;
    let raw =
        fs::read_dir(&profiles)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<PathBuf>>>()?;
    // A child that was killed, as some tests do, leaves a profile that is not whole.
    let merge = ["merge", "-sparse", "-failure-mode=all", "-o"];
    output(Command::new(tools.join("llvm-profdata")).args(merge).arg(&merged).args(raw))?;
    let objects = executables(&messages).into_iter().flat_map(|program| ["-object", program]);
    let export = ["export", "-format=lcov", "-instr-profile"];
    output(
        Command::new(tools.join("llvm-cov"))
            .args(export)
            .arg(&merged)
            .args(objects)
            .arg("-sources")
            .arg(root.join(ENGINE)),
    )
}

/// The programs that cargo says it has built.
fn executables(messages: &str) -> Vec<&str> {
    let after = messages.split("\"executable\":\"").skip(1);
    after.filter_map(|rest| rest.split('"').next()).collect()
}

/// Where rustup puts LLVM's tools.
fn tools() -> Result<PathBuf, Box<dyn std::error::Error>> {
    let libraries = output(Command::new("rustc").args(["--print", "target-libdir"]))?;
    let tools = Path::new(libraries.trim()).with_file_name("bin");
    if tools.join("llvm-cov").exists() {
        return Ok(tools);
    }
    Err("LLVM's tools are missing: rustup component add llvm-tools".into())
}

fn output(command: &mut Command) -> Result<String, Box<dyn std::error::Error>> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout)?);
    }
    Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into())
}

/// Counts of lines (from 1) of each file.
type Counts = BTreeMap<PathBuf, BTreeMap<usize, u64>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_engines_own_lines_count() {
        let is = |path: &str| is_engine(Path::new(path));
        assert!(is("slat/src/vm.rs") && is("slat/src/huge/mod.rs"));
        for not in
            ["mm/src/lib.rs", "slat/src/a/tests.rs", "slat/src/loom_tests.rs", "slat/src/history_tests/a.rs"]
        {
            assert!(!is(not), "{not}");
        }
        assert!(!is("slat/src/seeded.rs"));
    }

    #[test]
    fn programs_are_found_in_cargos_messages() {
        let messages =
            "{\"executable\":null}\n{\"a\":1,\"executable\":\"/t/a-1\",\"b\":2}\n{\"executable\":\"/t/b\"}";
        assert_eq!(executables(messages), ["/t/a-1", "/t/b"]);
    }
}
