//! `slat sim`: scenarios with 1 to hundreds of vCPUs, in virtual time on simulated CPUs.
//!
//! ```text
//! flags ────────▶ bench × vCPUs × policies ──▶ rows ──┬─▶ sweep of the uncertain costs
//!            └──▶ costs: a file, measured or assumed  └─▶ against the series' own figures
//! ```
//! The engine is the shipped one, compiled a second time on simulated atomics and locks. A simulation gives the same bytes on every
//! machine. Its worth depends on the costs and on the model. So a report lists its costs, marks each as measured or assumed, and
//! shows whether the ranking holds when they are wrong. `slat sim validate` compares the same scenarios with real threads, as far as
//! this machine has CPUs for them.
//!
//! | file | idea |
//! |---|---|
//! | `sim_flags` | the flags |
//! | `invalidator_flags` | flags of invalidators, and the cases that follow |
//! | `work_flags` | flags of the work around the engine |
//! | `named_costs`, `cost_sheet` | the costs: assumed, of a file, or measured now |
//! | `simulate` | the runs, and their report |
//! | `cost_sweep` | the ranking with uncertain costs halved and doubled |
//! | `against` | the series' own figures: one column fits, the others are predicted |
//! | `sim_report` | the report as a value |
//! | `sim_tables` | the report as tables |
//! | `validate` | simulated against real threads |

mod against;
mod cost_sweep;
mod invalidator_flags;
mod named_costs;
mod sim_flags;
pub mod sim_report;
pub mod sim_tables;
mod simulate;
pub mod validate;
mod work_flags;

use crate::by_name::{ByName, Chosen};
use crate::scenario::Unused;
use crate::sim::sim_flags::Asked;
use crate::sim::sim_report::SimReport;
use crate::threads::bench_report::print;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use invalidator_flags::{Beside, Case};
use serde_json::Map;
use slat_cli::error::Error;
use slat_cli::flags;
use slat_machine::NoStack;
use slat_sim::scenario::{Scenario, Simulated};
use slat_sim::scenarios::{ALL, by_name};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;
use validate::Validate;

/// The subcommands of `slat sim`.
#[derive(clap::Subcommand)]
pub enum Sim {
    #[command(flatten)]
    Bench(Chosen<Simulation>),
    Validate(Validate),
}

/// A bench, and what is asked of it.
pub struct Simulation {
    bench: &'static Scenario,
    asked: Asked,
    /// Where it has invalidators.
    beside: Option<Beside>,
}

const ENDS: &str = "0 every check holds; 1 one does not; 2 bad input; 130 interrupted";

impl ByName for Simulation {
    fn commands() -> Vec<Command> {
        let command = |&&Scenario { name, asks, simulated, .. }: &&Scenario| {
            let Simulated { vcpus, example, invalidates, takes: [time, memory], .. } = simulated;
            let command = Asked::augment_args(Command::new(name));
            let command = if invalidates { Beside::augment_args(command) } else { command };
            let command = command.mut_arg("vcpus", |arg| arg.default_value(vcpus));
            let help = format!("Example:\n  slat sim {name} {example}");
            flags::takes(command.about(asks).after_help(help), time, memory, ENDS)
        };
        ALL.iter().map(command).collect()
    }

    fn parse(name: &str, matches: &ArgMatches) -> Option<Result<Self, clap::Error>> {
        let bench = by_name(name)?;
        let parse = || {
            let beside =
                bench.simulated.invalidates.then(|| Beside::from_arg_matches(matches)).transpose()?;
            Ok(Self { bench, asked: Asked::from_arg_matches(matches)?, beside })
        };
        Some(parse())
    }
}

impl Sim {
    /// Does what is asked, prints it, and returns the exit status.
    pub fn run(&self) -> Result<ExitCode, Error> {
        match self {
            Self::Validate(validate) => validate.run(),
            Self::Bench(simulation) => simulation.0.run(),
        }
    }
}

impl Simulation {
    /// The runs of this bench (one per vCPU count and policy), and the settings they share.
    fn cases(&self) -> Result<(Vec<Case>, Map<String, serde_json::Value>), Error> {
        let work = self.asked.work();
        match &self.beside {
            Some(beside) => Ok((beside.cases(&work)?, beside.told())),
            None => Ok((vec![Case { name: String::new(), work }], Map::new())),
        }
    }

    /// Flags that have no effect beside the others.
    pub fn unused(&self) -> Unused {
        self.asked.unused(self.bench)
    }

    /// Simulates.
    pub fn report(&self) -> Result<SimReport, Error> {
        let (cases, params) = self.cases()?;
        let simulate = || simulate::simulate(self.bench, &self.asked, &cases, params);
        catch_unwind(AssertUnwindSafe(simulate)).unwrap_or_else(|panic| {
            let NoStack(error) = *panic.downcast().unwrap_or_else(|panic| resume_unwind(panic));
            Err(Error::Machine(format!("no stack for a simulated CPU: {error}")))
        })
    }

    /// Prints the report to stdout; a false check becomes exit status 1.
    fn run(&self) -> Result<ExitCode, Error> {
        let report = self.report()?;
        Ok(print(&report, self.asked.json, report.checks.iter().all(|check| check.ok))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::work_flags::WorkFlags;
    use clap::Subcommand;
    use slat_cli::flags::Switch;

    /// With one vCPU, under a policy that faults and ages.
    fn simulated(name: &str, change: impl FnOnce(&mut WorkFlags)) -> (Simulation, String) {
        let policies = by_name(name).unwrap().simulated.columns;
        let policy = policies[if name == "access-tracking-perf" { policies.len() - 1 } else { 0 }].name;
        let command = Chosen::<Simulation>::augment_subcommands(clap::Command::new("sim"));
        let mut words = vec!["sim", name, "--quick", "--no-sweep", "-v", "1", "--policy", policy];
        if name == "invalidate" {
            words.extend(["--invalidators", "1", "--pause-ns", "1000"]);
        }
        let matches = command.try_get_matches_from(words).unwrap();
        let Chosen(mut simulation) = Chosen::<Simulation>::from_arg_matches(&matches).unwrap();
        change(simulation.asked.work_mut());
        let report = simulation.report().unwrap();
        let rows = serde_json::to_string(&report.rows).unwrap();
        (*simulation, rows)
    }

    #[test]
    fn a_flag_has_an_effect_or_is_refused() {
        type Change = fn(&mut WorkFlags);
        let changes: [(&str, Change); 10] = [
            ("guest_ns", |flags| flags.guest_ns = Some(777)),
            ("exit_ns", |flags| flags.exit_ns = Some(9777)),
            ("host_ns", |flags| flags.host_ns = Some(9777)),
            ("handlers", |flags| flags.handlers = Some(Switch::On)),
            ("handler_ns", |flags| flags.handler_ns = Some(9777)),
            ("zeroing", |flags| flags.zeroing = Some(Switch::Off)),
            ("host_first", |flags| flags.host_first = Some(Switch::Off)),
            ("under_lock_ns", |flags| flags.under_lock_ns = Some(777)),
            ("mm_lines", |flags| flags.mm_lines = Some(7)),
            ("rest_ns", |flags| flags.rest_ns = Some(7)),
        ];
        for bench in ALL {
            let (_, before) = simulated(bench.name, |_| ());
            for (flag, change) in changes {
                let (simulation, after) = simulated(bench.name, change);
                let refused = simulation.unused().iter().any(|(unused, _)| *unused == flag);
                assert_eq!(before == after, refused, "{}: {flag}", bench.name);
            }
        }
    }
}
