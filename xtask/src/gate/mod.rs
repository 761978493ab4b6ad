//! `gate`: what the hot paths cost in instructions, against what they have cost. Times of a shared machine say nothing
//! about two per cent; instructions do, and are the same each time.
//!
//! `slat/examples/gate.rs` has the paths; callgrind counts. The baseline is `xtask/gate.txt` ([`baseline`]), with the
//! compiler that it was taken with: by another one nothing is compared, and that is said. More than [`MORE`] per cent
//! over it fails. `--bless` writes it anew: after a change that is worth its instructions, or saves some.

mod baseline;

use crate::Outcome;
use baseline::Baseline;
use std::path::Path;
use std::process::Command;

/// Per cent by which a path may cost more.
const MORE: f64 = 2.0;
const FILE: &str = "xtask/gate.txt";
const BUILD: &str = "build --profile bench --locked -p slat --example gate";

/// The chore; `--bless` writes the baseline.
pub fn run(root: &Path, args: &[String]) -> Outcome {
    let bless = match args {
        [] => false,
        [flag] if flag == "--bless" => true,
        _ => return Err(format!("usage: cargo xtask gate [--bless], not {}", args.join(" ")).into()),
    };
    if said(Command::new("valgrind").arg("--version")).is_err() {
        println!("SKIPPED: valgrind is missing, so nothing counts instructions");
        return Ok(());
    }
    let compiler = compiler()?;
    let old = if bless { None } else { Some(Baseline::read(&std::fs::read_to_string(root.join(FILE))?)?) };
    if let Some(old) = old.as_ref().filter(|old| old.compiler != compiler) {
        println!(
            "SKIPPED: {FILE} was taken with {}, this is {compiler}; --bless takes it anew",
            old.compiler
        );
        return Ok(());
    }
    let new = Baseline { compiler, costs: counted(root)? };
    let Some(old) = old else {
        std::fs::write(root.join(FILE), new.to_string())?;
        println!("{new}written to {FILE}");
        return Ok(());
    };
    let mut failures = old.missing(&new);
    println!("{:<20} {:>10} {:>10}", "path", "baseline", "now");
    for (path, now) in &new.costs {
        let Some(before) = old.of(path) else {
            failures.push(format!("{path}: not in {FILE}"));
            continue;
        };
        let percent = 100.0 * (now / before - 1.0);
        println!("{path:<20} {before:>10.1} {now:>10.1} {percent:>+7.1}%{}", judgement(percent));
        if percent > MORE {
            failures.push(format!("{path}: {percent:+.1}%"));
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
}

fn judgement(percent: f64) -> &'static str {
    if percent > MORE {
        "  too much"
    } else if percent < -MORE {
        "  better: --bless keeps it so"
    } else {
        ""
    }
}

/// Instructions for one operation of each path.
fn counted(root: &Path) -> Result<Vec<(String, f64)>, Box<dyn std::error::Error>> {
    let built = said(
        Command::new(env!("CARGO")).args(BUILD.split(' ')).arg("--message-format=json").current_dir(root),
    )?;
    let program = built.split("\"executable\":\"").nth(1).and_then(|rest| rest.split('"').next());
    let program = program.ok_or("cargo does not say where the program is")?;
    let listed = said(&mut Command::new(program))?;
    let paths = listed.lines().filter_map(|line| line.split_once(' '));
    paths
        .map(|(path, times)| {
            let report = said(
                Command::new("valgrind")
                    .args([
                        "--tool=callgrind",
                        "--toggle-collect=gate::counted*",
                        "--callgrind-out-file=/dev/null",
                    ])
                    .args([program, path]),
            )?;
            let total = total(&report).ok_or_else(|| format!("{path}: callgrind counted nothing"))?;
            Ok((path.to_owned(), total as f64 / times.parse::<f64>()?))
        })
        .collect()
}

/// What callgrind says it has counted: `==7== Collected : 446096`.
fn total(report: &str) -> Option<u64> {
    let number = report.lines().find_map(|line| line.split_once("Collected :"))?.1;
    number.trim().parse().ok().filter(|&total| total > 0)
}

/// The compiler, and what it compiles for.
fn compiler() -> Result<String, Box<dyn std::error::Error>> {
    let text = said(Command::new("rustc").arg("-vV"))?;
    let version = text.lines().next().unwrap_or_default();
    let host = text.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    Ok(format!("{version} {host}"))
}

/// Both streams of a command that succeeds.
fn said(command: &mut Command) -> Result<String, Box<dyn std::error::Error>> {
    let output = command.output()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        Err(format!("{command:?}: {}\n{text}", output.status).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrinds_total_is_found() {
        assert_eq!(total("==7== Events    : Ir\n==7== Collected : 446096\n"), Some(446_096));
        assert_eq!(total("==7== Collected : 0"), None, "the function was not found by its name");
        assert_eq!(total(""), None);
    }

    #[test]
    fn two_percent_are_let_pass() {
        assert_eq!([judgement(1.9), judgement(-1.9)], ["", ""]);
        assert!(judgement(2.1).contains("too much") && judgement(-2.1).contains("better"));
    }
}
