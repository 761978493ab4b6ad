//! The command line as one tree: the program parses it, `slat bench list` prints a part of it, tests walk it.

use crate::bench_command::Typed;
use crate::by_name::Chosen;
use crate::calibrate::Calibrate;
use crate::registry::Who;
use crate::report::Report;
use crate::report::report_data::Outcome;
use crate::scenario::Unused;
use crate::scenarios::ALL;
use crate::sim::Sim;
use crate::sim::sim_tables::Grid;
use crate::threads::compare_results::Compare;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use serde::Serialize;
use slat_cli::command::{Quiet, Slat};
use slat_cli::error::Error;
use slat_cli::flags::{self, Takes};
use slat_cli::sibling::BENCH;
use slat_cli::{Completions, Man};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;

/// Measure and simulate slat: benches, simulations, the costs of operations, and a report
#[derive(Parser)]
// Users type `slat bench`, so help and errors say that.
#[command(name = "slat-bench", bin_name = "slat", version = slat_cli::VERSION, arg_required_else_help = true)]
pub struct SlatBench {
    #[command(flatten)]
    pub quiet: Quiet,
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand)]
pub enum Command {
    /// Benchmark slat on this machine
    #[command(subcommand)]
    Bench(Benches),
    /// Simulate the same benchmarks with up to hundreds of vCPUs
    #[command(subcommand)]
    Sim(Sim),
    Calibrate(Calibrate),
    Report(Report),
    #[command(hide = true)]
    Completions(Completions),
    #[command(hide = true)]
    Man(Man),
}

/// The benches, and what there is of them.
#[derive(Subcommand)]
pub enum Benches {
    #[command(flatten)]
    Bench(Chosen<Typed>),
    Compare(Compare),
    List(List),
}

/// List the benches: the name of each, what it takes, where it runs, and its question
#[derive(Debug, clap::Args)]
pub struct List {
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// Print the commands instead that CI or a report runs, one a line, without the `slat` in front
    #[arg(long, value_name = "WHO", conflicts_with = "json")]
    commands: Option<Who>,
}

const PRINTS: &str = "0 printed; 2 bad input";

/// Subcommands without the name of a bench. On two CPUs of a server of 2023, with the default flags; peaks of resident memory.
const TAKES: &[Takes] = &[
    takes("bench compare", "none", "10 MiB", PRINTS),
    takes("bench list", "none", "10 MiB", PRINTS),
    takes(
        "sim validate",
        "3 min",
        "150 MiB",
        "0 every bench as simulated is within a quarter, or too noisy to say; 1 one is not; 2 bad input; 130 interrupted",
    ),
    takes("calibrate", "2 s", "140 MiB", "0 written; 2 bad input; 130 interrupted, and nothing is written"),
    takes(
        "report",
        "20 min; with --quick 2 to 3 min",
        "1.2 GiB; with --quick 650 MiB",
        "0 every check holds; 1 one does not, which the page shows; 2 bad input, or the folder cannot be written to; \
         130 interrupted: the page has what was measured until then",
    ),
];

const fn takes(command: &'static str, time: &'static str, memory: &'static str, ends: &'static str) -> Takes {
    Takes { command, time, memory, ends }
}

/// The tree.
pub fn command() -> clap::Command {
    flags::with_takes(SlatBench::command(), TAKES)
}

/// All of `slat`: its own subcommands, and those that it passes on.
pub fn whole() -> clap::Command {
    let own = command();
    let passed = |stub: clap::Command| own.find_subcommand(stub.get_name()).cloned().unwrap_or(stub);
    BENCH.subcommands.iter().fold(Slat::command(), |whole, name| whole.mut_subcommand(name, passed))
}

/// The parsed command line. A flag without effect is refused. The process ends here if clap refuses the command line.
pub fn parse() -> Result<SlatBench, Error> {
    let matches = command().get_matches();
    refuse_unused(&matches, SlatBench::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()))
}

/// A command without the `slat` in front, as if it were typed.
pub fn parse_line(line: &str) -> Result<SlatBench, Error> {
    let wrong = |error: clap::Error| Error::Usage(error.to_string());
    let words = std::iter::once("slat").chain(line.split(' '));
    let matches = command().try_get_matches_from(words).map_err(wrong)?;
    refuse_unused(&matches, SlatBench::from_arg_matches(&matches).map_err(wrong)?)
}

/// Runs a command that measures, without the `slat` in front.
pub fn measured(line: &str) -> Result<Outcome, Error> {
    match parse_line(line)?.command {
        Command::Bench(Benches::Bench(bench)) => bench.0.report().map(Outcome::Bench),
        Command::Sim(Sim::Bench(sim)) => sim.0.report().map(Outcome::Sim),
        _ => Err(Error::Usage(format!("{line} measures nothing"))),
    }
}

/// Refuses the first flag without effect that was typed.
fn refuse_unused(mut matches: &ArgMatches, typed: SlatBench) -> Result<SlatBench, Error> {
    let unused = match &typed.command {
        Command::Bench(Benches::Bench(bench)) => bench.0.unused(),
        Command::Sim(Sim::Bench(simulation)) => simulation.0.unused(),
        _ => Unused::new(),
    };
    while let Some((_, below)) = matches.subcommand() {
        matches = below;
    }
    match unused.into_iter().find(|(flag, _)| flags::is_typed(matches, flag)) {
        Some((flag, why)) => Err(Error::Usage(format!("--{}: {why}", flag.replace('_', "-")))),
        None => Ok(typed),
    }
}

impl Benches {
    /// Does what is asked.
    pub fn run(&self) -> Result<ExitCode, Error> {
        match self {
            Self::Bench(bench) => bench.0.run(),
            Self::Compare(compare) => compare.run(),
            Self::List(list) => list.run(),
        }
    }
}

/// A bench, as it is listed.
#[derive(Serialize)]
struct Entry {
    name: &'static str,
    question: &'static str,
    time: &'static str,
    memory: &'static str,
    series: &'static str,
    runs_in: &'static str,
}

impl List {
    /// Prints it.
    fn run(&self) -> Result<ExitCode, Error> {
        let entries = entries();
        let mut out = io::stdout().lock();
        if let Some(who) = self.commands {
            ALL.iter().flat_map(|row| who.commands(row)).try_for_each(|line| writeln!(out, "{line}"))?;
        } else if self.json {
            serde_json::to_writer(&mut out, &BTreeMap::from([("benches", &entries)]))
                .map_err(io::Error::from)?;
            writeln!(out)?;
        } else {
            let line = |entry: &Entry| {
                [entry.name, entry.time, entry.memory, entry.runs_in, entry.question]
                    .map(str::to_owned)
                    .to_vec()
            };
            write!(out, "{}", Grid(&entries.iter().map(line).collect::<Vec<_>>()))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// All benches, in the order of their names.
fn entries() -> Vec<Entry> {
    let mut entries: Vec<Entry> = ALL
        .iter()
        .map(|row| {
            let [time, memory] = row.measured.takes;
            Entry {
                name: row.name,
                question: row.asks,
                time,
                memory,
                series: row.series.id(),
                runs_in: row.runs_in(),
            }
        })
        .collect();
    entries.sort_by_key(|entry| entry.name);
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use slat_cli::sibling::{PAGER, VMM};

    #[test]
    fn the_command_line_keeps_its_rules() {
        command().debug_assert();
        whole().debug_assert();
        let passed = [PAGER.subcommands, VMM.subcommands].concat();
        for root in [command(), whole()] {
            let broken = flags::broken(root, &passed);
            assert!(broken.is_empty(), "{}", broken.join("\n"));
        }
    }

    #[test]
    fn every_bench_is_listed_with_its_question() {
        assert_eq!(entries().len(), ALL.len());
        assert!(entries().is_sorted_by_key(|entry| entry.name));
        assert!(entries().iter().all(|entry| entry.question.len() > 20), "a bench asks nothing");
    }

    fn refused(line: &str) -> String {
        parse_line(line).map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn a_flag_without_effect_is_refused() {
        for (line, says) in [
            ("bench access-tracking-perf --pause 5", "--pause: "),
            ("bench access-tracking-perf --pause 6 --performance", ""),
            ("bench dirty-log-perf --tests enable,harvest -v 2", "--vcpus: "),
            ("bench dirty-log-perf --tests enable --sparse 4G", ""),
            ("bench dirty-log-perf --tests log --sparse 4G", "--sparse: only --tests enable "),
            ("bench dirty-log-perf --tests disable --track writes", "--track: "),
            ("bench dirty-log-perf --lazy --pages 4k", "--lazy: "),
            ("bench dirty-log-perf --lazy", ""),
            ("bench memslot-perf --tests look-up --seconds 1", "--seconds: "),
            ("bench memslot-perf --tests map,look-up --seconds 1", ""),
            ("bench memslot-perf --tests memory -s 10", "--slots: "),
            ("bench memslot-perf --tests memory -s 10 --kvm", ""),
            ("sim zap --rest-ns 1", "--rest-ns: "),
            ("sim access-tracking-perf --rest-ns 1", ""),
            ("sim demand-paging --handler-ns 1", "--handler-ns: "),
            ("sim demand-paging --handler-ns 1 --handlers", ""),
            ("sim demand-paging --handler-ns 1 --handlers off", "--handler-ns: "),
        ] {
            let said = refused(line);
            assert!(said.starts_with(says) && said.is_empty() == says.is_empty(), "{line}: {said}");
        }
    }
}
