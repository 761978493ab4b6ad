//! One command line, run in the repository's root, for so long and no longer. What it says goes to a file, is read for
//! evidence, and shown in part where it fails.

use super::evidence::Evidence;
use super::steps::Line;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

/// Lines shown of a failure.
const SHOWN: usize = 60;

/// Runs `line`, keeps what it says in `log`, and adds what it shows to `evidence`. Returns those of its tools that have
/// said nothing. An error says all that there is to say.
pub fn run(
    root: &Path,
    log: &Path,
    line: &Line,
    evidence: &mut Evidence,
) -> Result<Vec<&'static str>, String> {
    println!("$ {}", shown(line));
    let ends = File::create(log).and_then(|file| Ok([Stdio::from(file.try_clone()?), Stdio::from(file)]));
    let [out, err] = ends.map_err(|error| format!("{}: {error}", log.display()))?;
    // coreutils' `timeout` ends the command with all that it has started.
    let status = Command::new("timeout")
        .args(["--kill-after=10", &line.bound.to_string()])
        .args(line.words.split_whitespace())
        .envs(line.environment.iter().copied())
        .env("CARGO_TERM_COLOR", "never")
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .status()
        .map_err(|error| format!("timeout: {error}"))?;
    let text = fs::read(log).map_err(|error| format!("{}: {error}", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    let said = Evidence::of(&text);
    let silent = line.tools.iter().filter(|tool| !said.has(tool)).copied().collect();
    evidence.add(said);
    if status.success() {
        return Ok(silent);
    }
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(SHOWN)..] {
        println!("    {line}");
    }
    let why = match status.code() {
        Some(124 | 137) => format!("not over after {} s", line.bound),
        _ => status.to_string(),
    };
    Err(format!("{}: {why}; all that it said is in {}", line.words, log.display()))
}

/// The line as one would type it.
fn shown(line: &Line) -> String {
    let variables = line.environment.iter().map(|(name, value)| {
        let quote = if value.contains(' ') { "'" } else { "" };
        format!("{name}={quote}{value}{quote} ")
    });
    variables.chain([line.words.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Line =
        Line { tiers: &[], environment: &[], words: "", tools: &["Loom", "Model"], budget: 1, bound: 60 };

    fn run_here(name: &str, words: &'static str) -> Result<Vec<&'static str>, String> {
        let log = std::env::temp_dir().join(format!("slat-verify-{name}-{}", std::process::id()));
        let outcome = run(Path::new("."), &log, &Line { words, ..LINE }, &mut Evidence::default());
        fs::remove_file(&log).unwrap();
        outcome
    }

    #[test]
    fn a_tool_that_says_nothing_is_told() {
        assert_eq!(run_here("echo", "echo EXECUTIONS Loom a 3"), Ok(vec!["Model"]));
    }

    #[test]
    fn failures_are_told() {
        assert!(run_here("fails", "false").unwrap_err().contains("exit status: 1"));
        assert!(run_here("missing", "no-such-command-at-all").unwrap_err().contains("exit status: 127"));
    }

    #[test]
    fn a_line_is_shown_as_it_would_be_typed() {
        let line = Line { environment: &[("A", "--cfg loom"), ("B", "3")], words: "cargo test", ..LINE };
        assert_eq!(shown(&line), "A='--cfg loom' B=3 cargo test");
    }
}
