//! One command line, run for so long and no longer. What it says goes to a file, is read for evidence, and shown in part
//! where it fails.

use super::evidence::Evidence;
use super::steps::Line;
use crate::process::{bounded, tail, was_ended};
use std::error::Error;
use std::fs::{self, File};
use std::path::Path;

const SHOWN: usize = 60;

/// Runs `line`, keeps what it says in `log`, and adds what it shows to `evidence`. Returns those of its tools that have
/// said nothing. An error says all that there is to say.
pub fn run(log: &Path, line: &Line, evidence: &mut Evidence) -> Result<Vec<&'static str>, Box<dyn Error>> {
    println!("$ {}", shown(line));
    let file = File::create(log)?;
    let mut words = line.words.split_whitespace();
    let mut command = bounded(line.bound, words.next().unwrap_or_default());
    command.args(words).envs(line.environment.iter().copied()).env("CARGO_TERM_COLOR", "never");
    let status = command.stdout(file.try_clone()?).stderr(file).status()?;
    let text = fs::read(log)?;
    let text = String::from_utf8_lossy(&text);
    let heard = evidence.read(&text);
    if status.success() {
        return Ok(line.tools.iter().filter(|tool| !heard.contains(**tool)).copied().collect());
    }
    println!("    {}", tail(&text, SHOWN).replace('\n', "\n    "));
    let why = if was_ended(status) { format!("not over after {} s", line.bound) } else { status.to_string() };
    Err(format!("{}: {why}; all that it said is in {}", line.words, log.display()).into())
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
        let outcome = run(&log, &Line { words, ..LINE }, &mut Evidence::default());
        fs::remove_file(&log).unwrap();
        outcome.map_err(|error| error.to_string())
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
