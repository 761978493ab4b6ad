//! What is run, in order. The commands are parsed as a user's are, so those that the page names are those that ran.
//!
//! Each step has a thread of its own: benches tie theirs to CPUs, and what they start afterwards would be tied, too.

use super::data::Outcome;
use super::replay::Replay;
use crate::bench::Bench;
use crate::sim::Simulation;
use crate::typed::refuse;
use clap::{CommandFactory, FromArgMatches};
use serde::Serialize;
use serde::de::DeserializeOwned;
use slat_cli::error::Error;
use slat_cli::interrupt;
use slat_cli::thread::start_free;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// One part of a report.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A command, without the `slat` in front.
    Command(&'static str),
    /// The watched replay of this trace, up to so many accesses.
    Replay(&'static str, usize),
}

use Step::{Command, Replay as Watched};

/// In less than three minutes on two CPUs: small sizes, few rounds.
const QUICK: &[Step] = &[
    Watched("cc1", usize::MAX),
    Command("sim demand-paging --quick"),
    Command("sim access-tracking-perf --quick"),
    Command("sim memslot-perf --quick"),
    Command("sim numa-balancing --quick"),
    Command("sim ksm-perf --quick"),
    Command("sim zap --quick"),
    Command("bench demand-paging -v 4 -b 32M --runs 5"),
    Command("bench demand-paging -v 4 -b 16M -u missing --runs 3"),
    Command("bench fault-floor -b 128M --runs 5"),
    Command("bench access-tracking-perf --performance -l -v 1,2,4,8 -b 32M --runs 3"),
    Command("bench aging-pass --dense 64M --sparse 2G --runs 3"),
    Command("bench reclaim --limit 50 --accesses 400000 --runs 1"),
    Command(
        "bench memslot-perf -s 10,100,509 --tests map,unmap,unmap-2m,move-active,move-inactive,setup --runs 3 --seconds 0.02",
    ),
    Command(
        "bench memslot-perf -s 32764 --tests unmap-2m,unmap,move-active,move-inactive,setup --runs 1 --seconds 0",
    ),
    Command("bench memslot-perf -s 8194 --tests map --runs 3 --seconds 0.02"),
    Command("bench numa-balancing --accesses 200000 --passes 2 --every 50000 --runs 2"),
    Command("bench ksm-perf --runs 5"),
    Command("bench invalidate -b 64M --runs 3"),
    Command("bench zap --sizes 1G --runs 3"),
    Command("bench dirty-log-perf --tests enable,harvest --sparse 8G --dense 512M --harvested 256M --runs 3"),
    Command("bench dirty-log-perf --tests split,disable --huge 512M --exits 1000 --runs 2"),
    Command("bench migrate -b 64M --runs 1 --json"),
];

/// In less than twenty minutes on two CPUs: the sizes that each bench has by itself, where that is possible.
const FULL: &[Step] = &[
    Watched("cc1", usize::MAX),
    Command("sim demand-paging"),
    Command("sim access-tracking-perf"),
    Command("sim memslot-perf"),
    Command("sim numa-balancing"),
    Command("sim ksm-perf"),
    Command("sim zap"),
    Command("bench demand-paging -v 4"),
    Command("bench demand-paging -v 4 -u missing --runs 3"),
    Command("bench demand-paging -v 4 --prefilled"),
    Command("bench fault-floor"),
    Command("bench access-tracking-perf --performance -l"),
    Command("bench aging-pass --runs 5"),
    Command("bench reclaim --runs 3"),
    Command(
        "bench memslot-perf -s 10,30,50,100,509 --tests map,unmap,unmap-2m,move-active,move-inactive,setup",
    ),
    Command(
        "bench memslot-perf -s 32764 --tests unmap-2m,unmap,move-active,move-inactive,setup --runs 3 --seconds 0",
    ),
    Command("bench memslot-perf -s 8194 --tests map"),
    Command(
        "bench memslot-perf -s 1000000 --tests unmap-2m,unmap,move-active,move-inactive,look-up --runs 3",
    ),
    Command("bench numa-balancing --passes 6 --runs 5"),
    Command("bench ksm-perf --runs 25"),
    Command("bench invalidate --runs 5"),
    Command("bench zap --sizes 1G,16G"),
    Command("bench dirty-log-perf --tests enable,harvest --sparse 64G --runs 3"),
    Command("bench dirty-log-perf --tests log,split,disable --huge 1G --exits 1000 --runs 3"),
    Command("bench migrate -b 256M --runs 2 --json"),
];

/// All steps.
pub fn all(quick: bool) -> &'static [Step] {
    if quick { QUICK } else { FULL }
}

impl Step {
    /// The command that does it, or what is like it.
    pub fn command(self) -> String {
        match self {
            Command(command) => command.to_owned(),
            Watched(trace, _) => format!("report, the replay of {trace}"),
        }
    }

    /// Does it.
    pub fn run(self) -> Outcome {
        outcome(move || self.measure())
    }

    fn measure(self) -> Result<Outcome, Error> {
        match self {
            Watched(trace, most) => Replay::run(trace, most, interrupt::asked).map(Outcome::Replay),
            Command(command) => match parse(command)? {
                Asked::Bench(bench) => bench.report().map(Outcome::Bench),
                Asked::Sim(sim) => read(&sim.report()?).map(Outcome::Sim),
            },
        }
    }
}

/// For a step that is done when an end is asked for: a bench tells what it has by then, a simulation does not.
const PATIENCE: Duration = Duration::from_millis(700);

/// Of what is done on a thread of its own. Whatever goes wrong is an outcome, too.
fn outcome(done: impl FnOnce() -> Result<Outcome, Error> + Send + 'static) -> Outcome {
    let (tell, told) = mpsc::channel();
    let done = AssertUnwindSafe(done);
    // After an interrupt it is left behind, and nothing listens any more.
    start_free(move || tell.send(catch_unwind(done)).ok());
    let mut asked: Option<Instant> = None;
    let result = loop {
        match told.recv_timeout(Duration::from_millis(50)) {
            Ok(result) => break result,
            Err(_) if asked.is_some_and(|asked| asked.elapsed() > PATIENCE) => {
                return Outcome::Failed("interrupted".into());
            }
            Err(_) if interrupt::asked() => _ = asked.get_or_insert_with(Instant::now),
            Err(_) => {}
        }
    };
    match result {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Outcome::Failed(error.to_string()),
        Err(_) => Outcome::Failed("it panicked: see what it wrote to standard error".into()),
    }
}

/// What a command of this file may be.
#[derive(Debug, clap::Parser)]
enum Asked {
    #[command(subcommand)]
    Bench(Bench),
    #[command(subcommand)]
    Sim(Simulation),
}

fn parse(command: &str) -> Result<Asked, Error> {
    let words = std::iter::once("slat").chain(command.split(' '));
    let wrong = |error: clap::Error| Error::Usage(error.to_string());
    let matches = Asked::command().try_get_matches_from(words).map_err(wrong)?;
    let asked = Asked::from_arg_matches(&matches).map_err(wrong)?;
    let unused = match &asked {
        Asked::Bench(bench) => bench.unused(),
        Asked::Sim(sim) => sim.unused(),
    };
    refuse(&matches, unused)?;
    Ok(asked)
}

/// A report as the page reads it: by way of its JSON, which is what is promised to others.
fn read<T: DeserializeOwned>(report: &impl Serialize) -> Result<T, Error> {
    let read = serde_json::to_value(report).and_then(serde_json::from_value);
    read.map_err(|error| Error::Machine(format!("a report is not what it promises to be: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_one_that_users_can_type() {
        for step in [QUICK, FULL].concat() {
            if let Command(command) = step {
                parse(command).unwrap_or_else(|error| panic!("{command}: {error}"));
            }
        }
        assert!(parse("bench no-such-bench").is_err());
    }

    /// By this one's name, so that the test builds no other.
    fn invalidate(command: &str) -> Outcome {
        let Ok(Asked::Bench(Bench::Invalidate(bench))) = parse(command) else { panic!("{command}") };
        outcome(move || bench.report().map(Outcome::Bench))
    }

    #[test]
    fn what_a_bench_hands_back_is_read_whole() {
        let Outcome::Bench(bench) = invalidate("bench invalidate -b 2M --runs 1") else { panic!("no bench") };
        assert_eq!(bench.bench, "invalidate");
        assert!(bench.rows.len() > 10 && bench.checks.iter().all(|check| check.ok));
    }

    #[test]
    fn what_goes_wrong_is_an_outcome() {
        let Outcome::Failed(why) = invalidate("bench invalidate -b 3M") else {
            panic!("3M is no multiple of 2M")
        };
        assert!(why.starts_with("--bytes: "), "{why}");
        let Outcome::Failed(why) = outcome(|| panic!("as a test")) else { panic!("it panicked") };
        assert!(why.starts_with("it panicked"), "{why}");
    }
}
