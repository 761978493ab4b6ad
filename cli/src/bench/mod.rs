//! `slat bench`: the figures that slat was asked to improve, before against after, on this machine.
//!
//! Each bench is one folder or file: it sets up its entrants, measures them side by side ([`harness`]) and
//! hands back a [`report`] whose rows name the patch series they answer.

mod fault_floor;
mod harness;
mod machine;
mod report;

pub use fault_floor::FaultFloor;

use std::fmt;
use std::io;
use std::process::ExitCode;

/// The benches, by name.
#[derive(Debug, clap::Subcommand)]
pub enum Bench {
    /// What one 4K fault costs: the bare walk and CAS, slat's MMU lock policies, and other crates' mappers
    FaultFloor(FaultFloor),
}

/// Why a bench could not run.
#[derive(Debug)]
pub enum Error {
    /// The flags ask for something impossible; the process exits with status 2.
    Usage(String),
    /// The report could not be written.
    Io(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(line) => f.write_str(line),
            Self::Io(error) => write!(f, "cannot write the report: {error}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Bench {
    /// Runs the bench and prints its report to stdout; a false check becomes exit status 1.
    pub fn run(&self) -> Result<ExitCode, Error> {
        match self {
            Self::FaultFloor(bench) => bench.run(),
        }
    }
}

/// Parses a size as the command line writes it: bytes, or a number with K, M, G or T (powers of 1024).
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        unit => return Err(format!("unknown unit `{unit}`: use K, M, G or T")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is no size such as 4K, 2M or 1G"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is more than 64 bits hold"))
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(
            ["0", "4096", "4K", "2m", "1G", "12T"].map(|text| size(text).unwrap()),
            [0, 4096, 4096, 2 << 20, 1 << 30, 12 << 40]
        );
        for bad in ["", "K", "-1", "1.5G", "4KB", "20000000T"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
