//! Errors of the primary MMU. An operation that fails leaves the address space consistent.

use slat::{Access, Again, HostError, Hva, Level, Span, table::NoMemory};
use std::io;

/// Why an operation was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MmError {
    /// The operating system refused a call; the number is its `errno`.
    #[error("{call}: {}", io::Error::from_raw_os_error(*errno))]
    Os {
        /// The call.
        call: &'static str,
        /// Its `errno`.
        errno: i32,
    },
    /// An arena consists of whole blocks of 2 MiB; this many bytes hold none, or exceed the address space.
    #[error("an arena of {0} bytes: not possible (the least is 2 MiB)")]
    BadLimit(u64),
    /// The number of nodes is not 1 to 255, or a node would have less than 2 MiB.
    #[error("an arena of {0} nodes: not possible (each has at least 2 MiB)")]
    BadNodes(u8),
    /// The arena is full: no page of this size is left.
    #[error("out of memory: the arena has no {0:?} page left")]
    OutOfFrames(Level),
    /// The arena is full: no table can be linked.
    #[error("out of memory: the arena has no room for page tables")]
    OutOfTables,
    /// The range is empty, not made of 4 KiB pages, or reaches past 128 TiB.
    #[error("range {0:?}: empty, unaligned or out of reach")]
    BadRange(Span<Hva>),
    /// Something is mapped in the range already.
    #[error("range {0:?}: something is mapped there")]
    Occupied(Span<Hva>),
    /// No gap of this many bytes is left between the mappings.
    #[error("no gap of {0} bytes in the address space")]
    NoRoom(u64),
    /// The address space has exited.
    #[error("the address space has exited")]
    Exited,
    /// The call would have to wait, and may not. The rest of the work is not done. Try again.
    #[error("{}", slat::Again)]
    Again,
    /// Nothing is mapped at the address.
    #[error("nothing is mapped at {0}")]
    NotMapped(Hva),
    /// The mapping does not allow this access.
    #[error("the mapping at {0} does not allow {1:?}")]
    Denied(Hva, Access),
    /// The address is past the end of the mapped file.
    #[error("{0} lies past the end of the mapped file")]
    PastEnd(Hva),
    /// The offset into a file is not a multiple of 4 KiB.
    #[error("file offset {0}: not a multiple of 4 KiB")]
    BadOffset(u64),
    /// The file is in another arena than the address space.
    #[error("the file lives in another arena")]
    ForeignFile,
    /// The address space is in another arena than KSM.
    #[error("the address space lives in another arena")]
    ForeignSpace,
    /// The swap stores pages of another arena.
    #[error("the swap stores pages of another arena")]
    ForeignSwap,
    /// Another swap uses this file.
    #[error("the swap file is in use")]
    SwapInUse,
    /// The file exists and does not hold swap.
    #[error("the file holds something else than swap")]
    NotSwap,
    /// The path is a directory, a device, a FIFO or a socket.
    #[error("is there, and no file")]
    NotAFile,
    /// The arena has as many groups as it can have: 4096.
    #[error("an arena has 4096 groups at most")]
    TooManyGroups,
    /// The group is in another arena.
    #[error("the group is another arena's")]
    ForeignGroup,
    /// The swap has as many files and devices as it can have: 32.
    #[error("swap has 32 files and devices at most")]
    TooManyDevices,
    /// The page at the address could not be read back from swap. Its copy stays in swap: another try may
    /// succeed.
    #[error("the page at {hva} cannot be read back from swap: {}", io::Error::from_raw_os_error(*errno))]
    SwapIo {
        /// The address that needed the page.
        hva: Hva,
        /// The device's `errno`.
        errno: i32,
    },
    /// The page at the address came back from swap with other contents.
    #[error("the page at {0} is corrupt in swap")]
    SwapCorrupt(Hva),
    /// A setting is out of its range.
    #[error("{name} {value}: not within {least}..={most}")]
    BadSetting {
        /// Name of the setting.
        name: &'static str,
        /// The value that was given.
        value: u64,
        /// The least value allowed.
        least: u64,
        /// The greatest value allowed.
        most: u64,
    },
    /// A page is present at the address already.
    #[error("there is a page at {0} already")]
    AlreadyThere(Hva),
    /// The address is not registered with this handler of user faults.
    #[error("{0} is not registered with this handler")]
    NotServed(Hva),
    /// The file behind the address has no page there, or there is no file.
    #[error("no page of a file is there for {0}")]
    NotInFile(Hva),
    /// This mapping cannot have a handler of user faults.
    #[error("range {0:?}: user faults need anonymous or shared memory, minor ones a shared file")]
    Unservable(Span<Hva>),
    /// The mapping is registered with another handler.
    #[error("range {0:?} is registered with another handler")]
    ServedByOther(Span<Hva>),
}

impl MmError {
    /// Returns the errno that an operating system's call would return.
    ///
    /// ```
    /// assert_eq!(slat_mm::MmError::Exited.errno(), 3, "ESRCH");
    /// ```
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Os { errno, .. } | Self::SwapIo { errno, .. } => *errno,
            Self::Exited => 3,
            Self::SwapCorrupt(_) => 5,
            Self::Again => 11,
            Self::OutOfFrames(_) | Self::OutOfTables | Self::NoRoom(_) => 12,
            Self::Denied(..) | Self::NotMapped(_) | Self::PastEnd(_) | Self::NotInFile(_) => 14,
            Self::SwapInUse | Self::ServedByOther(_) => 16,
            Self::Occupied(_) | Self::AlreadyThere(_) => 17,
            Self::ForeignFile | Self::ForeignSpace | Self::ForeignSwap | Self::ForeignGroup => 18,
            Self::TooManyGroups | Self::TooManyDevices => 28,
            _ => 22,
        }
    }
}

impl From<NoMemory> for MmError {
    fn from(_: NoMemory) -> Self {
        Self::OutOfTables
    }
}

impl From<Again> for MmError {
    fn from(_: Again) -> Self {
        Self::Again
    }
}

impl From<MmError> for HostError {
    fn from(error: MmError) -> Self {
        match error {
            MmError::OutOfFrames(_) | MmError::OutOfTables | MmError::Os { .. } => Self::NoMemory,
            MmError::SwapIo { .. } => Self::Io,
            MmError::SwapCorrupt(_) => Self::Poisoned,
            _ => Self::Fault,
        }
    }
}
