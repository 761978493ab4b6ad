//! The flags of `slat sim NAME`, and the policies and settings that follow.

use crate::scenario::Unused;
use crate::sim::work_flags::WorkFlags;
use slat_cli::error::Error;
use slat_sim::parts::setting::{Column, Work};
use slat_sim::scenario::Scenario;

/// The flags of all simulations.
#[derive(Clone, Debug, clap::Args)]
pub struct Asked {
    /// vCPUs, each on a CPU of its own: numbers from 1 to 1024
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    vcpus: Vec<u32>,
    /// A policy to run; may be repeated [default: all that the bench has, side by side]
    #[arg(long, value_name = "NAME")]
    policy: Vec<String>,
    /// The costs of operations: a file as `slat calibrate` writes it; `server`, a machine of eight sockets with 52 CPUs,
    /// assumed; or `here`, measured now as far as this machine can show it
    #[arg(long, value_name = "FILE|server|here", default_value = "server")]
    pub costs: String,
    /// Leave out the runs that tell whether the ranking hangs on uncertain costs
    #[arg(long)]
    pub no_sweep: bool,
    /// A quarter of the work
    #[arg(long)]
    pub quick: bool,
    /// Seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object instead of the tables
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    work: WorkFlags,
}

impl Asked {
    /// Numbers of vCPUs, in order, each once.
    pub fn vcpus(&self) -> Vec<u32> {
        let mut vcpus = self.vcpus.clone();
        vcpus.sort_unstable();
        vcpus.dedup();
        vcpus
    }

    /// The columns that are asked for, in the order of the scenario.
    pub fn policies(&self, bench: &Scenario) -> Result<Vec<Column>, Error> {
        let names: Vec<_> = bench.simulated.columns.iter().map(|policy| policy.name).collect();
        refuse_unknown("policy", &self.policy, &format!("{} has", bench.name), &names)?;
        let wanted =
            |policy: &&Column| self.policy.is_empty() || self.policy.iter().any(|name| policy.name == name);
        Ok(bench.simulated.columns.iter().filter(wanted).copied().collect())
    }

    /// Flags that have no effect in this bench, beside the others.
    pub fn unused(&self, bench: &Scenario) -> Unused {
        self.work.unused(bench)
    }

    /// The flags of the world around the engine.
    #[cfg(test)]
    pub fn work_mut(&mut self) -> &mut WorkFlags {
        &mut self.work
    }

    /// The work around the engine.
    pub fn work(&self) -> Work {
        self.work.over(&Work::default())
    }
}

/// Refuses the first name of `asked` that is not among `known`; `there` says what these are.
pub fn refuse_unknown(flag: &str, asked: &[String], there: &str, known: &[&str]) -> Result<(), Error> {
    let Some(name) = asked.iter().find(|name| !known.contains(&name.as_str())) else { return Ok(()) };
    Err(Error::Usage(format!("--{flag} {}: {there} {}", name.escape_debug(), known.join(", "))))
}
