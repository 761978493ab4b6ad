//! `walkers`: checks slat's tables by foreign hardware walkers (`proof/walkers/README.md`).
//!
//! Each row is a bare-metal program in an emulator. It runs the real engine, and compares the results of the emulated
//! walker with the expected ones, look-up by look-up. Its output is kept in `target/walkers` and summed up here. Any
//! difference is a failure.

use crate::emulator::{Bochs, Program, REQUIRED, find, or_skipped, qemu, run as heard};
use crate::outcome::Outcome;
use crate::process::on_every_processor;
use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use std::fs;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Look-ups for each format of a nightly run.
const NIGHTLY_LOOKUPS: u64 = 240_000;
/// Time limits in seconds of a run, and of a nightly one.
const SECONDS: [u32; 2] = [300, 1800];
/// The table of programs and emulators.
const ROWS: &str = include_str!("rows.json");

#[derive(clap::Args)]
pub struct Args {
    /// Only the rows of one machine
    #[arg(long, value_parser = ["npt", "ept", "arm64", "riscv"])]
    only: Option<String>,
    /// Twenty times as many look-ups, with other tables every night
    #[arg(long)]
    nightly: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// Name for `--only`.
    only: String,
    what: String,
    program: Program,
    machine: Machine,
    #[serde(default)]
    nightly: bool,
}

/// The emulator and its machine.
#[derive(Deserialize)]
#[serde(untagged)]
enum Machine {
    /// QEMU takes the program as a kernel. No argument has a space in it.
    Qemu { qemu: String, package: String, arguments: String },
    /// Bochs gets a processor model, has two processors, and takes the program in a ROM.
    Bochs { bochs: String },
}

pub fn run(args: &Args) -> Outcome {
    let mut rows: Vec<Row> = serde_json::from_str(ROWS)?;
    rows.retain(|row| args.nightly || !row.nightly);
    rows.retain(|row| args.only.as_ref().is_none_or(|only| *only == row.only));
    let folder = std::path::absolute("target/walkers")?;
    fs::create_dir_all(&folder)?;
    let mut environment = Vec::new();
    if args.nightly {
        let day = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / (24 * 3600);
        environment.push(("SLAT_JUDGE_SEED", day.to_string()));
        environment.push(("SLAT_JUDGE_LOOKUPS", NIGHTLY_LOOKUPS.to_string()));
    }
    on_every_processor(&rows, |row| {
        let outcome = row.judge(&folder, &environment, SECONDS[usize::from(args.nightly)]);
        or_skipped(outcome, REQUIRED).with_context(|| row.what.clone())
    })
}

impl Row {
    /// Runs it, prints the result, and keeps its output.
    fn judge(&self, folder: &Path, environment: &[(&str, String)], seconds: u32) -> Outcome {
        let began = Instant::now();
        let text = self.run(folder, environment, seconds)?;
        let name = self.what.replace(|char: char| !char.is_ascii_alphanumeric(), "-").to_lowercase();
        let log = folder.join(format!("{}-{name}.txt", self.only));
        fs::write(&log, &text)?;
        let said = Said::of(&text);
        // In one print, since other rows run concurrently.
        let (seconds, lines) = (began.elapsed().as_secs_f64(), said.lines.join("\n   "));
        println!("== {}: {}, {seconds:.1}s\n   {lines}", self.only, self.what);
        said.judge().with_context(|| format!("all that it said is in {}", log.display()))
    }

    /// Builds and runs the program. Returns its output.
    fn run(&self, folder: &Path, environment: &[(&str, String)], seconds: u32) -> Result<String> {
        let command = match &self.machine {
            Machine::Qemu { qemu: program, package, arguments } => {
                let mut qemu = qemu(&find(program, package)?, seconds);
                qemu.args(arguments.split(' ')).arg("-kernel").arg(self.program.build(environment)?);
                qemu
            }
            Machine::Bochs { bochs: model } => {
                find("bochs", "bochs")?;
                let (program, folder) = (self.program.build(environment)?, folder.join(model));
                Bochs { model, processors: 2, program: &program, disk: None, folder: &folder }
                    .command(seconds)?
            }
        };
        Ok(heard(command, |_| {})?.0)
    }
}

/// The parsed output of a judge (`proof/walkers/judge` prints it), and its verdict.
#[derive(Default)]
struct Said<'a> {
    /// Lines to print: one for each format and check.
    lines: Vec<&'a str>,
    lookups: u64,
    differences: u64,
    verdict: &'a str,
}

/// Least number of look-ups for a valid result.
const FEWEST: u64 = 10_000;

impl<'a> Said<'a> {
    /// Parses the whole output of a program.
    fn of(text: &'a str) -> Self {
        let mut said = Self::default();
        for line in text.lines().map(str::trim_end) {
            let kind = line.split(' ').next().unwrap_or_default();
            match kind {
                "WALK" => {
                    said.lookups += number_before(line, "look-ups");
                    said.differences += number_before(line, "differences");
                }
                "DIFF" => said.differences += 1,
                _ => {}
            }
            if ["WALK", "DIFF", "PAIR", "STALE", "MUTATED", "SKIP"].contains(&kind) {
                said.lines.push(line);
            }
            // A failed verdict stays failed.
            if said.verdict.is_empty() || said.verdict == "PASSED" {
                said.verdict = line.strip_prefix("JUDGE ").unwrap_or(said.verdict);
            }
        }
        said
    }

    /// Checks the verdict.
    fn judge(&self) -> Outcome {
        ensure!(!self.verdict.is_empty(), "the judge did not come to an end");
        ensure!(self.verdict == "PASSED", "the judge says {}", self.verdict);
        ensure!(self.differences == 0, "{} differences", self.differences);
        ensure!(self.lookups >= FEWEST, "{} look-ups are too few", self.lookups);
        Ok(())
    }
}

/// Returns the number before `word`; 0 if there is none.
fn number_before(line: &str, word: &str) -> u64 {
    let before = line.split_once(word).and_then(|(before, _)| before.split_whitespace().next_back());
    before.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_judgement_is_good_with_every_look_up_and_no_difference() {
        let good = "WALK npt4 QEMU seed 1: 10032 look-ups, 0 differences; the emulator's own: a ×2\r\n\
            MUTATE npt4 QEMU link bits 3-3 other: not noticed\r\nJUDGE PASSED\r\n";
        let said = Said::of(good);
        assert_eq!((said.lookups, said.differences, said.lines.len()), (10_032, 0, 1));
        assert!(said.judge().is_ok());
        let bad = [
            good.replace("0 differences", "1 differences"),
            good.replace("PASSED", "FAILED"),
            good.replace("10032", "9999"),
            good.replace("JUDGE PASSED", ""),
            format!("DIFF npt4\n{good}"),
            String::new(),
        ];
        for text in bad {
            assert!(Said::of(&text).judge().is_err(), "{text}");
        }
    }

    #[test]
    fn rows_are_read() {
        let rows: Vec<Row> = serde_json::from_str(ROWS).unwrap();
        let count = |wanted: fn(&Row) -> bool| rows.iter().filter(|row| wanted(row)).count();
        assert_eq!([count(|_| true), count(|row| row.nightly), count(|row| row.only == "ept")], [7, 2, 3]);
        assert_eq!(count(|row| matches!(row.machine, Machine::Bochs { .. })), 4);
    }
}
