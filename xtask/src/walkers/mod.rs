//! `walkers`: slat's tables, judged by hardware walkers that others wrote (`walkers/README.md`).
//!
//! ```text
//! cargo xtask walkers [--only npt|ept|arm64|riscv] [--nightly]
//! ```
//! Each row is a bare-metal program in an emulator: it runs the real engine, and compares what the emulated walker makes of
//! its tables with what it should, look-up by look-up. What it says is kept in `target/walkers`, summed up here, and a
//! failure of the chore where anything differs. `--nightly` looks twenty times as often, with other tables every night.

mod rows;
mod said;

use crate::Outcome;
use crate::emulator::{self, Missing};
use rows::{ROWS, Row};
use said::Said;
use std::fs;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Look-ups for each format of a nightly run.
const NIGHTLY_LOOKUPS: u64 = 240_000;
const SECONDS_OF_A_DAY: u64 = 86_400;

/// What is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    only: Option<String>,
    nightly: bool,
}

/// The chore.
pub fn run(root: &Path, args: &[String]) -> Outcome {
    let asked = parse(args)?;
    let wanted = |row: &&Row| {
        asked.only.as_ref().is_none_or(|only| only == row.only) && (asked.nightly || !row.nightly)
    };
    let rows: Vec<&Row> = ROWS.iter().filter(wanted).collect();
    let folder = root.join("target/walkers");
    fs::create_dir_all(&folder)?;
    let environment = if asked.nightly {
        let day = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / SECONDS_OF_A_DAY;
        vec![("SLAT_JUDGE_SEED", day.to_string()), ("SLAT_JUDGE_LOOKUPS", NIGHTLY_LOOKUPS.to_string())]
    } else {
        Vec::new()
    };
    let mut failed = Vec::new();
    for row in rows {
        println!("== {}: {}", row.only, row.what);
        let began = Instant::now();
        match row.run(root, &folder, &environment, asked.nightly) {
            Ok(text) => {
                let log = folder.join(row.log());
                fs::write(&log, &text)?;
                let said = Said::of(&text);
                said.print();
                println!("   {:.1}s", began.elapsed().as_secs_f64());
                if let Err(why) = said.judge() {
                    println!("   FAILED: {why}; all that it said is in {}", log.display());
                    failed.push(row.what);
                }
            }
            Err(error) => {
                let skipped =
                    error.downcast_ref::<Missing>().is_some_and(|missing| emulator::skip(missing).is_ok());
                if !skipped {
                    println!("   FAILED: {error}");
                    failed.push(row.what);
                }
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ").into()) }
}

fn parse(args: &[String]) -> Result<Asked, String> {
    let usage = "usage: cargo xtask walkers [--only npt|ept|arm64|riscv] [--nightly]";
    let mut asked = Asked::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match (arg.as_str(), arg.as_str() == "--only") {
            ("--nightly", _) => asked.nightly = true,
            (_, true) => {
                let only = args.next().ok_or(usage)?;
                if !ROWS.iter().any(|row| row.only == only) {
                    return Err(format!("--only {only}: {usage}"));
                }
                asked.only = Some(only.clone());
            }
            _ => return Err(format!("{arg}: {usage}")),
        }
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_understood() {
        let of = |args: &[&str]| parse(&args.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(of(&[]), Ok(Asked::default()));
        let riscv = Asked { only: Some("riscv".to_owned()), nightly: true };
        assert_eq!(of(&["--only", "riscv", "--nightly"]), Ok(riscv));
        for wrong in [&["--only"] as &[_], &["--only", "mips"], &["--daily"], &["npt"]] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }
}
