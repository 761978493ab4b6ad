//! The named choices of `slat run`: page-table format, MMU lock, dirty log, page sizes.

use clap::ValueEnum;
use slat::{DirtyError, DirtyLog, Level, MmuLock, RingSize};

/// A page-table format that this command can run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum FormatName {
    /// Intel, four levels
    Ept4,
    /// Intel, five levels
    Ept5,
    /// AMD, four levels
    Npt4,
    /// AMD, five levels
    Npt5,
    /// AMD on a 32-bit host: guest memory below 4 GiB
    Pae,
    /// Intel, four levels, without Accessed and Dirty bits
    Ept4Noad,
    /// Arm stage 2, 48 bits of address
    Arm64,
    /// The same with 40 bits: two pages of root
    #[value(name = "arm64-40")]
    Arm64L40,
    /// The same with 39 bits
    #[value(name = "arm64-39")]
    Arm64L39,
    /// The same with 48 bits, without Accessed and Dirty bits
    Arm64Noad,
    /// RISC-V, three levels
    Sv39x4,
    /// RISC-V, four levels
    Sv48x4,
    /// RISC-V, five levels
    Sv57x4,
    /// RISC-V, three levels, without Accessed and Dirty bits
    #[value(name = "sv39x4-noad")]
    Sv39x4Noad,
}

/// [`MmuLock`] as a value of a flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LockName {
    /// Faults and invalidations meet at the entry
    None,
    /// Faults share a lock that invalidations take alone
    ReadWrite,
    /// One at a time
    Exclusive,
}

impl From<LockName> for MmuLock {
    fn from(name: LockName) -> Self {
        match name {
            LockName::None => Self::None,
            LockName::ReadWrite => Self::ReadWrite,
            LockName::Exclusive => Self::Exclusive,
        }
    }
}

/// How the guest's writes are logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum DirtyLogName {
    /// Not at all
    Off,
    /// By a bit for each page of a memslot
    Bitmap,
    /// By a ring of 4096 entries for each vCPU; one that is full stops its vCPU for a moment
    Ring,
}

impl DirtyLogName {
    /// Size of a ring in bytes.
    const RING: u32 = 64 << 10;

    /// The engine's policy for this choice.
    pub fn policy(self) -> Result<DirtyLog, DirtyError> {
        match self {
            Self::Off | Self::Bitmap => Ok(DirtyLog::bitmap()),
            Self::Ring => RingSize::new(Self::RING).map(DirtyLog::ring),
        }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Bitmap => "bitmap",
            Self::Ring => "ring",
        }
    }
}

/// The page sizes of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Pages {
    /// 4 KiB only
    #[value(name = "4k")]
    K4,
    /// 2 MiB where a whole one fits
    Thp,
}

impl Pages {
    /// The largest page size.
    pub fn largest(self) -> Level {
        match self {
            Self::K4 => Level::K4,
            Self::Thp => Level::M2,
        }
    }
}
