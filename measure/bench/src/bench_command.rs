//! `slat bench NAME`: measures a scenario on this machine.

use crate::by_name::ByName;
use crate::scenario::{Asked, Flags, Scenario, Unused};
use crate::scenarios::{ALL, by_name};
use crate::threads::bench_report::Report;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use slat_cli::error::Error;
use slat_cli::{flags, interrupt};
use std::io::{Write, stdout};
use std::process::ExitCode;

/// A scenario with the flags that were typed.
pub struct Typed {
    scenario: &'static Scenario,
    asked: Asked,
    flags: Box<dyn Flags + Send>,
}

const ENDS: &str = "0 every check holds; 1 one does not; 2 bad input, or the machine has too little of something; \
                    130 interrupted: the rows are those of the rounds until then";

impl ByName for Typed {
    fn commands() -> Vec<Command> {
        let command = |&&Scenario { name, asks, measured, .. }: &&Scenario| {
            let [time, memory] = measured.takes;
            let command = Asked::augment_args((measured.flags)(Command::new(name)));
            let command = command.mut_arg("runs", |arg| arg.default_value(measured.runs)).about(asks);
            flags::takes(command, time, memory, ENDS)
        };
        ALL.iter().map(command).collect()
    }

    fn parse(name: &str, matches: &ArgMatches) -> Option<Result<Self, clap::Error>> {
        let scenario = by_name(name)?;
        let parse = || {
            Ok(Self {
                scenario,
                asked: Asked::from_arg_matches(matches)?,
                flags: (scenario.measured.parse)(matches)?,
            })
        };
        Some(parse())
    }
}

impl Typed {
    /// Runs the bench and prints its report to stdout; a false check becomes exit status 1.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let status = self.report()?.finish(self.asked.json)?;
        if !interrupt::asked() {
            return Ok(status);
        }
        if !self.asked.json {
            writeln!(stdout(), "INTERRUPTED: the rows are those of the rounds until then")?;
        }
        Ok(interrupt::status())
    }

    /// Runs it.
    pub fn report(&self) -> Result<Report, Error> {
        self.flags.report(self.scenario, self.asked)
    }

    /// Flags that have no effect beside the others.
    pub fn unused(&self) -> Unused {
        self.flags.unused()
    }
}
