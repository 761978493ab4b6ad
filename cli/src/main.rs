//! The command `slat`: run and watch second-level address translation; what measures it is `slat-bench`, beside it.

mod measure;

use clap::{CommandFactory, Parser};
use slat::table::formats::{
    Arm64L39, Arm64L40, Arm64L48, Arm64NoAd, Ept4, Ept4NoAd, Ept5, Npt4, Npt5, Pae, Sv39x4, Sv39x4NoAd,
    Sv48x4, Sv57x4,
};
use slat_cli::command::{Command, PASSED, Slat};
use slat_cli::error::{Error, exit_code};
use slat_cli::memory::OrEnd;
use slat_cli::{FormatName, Run, bar, interrupt};
use std::env::args_os;
use std::ffi::OsString;
use std::process::ExitCode;

#[global_allocator]
static MEMORY: OrEnd = OrEnd;

fn main() -> ExitCode {
    // Their flags are slat-bench's, also those that have a meaning here; and so is their help, whichever way it is asked for.
    let before = |word: &OsString| ["-q", "--quiet", "help"].iter().any(|known| word == *known);
    let mut words = args_os().skip(1).skip_while(before);
    if words.next().is_some_and(|word| PASSED.iter().any(|passed| word == *passed)) {
        return exit_code(measure::run());
    }
    let Slat { quiet, command } = Slat::parse();
    bar::quiet(quiet.quiet);
    exit_code(interrupt::hear().and_then(|()| match command {
        Command::Run(run) => replay(&run),
        Command::Plan(plan) => plan.run(),
        Command::Top(top) => top.run(),
        Command::Completions(_) | Command::Man(_) if measure::is_there() => measure::run(),
        Command::Completions(completions) => completions.print(Slat::command()),
        Command::Man(man) => man.write(Slat::command()),
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
