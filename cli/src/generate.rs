//! `slat completions` and `slat man`: what shells and readers of manuals want of the command, made from its own flags.

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use slat_cli::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Print completions for a shell: for bash, `source <(slat completions bash)`
#[derive(Args)]
pub struct Completions {
    shell: Shell,
}

/// Write manual pages into a folder: slat.1, and one for each subcommand
#[derive(Args)]
pub struct Man {
    folder: PathBuf,
}

impl Completions {
    pub fn print<C: CommandFactory>(&self) -> Result<ExitCode, Error> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut C::command(), "slat", &mut text);
        io::stdout().write_all(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Man {
    pub fn write<C: CommandFactory>(&self) -> Result<ExitCode, Error> {
        clap_mangen::generate_to(C::command().disable_help_subcommand(true), &self.folder)
            .map_err(|error| Error::Usage(format!("{}: {error}", self.folder.display())))?;
        Ok(ExitCode::SUCCESS)
    }
}
