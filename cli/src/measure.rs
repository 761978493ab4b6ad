//! `slat bench`, `sim`, `calibrate` and `report`: slat-bench does them, if it lies beside this program.

use slat_cli::error::Error;
use std::env::{args_os, consts::EXE_SUFFIX, current_exe};
use std::io::ErrorKind::NotFound;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Whether slat-bench lies beside this program.
pub fn is_there() -> bool {
    program().is_ok_and(|program| program.exists())
}

/// Where it lies, if it does.
fn program() -> Result<PathBuf, Error> {
    let here = current_exe().map_err(|error| Error::Machine(format!("where this program lies: {error}")))?;
    Ok(here.with_file_name(format!("slat-bench{EXE_SUFFIX}")))
}

/// Hands this program's arguments to slat-bench, untouched, and ends as it ends.
pub fn run() -> Result<ExitCode, Error> {
    let program = program()?;
    become_it(Command::new(&program).args(args_os().skip(1)), &program)
}

#[cfg(unix)]
fn become_it(command: &mut Command, program: &Path) -> Result<ExitCode, Error> {
    use std::os::unix::process::CommandExt;
    Err(cannot(program, &command.exec()))
}

#[cfg(not(unix))]
fn become_it(command: &mut Command, program: &Path) -> Result<ExitCode, Error> {
    let status = command.status().map_err(|error| cannot(program, &error))?;
    Ok(status.code().map_or(ExitCode::FAILURE, |code| ExitCode::from(code as u8)))
}

fn cannot(program: &Path, error: &std::io::Error) -> Error {
    let program = program.display();
    Error::Usage(if error.kind() == NotFound {
        format!("{program} is missing: `cargo build --profile bench -p slat-bench` builds it")
    } else {
        format!("{program}: {error}")
    })
}
