//! The commands of a report, in order. They are parsed as a user's are, so the page names the commands that ran.
//!
//! Each step has a thread of its own: benches tie theirs to CPUs, and what they start afterwards would be tied, too.

use crate::registry::Who;
use crate::report::replay::Replay;
use crate::report::report_data::Outcome;
use crate::scenarios::ALL;
use slat_cli::error::Error;
use slat_cli::interrupt;
use slat_cli::thread::start_free;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// One part of a report.
#[derive(Clone, Debug)]
pub enum Step {
    /// A command, without the `slat` in front.
    Command(String),
    /// The watched replay of this trace.
    Watched(&'static str),
}

/// All steps: less than three minutes on two CPUs where `quick`, with small sizes and few rounds; else less than twenty, with the
/// sizes that each bench has by itself, where that is possible.
pub fn all(quick: bool) -> Vec<Step> {
    let of = |who: Who| ALL.iter().flat_map(move |row| who.commands(row));
    let sims = of(Who::Simulated).map(|sim| if quick { sim + " --quick" } else { sim });
    let benches = of(if quick { Who::Quick } else { Who::Report });
    std::iter::once(Step::Watched("cc1")).chain(sims.chain(benches).map(Step::Command)).collect()
}

impl Step {
    /// The command that does it, or what is like it.
    pub fn command(&self) -> String {
        match self {
            Self::Command(command) => command.clone(),
            Self::Watched(trace) => format!("report, the replay of {trace}"),
        }
    }

    /// Runs it. `run_line` runs a command that a user might type.
    pub fn run(self, run_line: RunLine) -> Outcome {
        outcome(move || match self {
            Self::Watched(trace) => Replay::run(trace, usize::MAX, interrupt::asked).map(Outcome::Replay),
            Self::Command(command) => run_line(&command),
        })
    }
}

/// Runs a command that measures, as it is typed behind `slat`.
pub type RunLine = fn(&str) -> Result<Outcome, Error>;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Sim;
    use crate::typed::{Benches, Command, SlatBench, measured, parse_line};

    fn is_measured(typed: &SlatBench) -> bool {
        matches!(typed.command, Command::Bench(Benches::Bench(_)) | Command::Sim(Sim::Bench(_)))
    }

    #[test]
    fn every_command_is_one_that_users_can_type() {
        for step in [all(true), all(false)].concat() {
            if let Step::Command(command) = step {
                assert!(parse_line(&command).is_ok_and(|typed| is_measured(&typed)), "{command}");
            }
        }
        assert!(parse_line("bench no-such-bench").is_err());
    }

    fn invalidate(command: &str) -> Outcome {
        Step::Command(command.to_owned()).run(measured)
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
