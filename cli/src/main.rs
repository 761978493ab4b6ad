//! The command `slat`: runs and watches second-level address translation. `slat-bench`, `slat-pager` and `slat-vmm`
//! provide the other subcommands.

use clap::{CommandFactory, Parser};
use slat::table::formats::{
    Arm64L39, Arm64L40, Arm64L48, Arm64NoAd, Ept4, Ept4NoAd, Ept5, Npt4, Npt5, Pae, Sv39x4, Sv39x4NoAd,
    Sv48x4, Sv57x4,
};
use slat_cli::allocator::OrEnd;
use slat_cli::command::{Command, Slat};
use slat_cli::error::{Error, exit_code};
use slat_cli::sibling::{BENCH, Sibling};
use slat_cli::{FormatName, Run, bar, interrupt};
use std::env::args_os;
use std::process::ExitCode;

#[global_allocator]
static MEMORY: OrEnd = OrEnd;

fn main() -> ExitCode {
    if let Some((sibling, words)) = Sibling::asked() {
        return exit_code(sibling.run(words));
    }
    let Slat { quiet, command } = Slat::parse();
    bar::quiet(quiet.quiet);
    exit_code(interrupt::hear().and_then(|()| match command {
        Command::Run(run) => replay(&run),
        Command::Plan(plan) => plan.run(),
        Command::Top(top) => top.run(),
        // slat-bench knows the flags of its own subcommands.
        Command::Completions(_) | Command::Man(_) if BENCH.is_there() => BENCH.run(args_os().skip(1)),
        Command::Completions(completions) => completions.print(Slat::command()),
        Command::Man(man) => man.write(Slat::command()),
        Command::Bench(_)
        | Command::Sim(_)
        | Command::Calibrate(_)
        | Command::Report(_)
        | Command::Pager(_)
        | Command::Vmm(_) => unreachable!("a sibling has been asked"),
    }))
}

/// Runs the replay with the page-table format that the user chose.
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
