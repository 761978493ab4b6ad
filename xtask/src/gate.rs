//! `gate`: compares the instruction counts of the hot paths with a baseline. Times on a shared machine cannot show a
//! change of two per cent; instruction counts can, and are the same each time.
//!
//! `slat/examples/gate.rs` has the paths; callgrind counts. The baseline is `xtask/gate.json`, with its compiler; with
//! another compiler the gate prints that, and compares nothing. It fails at more than [`MORE`] per cent above the
//! baseline. gungraun is not used: it compares with an earlier run in `target/`, and has no committed baseline with its
//! compiler.

use crate::outcome::Outcome;
use crate::process::{answer, cargo, executables, said};
use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

/// Allowed increase of a path, in per cent.
const MORE: f64 = 2.0;
const FILE: &str = "xtask/gate.json";
const BUILD: &str = "build --profile bench --locked -p slat --example gate";

#[derive(clap::Args)]
pub struct Args {
    /// Write the baseline anew: after a change that is worth its instructions, or saves some
    #[arg(long)]
    bless: bool,
}

/// Instructions for one operation of each path, and the compiler.
#[derive(Serialize, Deserialize)]
struct Baseline {
    compiler: String,
    instructions: Costs,
}

type Costs = BTreeMap<String, f64>;

pub fn run(args: &Args) -> Outcome {
    if said(Command::new("valgrind").arg("--version")).is_err() {
        println!("SKIPPED: valgrind is missing, so nothing counts instructions");
        return Ok(());
    }
    let compiler = compiler()?;
    if args.bless {
        let text = serde_json::to_string_pretty(&Baseline { compiler, instructions: counted()? })? + "\n";
        fs::write(FILE, &text)?;
        println!("{text}written to {FILE}");
        return Ok(());
    }
    let old: Baseline = serde_json::from_str(&fs::read_to_string(FILE)?).context(FILE)?;
    if old.compiler != compiler {
        println!(
            "SKIPPED: {FILE} was taken with {}, this is {compiler}; --bless takes it anew",
            old.compiler
        );
        return Ok(());
    }
    println!("{:<20} {:>10} {:>10}", "path", "baseline", "now");
    let failures = compared(&old.instructions, &counted()?);
    ensure!(failures.is_empty(), failures.join("; "));
    Ok(())
}

/// Prints old and new costs side by side, and returns the increases.
fn compared(old: &Costs, new: &Costs) -> Vec<String> {
    let gone = old.keys().filter(|path| !new.contains_key(*path));
    let mut failures: Vec<_> = gone.map(|path| format!("{path}: there is no such path any more")).collect();
    for (path, now) in new {
        let Some(before) = old.get(path) else {
            failures.push(format!("{path}: not in {FILE}"));
            continue;
        };
        let percent = 100.0 * (now / before - 1.0);
        let judgement = match percent {
            more if more > MORE => "  too much",
            less if less < -MORE => "  better: --bless keeps it so",
            _ => "",
        };
        println!("{path:<20} {before:>10.1} {now:>10.1} {percent:>+7.1}%{judgement}");
        if percent > MORE {
            failures.push(format!("{path}: {percent:+.1}%"));
        }
    }
    failures
}

/// Counts the instructions for one operation of each path, to a tenth.
fn counted() -> Result<Costs> {
    let built = said(cargo(BUILD).arg("--message-format=json"))?.succeeded()?;
    let programs = executables(&built.out);
    let program = programs.first().context("cargo does not say where the program is")?;
    let listed = said(&mut Command::new(program))?.succeeded()?.out;
    let counting = ["--tool=callgrind", "--toggle-collect=gate::counted*", "--callgrind-out-file=/dev/null"];
    let count = |(path, times): (&str, &str)| {
        let report = said(Command::new("valgrind").args(counting).args([program, path]))?.succeeded()?.err;
        let total = total(&report).with_context(|| format!("{path}: callgrind counted nothing"))?;
        Ok((path.to_owned(), (10.0 * total as f64 / times.parse::<f64>()?).round() / 10.0))
    };
    listed.lines().filter_map(|line| line.split_once(' ')).map(count).collect()
}

/// Parses callgrind's count: `==7== Collected : 446096`.
fn total(report: &str) -> Option<u64> {
    let number = report.lines().find_map(|line| line.split_once("Collected :"))?.1;
    number.trim().parse().ok().filter(|&total| total > 0)
}

/// Returns the compiler and its target.
fn compiler() -> Result<String> {
    Ok(format!("{} {}", answer("rustc", "--version")?, answer("rustc", "--print host-tuple")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_that_is_kept_is_read() {
        let kept: Baseline = serde_json::from_str(include_str!("../gate.json")).unwrap();
        assert!(kept.compiler.starts_with("rustc ") && kept.instructions.len() > 5);
        assert!(kept.instructions.values().all(|&cost| cost > 0.0));
    }

    #[test]
    fn two_percent_are_let_pass_and_every_path_is_compared() {
        let costs = |a, b| Costs::from([("a".into(), a), ("b".into(), b)]);
        let (old, less) = (costs(100.0, 100.0), Costs::from([("a".into(), 100.0)]));
        assert!(compared(&old, &costs(101.9, 90.0)).is_empty());
        assert_eq!(compared(&old, &costs(102.1, 100.0)), ["a: +2.1%"]);
        assert_eq!(compared(&old, &less), ["b: there is no such path any more"]);
        assert_eq!(compared(&less, &old), ["b: not in xtask/gate.json"]);
    }

    #[test]
    fn callgrinds_total_is_found() {
        assert_eq!(total("==7== Events    : Ir\n==7== Collected : 446096\n"), Some(446_096));
        assert_eq!(total("==7== Collected : 0"), None, "the function was not found by its name");
        assert_eq!(total(""), None);
    }
}
