//! `gate`: what the hot paths cost in instructions, against what they have cost. Times of a shared machine say nothing
//! about two per cent; instructions do, and are the same each time.
//!
//! `slat/examples/gate.rs` has the paths; callgrind counts. The baseline is `xtask/gate.txt`, with the compiler that it was
//! taken with: by another one nothing is compared, and that is said. More than [`MORE`] per cent over it fails.
//!
//! Not gungraun: it compares with an earlier run in `target/`, and has no baseline that is committed with its compiler.

use crate::Outcome;
use crate::process::{cargo, executables, said};
use std::error::Error;
use std::fs;
use std::process::Command;

/// Per cent by which a path may cost more.
const MORE: f64 = 2.0;
const FILE: &str = "xtask/gate.txt";
const BUILD: &str = "build --profile bench --locked -p slat --example gate";

#[derive(clap::Args)]
pub struct Args {
    /// Write the baseline anew: after a change that is worth its instructions, or saves some
    #[arg(long)]
    bless: bool,
}

/// A path, and instructions for one operation of it.
type Cost = (String, f64);

pub fn run(args: &Args) -> Outcome {
    if said(Command::new("valgrind").arg("--version")).is_err() {
        println!("SKIPPED: valgrind is missing, so nothing counts instructions");
        return Ok(());
    }
    let compiler = compiler()?;
    if args.bless {
        let text = written(&compiler, &counted()?);
        fs::write(FILE, &text)?;
        println!("{text}written to {FILE}");
        return Ok(());
    }
    let text = fs::read_to_string(FILE)?;
    let (taken_with, old) = read(&text)?;
    if taken_with != compiler {
        println!("SKIPPED: {FILE} was taken with {taken_with}, this is {compiler}; --bless takes it anew");
        return Ok(());
    }
    println!("{:<20} {:>10} {:>10}", "path", "baseline", "now");
    let failures = compared(&old, &counted()?);
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
}

/// Shows old and new costs side by side, and returns what is wrong with the new ones.
fn compared(old: &[Cost], new: &[Cost]) -> Vec<String> {
    let of = |costs: &[Cost], path: &str| costs.iter().find(|(name, _)| name == path).map(|&(_, cost)| cost);
    let gone = old.iter().filter(|(path, _)| of(new, path).is_none());
    let mut failures: Vec<String> =
        gone.map(|(path, _)| format!("{path}: there is no such path any more")).collect();
    for (path, now) in new {
        let Some(before) = of(old, path) else {
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

/// The baseline's compiler and costs: remarks, the compiler, and then a path and its instructions on each line.
fn read(text: &str) -> Result<(&str, Vec<Cost>), String> {
    let mut lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let compiler = lines.next().ok_or("the baseline names no compiler")?;
    let cost = |line: &str| {
        let (path, cost) = line.split_once(char::is_whitespace)?;
        Some((path.to_owned(), cost.trim().parse().ok().filter(|&cost: &f64| cost > 0.0)?))
    };
    let costs =
        lines.map(|line| cost(line).ok_or_else(|| format!("not a path and its instructions: {line}")));
    Ok((compiler, costs.collect::<Result<_, _>>()?))
}

fn written(compiler: &str, costs: &[Cost]) -> String {
    let lines = costs.iter().map(|(path, cost)| format!("{path:<20} {cost:.1}\n"));
    format!(
        "# Instructions for one operation, by `cargo xtask gate --bless`.\n{compiler}\n{}",
        lines.collect::<String>()
    )
}

/// Instructions for one operation of each path.
fn counted() -> Result<Vec<Cost>, Box<dyn Error>> {
    let built = said(cargo(BUILD).arg("--message-format=json"))?.succeeded()?;
    let programs = executables(&built.out);
    let program = programs.first().ok_or("cargo does not say where the program is")?;
    let listed = said(&mut Command::new(program))?.succeeded()?.out;
    let paths = listed.lines().filter_map(|line| line.split_once(' '));
    let counting = ["--tool=callgrind", "--toggle-collect=gate::counted*", "--callgrind-out-file=/dev/null"];
    let count = |(path, times): (&str, &str)| {
        let report = said(Command::new("valgrind").args(counting).args([program, path]))?.succeeded()?.err;
        let total = total(&report).ok_or_else(|| format!("{path}: callgrind counted nothing"))?;
        Ok((path.to_owned(), total as f64 / times.parse::<f64>()?))
    };
    paths.map(count).collect()
}

/// What callgrind says it has counted: `==7== Collected : 446096`.
fn total(report: &str) -> Option<u64> {
    let number = report.lines().find_map(|line| line.split_once("Collected :"))?.1;
    number.trim().parse().ok().filter(|&total| total > 0)
}

/// The compiler, and what it compiles for.
fn compiler() -> Result<String, Box<dyn Error>> {
    let text = said(Command::new("rustc").arg("-vV"))?.succeeded()?.out;
    let version = text.lines().next().unwrap_or_default();
    let host = text.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    Ok(format!("{version} {host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(costs: &[(&str, f64)]) -> Vec<Cost> {
        costs.iter().map(|&(path, cost)| (path.to_owned(), cost)).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        let (compiler, costs) =
            ("rustc 1.95.0 x86_64", costs(&[("fault-install", 108.9), ("translate", 77.0)]));
        assert_eq!(read(&written(compiler, &costs)), Ok((compiler, costs)));
        for wrong in ["", "# only remarks", "rustc\nfault-install", "rustc\nfault-install many", "rustc\na 0"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn two_percent_are_let_pass_and_every_path_is_compared() {
        let old = costs(&[("a", 100.0), ("b", 100.0)]);
        assert!(compared(&old, &costs(&[("a", 101.9), ("b", 90.0)])).is_empty());
        assert_eq!(compared(&old, &costs(&[("a", 102.1), ("b", 100.0)])), ["a: +2.1%"]);
        assert_eq!(compared(&old, &old[..1]), ["b: there is no such path any more"]);
        assert_eq!(compared(&old[..1], &old), ["b: not in xtask/gate.txt"]);
    }

    #[test]
    fn callgrinds_total_is_found() {
        assert_eq!(total("==7== Events    : Ir\n==7== Collected : 446096\n"), Some(446_096));
        assert_eq!(total("==7== Collected : 0"), None, "the function was not found by its name");
        assert_eq!(total(""), None);
    }
}
