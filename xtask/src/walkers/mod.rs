//! `walkers`: slat's tables, judged by hardware walkers that others wrote (`walkers/README.md`).
//!
//! Each row is a bare-metal program in an emulator: it runs the real engine, and compares what the emulated walker makes of
//! its tables with what it should, look-up by look-up. What it says is kept in `target/walkers`, summed up here, and a
//! failure of the chore where anything differs.

mod rows;

use crate::Outcome;
use crate::emulator::or_skipped;
use crate::process::on_every_processor;
use rows::{ROWS, Row};
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Look-ups for each format of a nightly run.
const NIGHTLY_LOOKUPS: u64 = 240_000;
const SECONDS_OF_A_DAY: u64 = 86_400;

#[derive(clap::Args)]
pub struct Args {
    /// Only the rows of one machine
    #[arg(long, value_parser = ["npt", "ept", "arm64", "riscv"])]
    only: Option<String>,
    /// Look twenty times as often, with other tables every night
    #[arg(long)]
    nightly: bool,
}

pub fn run(args: &Args) -> Outcome {
    let wanted = |row: &&Row| args.only.as_ref().is_none_or(|only| only == row.only);
    let rows: Vec<&Row> = ROWS.iter().filter(wanted).filter(|row| args.nightly || !row.nightly).collect();
    let folder = std::path::absolute("target/walkers")?;
    fs::create_dir_all(&folder)?;
    let mut environment = Vec::new();
    if args.nightly {
        let day = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / SECONDS_OF_A_DAY;
        environment.push(("SLAT_JUDGE_SEED", day.to_string()));
        environment.push(("SLAT_JUDGE_LOOKUPS", NIGHTLY_LOOKUPS.to_string()));
    }
    on_every_processor(&rows, |row| {
        let outcome = or_skipped(judge(row, &folder, &environment, args.nightly));
        outcome.map_err(|why| format!("{}: {why}", row.what).into())
    })
}

/// Runs a row, shows what came of it, and keeps what it said.
fn judge(row: &Row, folder: &Path, environment: &[(&str, String)], nightly: bool) -> Outcome {
    let began = Instant::now();
    let text = row.run(folder, environment, nightly)?;
    let log = folder.join(row.log());
    fs::write(&log, &text)?;
    let said = Said::of(&text);
    // At once, since other rows are run beside this one.
    print!("== {}: {}, {:.1}s\n{said}", row.only, row.what, began.elapsed().as_secs_f64());
    said.judge().map_err(|why| format!("{why}; all that it said is in {}", log.display()).into())
}

/// What a judge has said, line by line (`walkers/judge` prints it), and whether that is good.
#[derive(Default)]
struct Said<'a> {
    /// Lines worth showing: one for each format and check.
    lines: Vec<&'a str>,
    lookups: u64,
    differences: u64,
    passed: bool,
    failed: bool,
}

/// The fewest look-ups that count as a judgement.
const FEWEST: u64 = 10_000;

impl<'a> Said<'a> {
    /// Reads all that a program said.
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
            said.passed |= line == "JUDGE PASSED";
            said.failed |= line == "JUDGE FAILED";
        }
        said
    }

    /// Whether it is good; else why not.
    fn judge(&self) -> Result<(), String> {
        if self.failed {
            Err(String::from("the judge says so"))
        } else if !self.passed {
            Err(String::from("the judge did not come to an end"))
        } else if self.differences > 0 {
            Err(format!("{} differences", self.differences))
        } else if self.lookups < FEWEST {
            Err(format!("{} look-ups are too few", self.lookups))
        } else {
            Ok(())
        }
    }
}

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "   {line}"))
    }
}

/// The number that stands before `word`; 0 where none does.
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
        assert_eq!(said.judge(), Ok(()));
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
}
