//! The named choices of `slat run`: page-table format, MMU lock, dirty log, page sizes.

use clap::ValueEnum;
use slat::baselines::MmuLock;
use slat::{DirtyError, DirtyLog, Level, RingSize};

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
    /// Arm stage 2, 40 bits of address: a root of two pages
    #[value(name = "arm64-40")]
    Arm64L40,
    /// Arm stage 2, 39 bits of address
    #[value(name = "arm64-39")]
    Arm64L39,
    /// Arm stage 2, 48 bits of address, without Accessed and Dirty bits
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
    /// No lock: faults and invalidations synchronize at the table entry
    None,
    /// A reader-writer lock: faults are readers, invalidations are writers
    ReadWrite,
    /// A mutex: one fault or invalidation at a time
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

/// The log of the guest's writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum DirtyLogName {
    /// No log
    Off,
    /// A bitmap per memslot, one bit per page
    Bitmap,
    /// A ring of 4096 entries per vCPU; a full ring stops its vCPU until it is drained
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
    /// 2 MiB where possible, else 4 KiB
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
