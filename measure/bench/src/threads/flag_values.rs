//! Values of flags that several benches have.

use clap::ValueEnum;
use slat::{Level, RingSize, Track};
use slat_cli::error::Error;
use slat_cli::size;
use slat_cli::size::size;

/// Refuses a size that is no multiple of `unit` from one unit to `most`, in bytes.
pub fn multiple_of(unit: Level, flag: &str, bytes: u64, most: u64) -> Result<(), Error> {
    let (unit, most) = (unit.bytes(), most / unit.bytes() * unit.bytes());
    if bytes > 0 && bytes.is_multiple_of(unit) && bytes <= most {
        return Ok(());
    }
    let [unit, most] = [unit, most].map(size::text);
    Err(Error::Usage(format!("--{flag}: {bytes} is not a multiple of {unit} from {unit} to {most}")))
}

/// The error of a machine that could not be built, or broke.
pub(crate) fn machine_error(error: impl std::fmt::Display) -> Error {
    Error::Machine(error.to_string())
}

/// How stores are noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum TrackName {
    /// By the faults of write-protected pages
    Writes,
    /// By the Dirty bits that the hardware sets
    DirtyBits,
}

/// A size of the host's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum HostPage {
    #[value(name = "4k")]
    K4,
    #[value(name = "2m")]
    M2,
    #[value(name = "1g")]
    G1,
}

impl HostPage {
    pub fn level(self) -> Level {
        [Level::K4, Level::M2, Level::G1][self as usize]
    }
}

impl From<TrackName> for Track {
    fn from(name: TrackName) -> Self {
        match name {
            TrackName::Writes => Self::Writes,
            TrackName::DirtyBits => Self::DirtyBits,
        }
    }
}

/// Parses the size of a dirty ring.
pub fn ring_size(text: &str) -> Result<RingSize, String> {
    let bytes = u32::try_from(size(text)?).unwrap_or(u32::MAX);
    RingSize::new(bytes).map_err(|error| error.to_string())
}
