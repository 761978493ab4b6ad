//! Subcommands that a program beside this one does: slat-bench, slat-pager, slat-vmm.

use crate::error::Error;
use std::env::{args_os, consts::EXE_SUFFIX, current_exe};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind::NotFound;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// A program that does subcommands of `slat`, where it lies beside it.
#[derive(Debug, PartialEq, Eq)]
pub struct Sibling {
    /// Its file's name.
    pub name: &'static str,
    /// What it does.
    pub subcommands: &'static [&'static str],
    /// The command that builds it.
    pub build: &'static str,
    /// Whether it reads the whole command line of `slat`. Others read what comes after their subcommand.
    reads_all: bool,
}

/// The benches and what belongs to them.
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
    build: "cargo build --release -p slat-pager",
    reads_all: false,
};

/// The VMM that boots Linux on KVM.
pub const VMM: Sibling = Sibling {
    name: "slat-vmm",
    subcommands: &["vmm"],
    build: "cargo build --release -p slat-vmm",
    reads_all: false,
};

/// All of them.
pub const SIBLINGS: [&Sibling; 3] = [&BENCH, &PAGER, &VMM];

impl Sibling {
    /// Which of them does the subcommand that the command line names, and what it is to be told.
    ///
    /// Flags before a subcommand of slat-bench are slat-bench's, also those that have a meaning here; and so is its help, whichever
    /// way it is asked for.
    pub fn asked() -> Option<(&'static Self, Vec<OsString>)> {
        let words: Vec<_> = args_os().skip(1).collect();
        let before = |word: &OsString| ["-q", "--quiet", "help"].iter().any(|known| word == *known);
        let at = words.iter().position(|word| !before(word))?;
        let sibling = SIBLINGS.into_iter().find(|sibling| sibling.does(&words[at]))?;
        Some((sibling, sibling.told(words, at)))
    }

    fn does(&self, subcommand: &OsStr) -> bool {
        self.subcommands.iter().any(|name| subcommand == *name)
    }

    fn told(&self, mut words: Vec<OsString>, at: usize) -> Vec<OsString> {
        if self.reads_all {
            return words;
        }
        let help = words[..at].iter().any(|word| word == "help");
        words.drain(..=at);
        if help { vec!["--help".into()] } else { words }
    }

    /// Whether it lies beside this program.
    pub fn is_there(&self) -> bool {
        self.path().is_ok_and(|path| path.exists())
    }

    /// Where it lies, if it does.
    fn path(&self) -> Result<PathBuf, Error> {
        let here =
            current_exe().map_err(|error| Error::Machine(format!("where this program lies: {error}")))?;
        Ok(here.with_file_name(format!("{}{EXE_SUFFIX}", self.name)))
    }

    /// Hands these words to it, and ends as it ends.
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
