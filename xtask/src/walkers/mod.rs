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
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
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
    let failed = on_every_processor(
        &rows,
        |row| {
            let began = Instant::now();
            let ended = match row.run(root, &folder, &environment, asked.nightly) {
                Ok(text) => Ended::Said(text),
                Err(error) => error.downcast::<Missing>().map_or_else(
                    |error| Ended::Failed(error.to_string()),
                    |missing| Ended::Skipped(*missing),
                ),
            };
            (ended, began.elapsed().as_secs_f64())
        },
        |row, (ended, seconds)| {
            println!("== {}: {}, {seconds:.1}s", row.only, row.what);
            show(row, ended, &folder)
        },
    );
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ").into()) }
}

/// How a row ended.
enum Ended {
    /// The program has run, and said this.
    Said(String),
    Skipped(Missing),
    Failed(String),
}

/// Runs `row` for each of `rows`, as many at a time as there are processors, and shows how each ended, one after the other.
/// Returns what the rows are called that did not do.
fn on_every_processor<T>(
    rows: &[&Row],
    run: impl Fn(&Row) -> T + Sync,
    show: impl Fn(&Row, T) -> Outcome + Sync,
) -> Vec<String> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(rows.len());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let ended = run(row);
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Err(why) = show(row, ended) {
                        println!("   FAILED: {why}");
                        failed.push(row.what.to_owned());
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Shows what came of a row, and keeps what it said.
fn show(row: &Row, ended: Ended, folder: &Path) -> Outcome {
    let text = match ended {
        Ended::Said(text) => text,
        Ended::Skipped(missing) => return emulator::skip(&missing, emulator::REQUIRED),
        Ended::Failed(why) => return Err(why.into()),
    };
    let log = folder.join(row.log());
    fs::write(&log, &text)?;
    let said = Said::of(&text);
    said.print();
    said.judge().map_err(|why| format!("{why}; all that it said is in {}", log.display()).into())
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
