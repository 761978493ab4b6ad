//! The command `slat-pager`: serve guests from snapshot templates, and look after the templates.

mod command;

use clap::Parser;
use command::{Command, Failure};
use std::process::ExitCode;

/// The memory of microVMs, from snapshot templates in a store, by userfaultfd.
#[derive(Parser)]
#[command(name = "slat-pager", version, max_term_width = 100)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    match Program::parse().command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("slat-pager: {failure}");
            match failure {
                Failure::Found(_) => ExitCode::from(3),
                Failure::Other(_) => ExitCode::from(2),
            }
        }
    }
}
