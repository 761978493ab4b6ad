//! The command line of `slat` as one tree of clap. The program parses it; the tests walk it.

use crate::{Completions, Man, Plan, Run, Top};
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;

/// Run, watch and measure slat, a second-level address translation engine for hypervisors
#[derive(Parser)]
#[command(
    name = "slat",
    version = crate::VERSION,
    arg_required_else_help = true,
    after_help = "Separate programs, in the same folder as this one, run some of these. To build them:
  slat-bench  cargo build --profile bench -p slat-bench
  slat-pager  cd pager && cargo build --release
  slat-vmm    cargo build --release -p slat-vmm"
)]
pub struct Slat {
    /// The flags of all subcommands.
    #[command(flatten)]
    pub quiet: Quiet,
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The flag that every subcommand has.
#[derive(Debug, Args)]
pub struct Quiet {
    /// Print no progress: neither bars nor notes on standard error. Results and errors are printed
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

/// The subcommands.
#[derive(Subcommand)]
#[expect(missing_docs, reason = "the type in a variant is documented, and its help comes from there")]
pub enum Command {
    /// Replay memory traces on software vCPUs, with every byte checked
    Run(Box<Run>),
    Plan(Plan),
    Top(Top),
    Completions(Completions),
    Man(Man),
    /// Benchmark slat on this machine (by slat-bench)
    #[command(disable_help_flag = true)]
    Bench(Passed),
    /// Simulate the same benchmarks with up to hundreds of vCPUs (by slat-bench)
    #[command(disable_help_flag = true)]
    Sim(Passed),
    /// Measure the cost of each operation on this machine, for `slat sim --costs` (by slat-bench)
    #[command(disable_help_flag = true)]
    Calibrate(Passed),
    /// Run benchmarks and simulations, and compare them with the patch series' tables on one page (by slat-bench)
    #[command(disable_help_flag = true)]
    Report(Passed),
    /// Serve the memory of microVMs from snapshots, by userfaultfd (by slat-pager)
    #[command(disable_help_flag = true)]
    Pager(Passed),
    /// Boot a Linux kernel on KVM while its memory is moved, swapped and merged (by slat-vmm)
    #[command(disable_help_flag = true)]
    Vmm(Passed),
}

/// Arguments that a [sibling program](crate::sibling) parses.
#[derive(Args)]
pub struct Passed {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _args: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::Slat;
    use crate::flags;
    use crate::sibling::SIBLINGS;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_keeps_its_rules() {
        Slat::command().debug_assert();
        let passed: Vec<_> = SIBLINGS.iter().flat_map(|sibling| sibling.subcommands).copied().collect();
        let broken = flags::broken(Slat::command(), &passed);
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }

    #[test]
    fn help_names_each_program_and_what_builds_it() {
        let help = Slat::command().render_long_help().to_string();
        for sibling in SIBLINGS {
            assert!(help.contains(&format!("{}  ", sibling.name)) && help.contains(sibling.build), "{help}");
            for subcommand in sibling.subcommands {
                let line = help.lines().find(|line| line.trim_start().starts_with(&format!("{subcommand} ")));
                let by = format!("(by {})", sibling.name);
                assert!(line.is_some_and(|line| line.ends_with(&by)), "{help}");
            }
        }
    }
}
