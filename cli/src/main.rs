//! The command `slat`: run and watch second-level address translation; what measures it is `slat-bench`, beside it.

mod generate;
mod measure;

use clap::Parser;
use generate::{Completions, Man};
use measure::Passed;
use slat::table::formats::{
    Arm64L39, Arm64L40, Arm64L48, Arm64NoAd, Ept4, Ept4NoAd, Ept5, Npt4, Npt5, Pae, Sv39x4, Sv39x4NoAd,
    Sv48x4, Sv57x4,
};
use slat_cli::error::{Error, exit_code};
use slat_cli::interrupt;
use slat_cli::memory::OrEnd;
use slat_cli::{FormatName, Plan, Run, Top};
use std::process::ExitCode;

/// Second-level address translation: a hypervisor's memory engine, run, measured and proved
#[derive(Parser)]
#[command(
    name = "slat",
    version = slat_cli::VERSION,
    arg_required_else_help = true,
    after_help = "bench, sim, calibrate and report are done by slat-bench, a program of its own beside this one:
  cargo build --profile bench -p slat-bench"
)]
enum Command {
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
    /// Run benches and simulations, and write a page that shows them beside the seeds' own tables (by slat-bench)
    #[command(disable_help_flag = true)]
    Report(Passed),
}

#[global_allocator]
static MEMORY: OrEnd = OrEnd;

fn main() -> ExitCode {
    let command = Command::parse();
    exit_code(interrupt::hear().and_then(|()| match command {
        Command::Run(run) => replay(&run),
        Command::Plan(plan) => plan.run(),
        Command::Top(top) => top.run(),
        Command::Completions(completions) => completions.print::<Command>(),
        Command::Man(man) => man.write::<Command>(),
        Command::Bench(_) | Command::Sim(_) | Command::Calibrate(_) | Command::Report(_) => measure::run(),
    }))
}

/// In the format that is asked for.
fn replay(run: &Run) -> Result<ExitCode, Error> {
    match run.format {
        FormatName::Ept4 => run.run_in::<Ept4>(),
        FormatName::Ept5 => run.run_in::<Ept5>(),
        FormatName::Npt4 => run.run_in::<Npt4>(),
        FormatName::Npt5 => run.run_in::<Npt5>(),
        FormatName::Pae => run.run_in::<Pae>(),
        FormatName::Ept4Noad => run.run_in::<Ept4NoAd>(),
        FormatName::Arm64 => run.run_in::<Arm64L48>(),
        FormatName::Arm64L40 => run.run_in::<Arm64L40>(),
        FormatName::Arm64L39 => run.run_in::<Arm64L39>(),
        FormatName::Arm64Noad => run.run_in::<Arm64NoAd>(),
        FormatName::Sv39x4 => run.run_in::<Sv39x4>(),
        FormatName::Sv48x4 => run.run_in::<Sv48x4>(),
        FormatName::Sv57x4 => run.run_in::<Sv57x4>(),
        FormatName::Sv39x4Noad => run.run_in::<Sv39x4NoAd>(),
    }
}
