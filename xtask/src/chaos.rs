//! `chaos`: every public operation of the engine at once, from several threads, with callbacks that panic
//! (`slat/tests/soak/chaos.rs`), under `AddressSanitizer` with overflow checks; or under `ThreadSanitizer`.
//!
//! `--mistakes` makes the mistakes of [`MISTAKES`], each of which it must find in its time.

use crate::Outcome;
use crate::process::{bounded, said, with_compiler};
use crate::sanitize;
use anyhow::{Result, ensure};
use std::process::Command;

/// Mistakes (`slat/src/seeded.rs`) of rules that stand in one place and hold for every caller.
const MISTAKES: &[&str] = &[
    "section-ended-early",
    "mark-looked-up-late",
    "armed-after-event",
    "armed-after-split",
    "busy-for-ever",
    "asked-once",
];

#[derive(clap::Args)]
pub struct Args {
    /// For how long, beside the build
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
        return MISTAKES.iter().try_for_each(|mistake| {
            let said = said(test(args)?.env("SLAT_SEEDED", mistake))?;
            ensure!(!said.status.success(), "{said}{mistake} was not found in {} s", args.seconds);
            println!("SEEDED {mistake} Sanitizer 1");
            Ok(())
        });
    }
    let said = said(&mut test(args)?)?.succeeded()?;
    let sum = said.out.lines().find(|line| line.starts_with("in all: ")).unwrap_or_default();
    println!("{sum}");
    let uses = sum.split(' ').nth(2).and_then(|uses| uses.parse().ok()).unwrap_or(0_u64);
    ensure!(uses > 0, "{said}no world was run");
    println!("EXECUTIONS Sanitizer chaos {uses}");
    Ok(())
}

fn test(args: &Args) -> Result<Command> {
    const TEST: &str = "--profile fuzz -p slat --test soak -- --exact --nocapture chaos";
    let mut cargo = if args.threads {
        sanitize::with_thread_sanitizer(TEST)?
    } else {
        let mut cargo = bounded(args.seconds + 900, env!("CARGO"));
        cargo.args(["test", "--locked"]).args(TEST.split(' '));
        with_compiler(&mut cargo, "chaos")?;
        cargo
    };
    cargo.env("SLAT_CHAOS_SECONDS", args.seconds.to_string()).env("SLAT_CHAOS_SEED", args.seed.to_string());
    Ok(cargo)
}
