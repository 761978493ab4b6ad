//! `slat sim`: the series' tables past this machine, from 1 vCPU to hundreds of them, in virtual time.
//!
//! ```text
//! flags ──args──▶ bench × vCPUs × policies ──▶ rows ──┬─▶ sweep of the uncertain costs
//!            └──▶ costs: a file, measured or assumed  └─▶ against the series' own figures
//! ```
//! The engine that runs is the one that ships, compiled a second time on simulated atomics and locks. Simulations are the
//! same on every machine, to the byte; what they are worth is what their costs are worth, and how far the model goes. So a
//! report carries its costs, says which were measured, and shows what becomes of the ranking when they are wrong; and
//! `slat sim validate` holds the same benches against real threads, as far as this machine has CPUs for them.
//!
//! | file | idea |
//! |---|---|
//! | `args` | what users type |
//! | `beside` | the same of invalidators, and the cases that it makes |
//! | `work` | what guests and hosts do around the engine, as flags |
//! | `costs` | which price list: assumed, of a file, or measured now |
//! | `simulate` | the runs, and what came of them |
//! | `sweep` | whether the ranking hangs on uncertain costs |
//! | `against` | the series' own figures: one column fits, the others are predicted |
//! | `outcome` | what is handed back |
//! | `text` | the same for people |
//! | `validate` | simulated against real threads |

mod against;
mod args;
mod beside;
mod costs;
mod outcome;
pub mod sheet;
mod simulate;
mod sweep;
mod text;
mod validate;
mod work;

pub use args::Asked;
pub use beside::Beside;
pub use outcome::SimReport;
pub use validate::Validate;

use crate::typed::Unused;
use beside::Case;
use serde_json::Map;
use slat_cli::error::Error;
use slat_machine::NoStack;
use slat_sim::benches::{Bench, by_name};
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;

/// What there is to ask.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Sim {
    #[command(flatten)]
    Bench(Simulation),
    Validate(Validate),
}

/// What can be simulated, by name.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Simulation {
    /// vCPUs fault memory in while an aging thread passes over it, locked and lockless (the MGLRU aging series)
    #[command(
        name = "access-tracking-perf",
        after_help = "Example:\n  slat sim access-tracking-perf -v 1,112"
    )]
    AccessTracking(Asked),
    /// Many vCPUs touch new memory at once, with each MMU lock (the TDP MMU series)
    #[command(after_help = "Example:\n  slat sim demand-paging -v 1,112,416 --costs server")]
    DemandPaging(Asked),
    /// vCPUs fault beside threads that invalidate elsewhere or in the same place, with each MMU lock (the TDP MMU series)
    #[command(mut_arg("vcpus", |arg| arg.default_value("8,112")),
              after_help = "Example:\n  slat sim invalidate -v 112 --invalidators 16 --pause-ns 10000 --quick --no-sweep")]
    Invalidate(Box<Beside>),
    /// Pages are merged while guests use them, with reasons heeded and ignored (the change-pte series)
    #[command(after_help = "Example:\n  slat sim ksm-perf -v 1,16,112")]
    KsmPerf(Asked),
    /// A memslot moves while vCPUs fault and use it (the scalable memslots series)
    #[command(after_help = "Example:\n  slat sim memslot-perf -v 1,16,416")]
    MemslotPerf(Asked),
    /// A host balances its nodes while vCPUs use their memory, by range and page by page (the NUMA protection series)
    #[command(after_help = "Example:\n  slat sim numa-balancing -v 1,16,112")]
    NumaBalancing(Asked),
    /// Memory is zapped, leaf by leaf or table by table, while vCPUs fault elsewhere (the TDP MMU series)
    #[command(after_help = "Example:\n  slat sim zap -v 1,16,112")]
    Zap(Asked),
}

impl Sim {
    /// Does what is asked, prints it, and returns the exit status.
    pub fn run(&self) -> Result<ExitCode, Error> {
        match self {
            Self::Validate(validate) => validate.run(),
            Self::Bench(simulation) => simulation.run(),
        }
    }
}

impl Simulation {
    /// The bench, and what is asked of it.
    fn bench(&self) -> Result<(&'static dyn Bench, &Asked), Error> {
        let (name, asked) = match self {
            Self::AccessTracking(asked) => ("access-tracking-perf", asked),
            Self::DemandPaging(asked) => ("demand-paging", asked),
            Self::Invalidate(beside) => ("invalidate", &beside.asked),
            Self::KsmPerf(asked) => ("ksm-perf", asked),
            Self::MemslotPerf(asked) => ("memslot-perf", asked),
            Self::NumaBalancing(asked) => ("numa-balancing", asked),
            Self::Zap(asked) => ("zap", asked),
        };
        let bench = by_name(name).ok_or_else(|| Error::Machine(format!("{name} is not simulated")))?;
        Ok((bench, asked))
    }

    /// What is run with each number of vCPUs under each policy, and what all of it has in common that other benches have not.
    fn cases(&self) -> Result<(Vec<Case>, Map<String, serde_json::Value>), Error> {
        match self {
            Self::Invalidate(beside) => Ok((beside.cases()?, beside.told())),
            _ => Ok((vec![Case { name: String::new(), work: self.bench()?.1.work() }], Map::new())),
        }
    }

    /// Flags that have no effect beside the others.
    pub fn unused(&self) -> Unused {
        self.bench().map_or_else(|_| Unused::new(), |(bench, asked)| asked.unused(bench.name()))
    }

    /// Simulates.
    pub fn report(&self) -> Result<SimReport, Error> {
        let ((bench, asked), (cases, params)) = (self.bench()?, self.cases()?);
        let simulate = || simulate::simulate(bench, asked, &cases, params);
        catch_unwind(AssertUnwindSafe(simulate)).unwrap_or_else(|panic| {
            let NoStack(error) = *panic.downcast().unwrap_or_else(|panic| resume_unwind(panic));
            Err(Error::Machine(format!("no stack for a simulated CPU: {error}")))
        })
    }

    /// Prints the report to stdout; a false check becomes exit status 1.
    fn run(&self) -> Result<ExitCode, Error> {
        let report = self.report()?;
        let mut out = io::stdout().lock();
        if self.bench()?.1.json {
            serde_json::to_writer(&mut out, &report).map_err(io::Error::from)?;
            writeln!(out)?;
        } else {
            write!(out, "{report}")?;
        }
        Ok(if report.checks.iter().all(|check| check.ok) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

#[cfg(test)]
mod tests {
    use super::Simulation;
    use super::work::WorkFlags;
    use clap::{FromArgMatches, Subcommand};
    use slat_cli::flags::Switch;
    use slat_sim::benches::{ALL, by_name};

    /// With one vCPU, under a policy that faults and ages.
    fn simulated(name: &str, change: impl FnOnce(&mut WorkFlags)) -> (Simulation, String) {
        let policies = by_name(name).unwrap().policies();
        let policy = policies[if name == "access-tracking-perf" { policies.len() - 1 } else { 0 }].name();
        let command = Simulation::augment_subcommands(clap::Command::new("sim"));
        let mut words = vec!["sim", name, "--quick", "--no-sweep", "-v", "1", "--policy", policy];
        if name == "invalidate" {
            words.extend(["--invalidators", "1", "--pause-ns", "1000"]);
        }
        let matches = command.try_get_matches_from(words).unwrap();
        let mut simulation = Simulation::from_arg_matches(&matches).unwrap();
        let asked = match &mut simulation {
            Simulation::Invalidate(beside) => &mut beside.asked,
            Simulation::AccessTracking(asked)
            | Simulation::DemandPaging(asked)
            | Simulation::KsmPerf(asked)
            | Simulation::MemslotPerf(asked)
            | Simulation::NumaBalancing(asked)
            | Simulation::Zap(asked) => asked,
        };
        change(asked.work_mut());
        let report = simulation.report().unwrap();
        let rows = serde_json::to_string(&report.rows).unwrap();
        (simulation, rows)
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
            let (_, before) = simulated(bench.name(), |_| ());
            for (flag, change) in changes {
                let (simulation, after) = simulated(bench.name(), change);
                let refused = simulation.unused().iter().any(|(unused, _)| *unused == flag);
                assert_eq!(before == after, refused, "{}: {flag}", bench.name());
            }
        }
    }
}
