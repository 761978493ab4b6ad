//! What users of `slat` type, as one tree: the program parses it, tests walk it.

use crate::{Completions, Man, Plan, Run, Top};
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;

/// Second-level address translation: a hypervisor's memory engine, run, measured and proved
#[derive(Parser)]
#[command(
    name = "slat",
    version = crate::VERSION,
    arg_required_else_help = true,
    after_help = "bench, sim, calibrate and report are done by slat-bench, a program of its own beside this one:
  cargo build --profile bench -p slat-bench"
)]
pub struct Slat {
    /// For all of them.
    #[command(flatten)]
    pub quiet: Quiet,
    /// What is asked for.
    #[command(subcommand)]
    pub command: Command,
}

/// The flag of every subcommand.
#[derive(Debug, Args)]
pub struct Quiet {
    /// Print no progress: neither bars nor notes on standard error. Results and errors are printed
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

/// What there is to do.
#[derive(Subcommand)]
#[expect(missing_docs, reason = "what a variant holds says what it is, in its help too")]
pub enum Command {
    /// Replay memory traces on software vCPUs, with every byte checked
    Run(Run),
    Plan(Plan),
    Top(Top),
    Completions(Completions),
    Man(Man),
    /// The figures, on this machine, before against after in one run (by slat-bench)
    #[command(disable_help_flag = true)]
    Bench(Passed),
    /// The same past this machine: simulated, from 1 to hundreds of vCPUs (by slat-bench)
    #[command(disable_help_flag = true)]
    Sim(Passed),
    /// Measure what operations cost on this machine, for `slat sim --costs` (by slat-bench)
    #[command(disable_help_flag = true)]
    Calibrate(Passed),
    /// Run benches and simulations, and write a page that shows them beside the patch series' own tables (by slat-bench)
    #[command(disable_help_flag = true)]
    Report(Passed),
}

/// The subcommands that slat-bench reads.
pub const PASSED: [&str; 4] = ["bench", "sim", "calibrate", "report"];

/// What slat-bench reads, and this program does not.
#[derive(Args)]
pub struct Passed {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _args: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::{PASSED, Slat};
    use crate::flags;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_keeps_its_rules() {
        Slat::command().debug_assert();
        let broken = flags::broken(Slat::command(), &PASSED);
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }
}
