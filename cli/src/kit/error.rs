//! The errors of the command. Each prints one line and exits with status 2; lost data exits with status 3.

use crate::temporary;
use std::io;
use std::io::{ErrorKind::BrokenPipe, Write};
use std::process::ExitCode;

/// See the module's header.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The flags, or the files that they name, cannot be used.
    #[error("{0}")]
    Usage(String),
    /// A trace cannot be read.
    #[error(transparent)]
    Trace(#[from] slat_vcpu::trace::Error),
    /// The machine could not be built, or failed.
    #[error("{0}")]
    Machine(String),
    /// The host's memory manager failed.
    #[error(transparent)]
    Mm(#[from] slat_mm::MmError),
    /// A dirty log failed.
    #[error(transparent)]
    Dirty(#[from] slat::DirtyError),
    /// A dirty log cannot be migrated.
    #[error(transparent)]
    Log(#[from] slat_migrate::LogError),
    /// A change of memslots failed.
    #[error(transparent)]
    Slot(#[from] slat::SlotError),
    /// Data that the guest stored is lost.
    #[error("{0}")]
    Corrupt(String),
    /// The system refused an allocation of this many bytes.
    #[error("out of memory: the system does not give {0} bytes more")]
    OutOfMemory(usize),
    /// The report could not be written.
    #[error("cannot write the report: {0}")]
    Report(#[from] io::Error),
}

impl Error {
    fn status(&self) -> u8 {
        if matches!(self, Self::Corrupt(_)) { 3 } else { 2 }
    }
}

/// The exit status of a command. An error is printed as one line on standard error. A closed pipe, such as that of
/// `head`, is not an error.
pub fn exit_code(result: Result<ExitCode, Error>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(Error::Report(error)) if error.kind() == BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            tell(&error);
            ExitCode::from(error.status())
        }
    }
}

/// Ends the process at once with one line on standard error. Called where other threads would wait for this one
/// without end.
pub fn end(error: &Error) -> ! {
    tell(error);
    temporary::remove_all();
    std::process::exit(error.status().into())
}

fn tell(error: &Error) {
    // Standard error may be closed.
    let _ = writeln!(io::stderr(), "slat: {error}");
}
