//! `chaos`: every public operation of the engine at once, from several threads, with callbacks that panic
//! (`slat/tests/soak/chaos.rs`), under `AddressSanitizer` with overflow checks; or under `ThreadSanitizer`.
//!
//! `--mistakes` makes the mistakes of [`MISTAKES`], each of which it must find in its time.

use crate::mutants::copy::{Copied, VARIABLE};
use crate::mutants::record;
use crate::outcome::Outcome;
use crate::process::{bounded, said, tail, with_compiler};
use crate::sanitize;
use anyhow::{Result, ensure};
use std::process::Command;

/// Mistakes (`proof/mistakes/`) in rules that one place keeps for every caller. `inject_tests` finds mistakes that show only
/// if a callback panics at a certain call, because it panics at each call; `chaos` finds such a mistake by chance.
const MISTAKES: &[&str] = &["section-ended-early", "mark-looked-up-late"];

/// Messages of the test or the sanitizer that report a found mistake.
const FOUND: [&str; 2] = ["panicked at", "AddressSanitizer: "];

const COMPILER: &str = "chaos";

#[derive(clap::Args)]
pub struct Args {
    /// Seconds to run, without the build
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..86_400))]
    seconds: u32,
    /// Seed of the first world
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Run under `ThreadSanitizer` instead
    #[arg(long)]
    threads: bool,
    /// Make each mistake, which must be found
    #[arg(long, conflicts_with = "threads")]
    mistakes: bool,
}

pub fn run(args: &Args) -> Outcome {
    if args.mistakes {
        return mistakes(args);
    }
    let said = said(&mut test(args)?)?.succeeded()?;
    let sum = said.out.lines().find(|line| line.starts_with("in all: ")).unwrap_or_default();
    println!("{sum}");
    let uses = sum.split(' ').nth(2).and_then(|uses| uses.parse().ok()).unwrap_or(0_u64);
    ensure!(uses > 0, "{said}no world was run");
    println!("EXECUTIONS Sanitizer chaos {uses}");
    Ok(())
}

/// Makes each mistake in the copy of the sources that has all of them.
fn mistakes(args: &Args) -> Outcome {
    let records = record::mistakes()?;
    let copied = Copied::of(&records)?;
    for mistake in MISTAKES {
        ensure!(records.iter().any(|record| record.name == *mistake), "no record is called {mistake}");
        let mut test = test(args)?;
        copied.builds(&mut test, "target", COMPILER)?.env(VARIABLE, mistake);
        let said = said(&mut test)?;
        let (is_over, text) = (said.status.success(), said.to_string());
        ensure!(!is_over, "{}\n{mistake} was not found in {} s", tail(&text, 20), args.seconds);
        let is_found = FOUND.iter().any(|sign| text.contains(sign));
        ensure!(is_found, "{}\nthe test with {mistake} failed otherwise", tail(&text, 40));
        println!("{mistake}: found");
    }
    println!("EXECUTIONS Sanitizer mistakes in chaos {}", MISTAKES.len());
    Ok(())
}

fn test(args: &Args) -> Result<Command> {
    let mut cargo = bounded(args.seconds + 900, env!("CARGO"));
    cargo.args(["test", "--locked", "--profile", "fuzz"]);
    if args.threads {
        sanitize::with_thread_sanitizer(&mut cargo)?;
    } else {
        with_compiler(&mut cargo, COMPILER)?;
    }
    cargo.args("-p slat --test soak -- --exact --nocapture chaos".split(' '));
    cargo.env("SLAT_CHAOS_SECONDS", args.seconds.to_string()).env("SLAT_CHAOS_SEED", args.seed.to_string());
    Ok(cargo)
}
