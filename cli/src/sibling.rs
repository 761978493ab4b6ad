//! Subcommands that another program of the same folder runs: slat-bench, slat-pager, slat-vmm.

use crate::error::Error;
use std::env::{args_os, consts::EXE_SUFFIX, current_exe};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind::NotFound;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// A program that runs some subcommands of `slat`, if it is installed in the same folder.
#[derive(Debug, PartialEq, Eq)]
pub struct Sibling {
    /// File name.
    pub name: &'static str,
    /// The subcommands that it runs.
    pub subcommands: &'static [&'static str],
    /// The command that builds it.
    pub build: &'static str,
    /// True if the program parses the whole command line of `slat`. The others get the arguments after the
    /// subcommand.
    reads_all: bool,
}

/// Benches, simulations, calibration and the report.
pub const BENCH: Sibling = Sibling {
    name: "slat-bench",
    subcommands: &["bench", "sim", "calibrate", "report"],
    build: "cargo build --profile bench -p slat-bench",
    reads_all: true,
};

/// The daemon that serves the memory of microVMs.
pub const PAGER: Sibling = Sibling {
    name: "slat-pager",
    subcommands: &["pager"],
    build: "cd pager && cargo build --release",
    reads_all: false,
};

/// The VMM that boots Linux on KVM.
pub const VMM: Sibling = Sibling {
    name: "slat-vmm",
    subcommands: &["vmm"],
    build: "cargo build --release -p slat-vmm",
    reads_all: false,
};

/// All sibling programs.
pub const SIBLINGS: [&Sibling; 3] = [&BENCH, &PAGER, &VMM];

impl Sibling {
    /// Returns the sibling that runs the subcommand of the command line, and the arguments for it.
    ///
    /// slat-bench also parses the flags before its subcommand, and prints its own help.
    pub fn asked() -> Option<(&'static Self, Vec<OsString>)> {
        let words: Vec<_> = args_os().skip(1).collect();
        let before = |word: &OsString| ["-q", "--quiet", "help"].iter().any(|known| word == *known);
        let at = words.iter().position(|word| !before(word))?;
        let sibling = SIBLINGS.into_iter().find(|sibling| sibling.does(&words[at]))?;
        Some((sibling, sibling.arguments(words, at)))
    }

    fn does(&self, subcommand: &OsStr) -> bool {
        self.subcommands.iter().any(|name| subcommand == *name)
    }

    fn arguments(&self, mut words: Vec<OsString>, at: usize) -> Vec<OsString> {
        if self.reads_all {
            return words;
        }
        let help = words[..at].iter().any(|word| word == "help");
        words.drain(..=at);
        if help { vec!["--help".into()] } else { words }
    }

    /// Returns whether the program is installed beside this one.
    pub fn is_there(&self) -> bool {
        self.path().is_ok_and(|path| path.exists())
    }

    /// The path of the program.
    fn path(&self) -> Result<PathBuf, Error> {
        let here = current_exe()
            .map_err(|error| Error::Machine(format!("cannot find the path of this program: {error}")))?;
        Ok(here.with_file_name(format!("{}{EXE_SUFFIX}", self.name)))
    }

    /// Replaces this process by the program, with these arguments.
    pub fn run(&self, words: impl IntoIterator<Item = OsString>) -> Result<ExitCode, Error> {
        let path = self.path()?;
        become_it(Command::new(&path).args(words)).map_err(|error| self.cannot(&path, &error))
    }

    fn cannot(&self, path: &Path, error: &std::io::Error) -> Error {
        let path = path.display();
        Error::Usage(if error.kind() == NotFound {
            format!("{path} is missing: `{}` builds it", self.build)
        } else {
            format!("{path}: {error}")
        })
    }
}

#[cfg(unix)]
fn become_it(command: &mut Command) -> std::io::Result<ExitCode> {
    use std::os::unix::process::CommandExt;
    Err(command.exec())
}

#[cfg(not(unix))]
fn become_it(command: &mut Command) -> std::io::Result<ExitCode> {
    let status = command.status()?;
    Ok(status.code().map_or(ExitCode::FAILURE, |code| ExitCode::from(code as u8)))
}
