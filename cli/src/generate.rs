//! `slat completions` and `slat man`: shell completions and manual pages, generated from the flags. Where slat-bench
//! is installed beside this program, slat-bench generates them, so that they include its benches.

use crate::error::Error;
use clap::{Args, Command};
use clap_complete::Shell;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Print completions for a shell: for bash, `source <(slat completions bash)`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  source <(slat completions bash)

Exit status: 0 printed; 2 bad input.
Time: none. Memory: 10 MiB.")]
pub struct Completions {
    /// The shell
    shell: Shell,
}

/// Write manual pages into a folder: slat.1, and one for each subcommand
#[derive(Debug, Args)]
#[command(after_help = "Example:
  slat man /tmp && man /tmp/slat-run.1

Exit status: 0 written; 2 the folder cannot be written to.
Time: none. Memory: 10 MiB.")]
pub struct Man {
    /// An existing folder
    folder: PathBuf,
}

impl Completions {
    /// Prints the completions of the command tree `root`.
    pub fn print(&self, mut root: Command) -> Result<ExitCode, Error> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut root, "slat", &mut text);
        io::stdout().write_all(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Man {
    /// Writes the manual pages of the command tree `root`.
    pub fn write(&self, root: Command) -> Result<ExitCode, Error> {
        clap_mangen::generate_to(root.disable_help_subcommand(true), &self.folder)
            .map_err(|error| Error::Usage(format!("{}: {error}", self.folder.display())))?;
        Ok(ExitCode::SUCCESS)
    }
}
