//! `walkers`: slat's tables, judged by hardware walkers that others wrote (`walkers/README.md`).
//!
//! Each row is a bare-metal program in an emulator: it runs the real engine, and compares what the emulated walker makes of
//! its tables with what it should, look-up by look-up. What it says is kept in `target/walkers`, summed up here, and a
//! failure of the chore where anything differs.

mod rows;
mod said;

use crate::Outcome;
use crate::emulator::or_skipped;
use crate::process::on_every_processor;
use rows::{ROWS, Row};
use said::Said;
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
