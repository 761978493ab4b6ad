//! What can go wrong in a primary MMU. Each error leaves the address space as whole as it was.

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
    /// An arena is made of whole blocks of 2 MiB; this many bytes hold none, or more than can be addressed.
    #[error("an arena of {0} bytes: not possible (the least is 2 MiB)")]
    BadLimit(u64),
    /// So many nodes do not share the arena: there are 1 to 255, and each has a block of 2 MiB.
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
    /// The call would have to wait, and may not. What was not done yet is as it was. Try again.
    #[error("{}", slat::Again)]
    Again,
    /// Nothing is mapped at the address.
    #[error("nothing is mapped at {0}")]
    NotMapped(Hva),
    /// What is mapped there does not allow this access.
    #[error("the mapping at {0} does not allow {1:?}")]
    Denied(Hva, Access),
    /// The mapping reaches past the end of its file, and so does this address.
    #[error("{0} lies past the end of the mapped file")]
    PastEnd(Hva),
    /// An offset into a file that is not a multiple of 4 KiB.
    #[error("file offset {0}: not a multiple of 4 KiB")]
    BadOffset(u64),
    /// A file in another arena than the address space.
    #[error("the file lives in another arena")]
    ForeignFile,
    /// An address space in another arena than KSM.
    #[error("the address space lives in another arena")]
    ForeignSpace,
    /// Swap for another arena than the address space's.
    #[error("the swap stores pages of another arena")]
    ForeignSwap,
    /// Another swap uses the file.
    #[error("the swap file is in use")]
    SwapInUse,
    /// The file for swap is there, and holds something else.
    #[error("the file holds something else than swap")]
    NotSwap,
    /// What is there in place of a file for swap is a folder, a device, a FIFO or a socket.
    #[error("is there, and no file")]
    NotAFile,
    /// More groups than an arena can have.
    #[error("an arena has 4096 groups at most")]
    TooManyGroups,
    /// A group of another arena.
    #[error("the group is another arena's")]
    ForeignGroup,
    /// More files and devices than a swap can have.
    #[error("swap has 32 files and devices at most")]
    TooManyDevices,
    /// The page that belongs at the address could not be read back from swap; the number is the device's `errno`. It is
    /// there still: another try may succeed.
    #[error("the page at {hva} cannot be read back from swap: {}", io::Error::from_raw_os_error(*errno))]
    SwapIo {
        /// Where it was wanted.
        hva: Hva,
        /// What the device said.
        errno: i32,
    },
    /// The page that belongs at the address came back from swap as something else.
    #[error("the page at {0} is corrupt in swap")]
    SwapCorrupt(Hva),
    /// A setting outside of what is possible.
    #[error("{name} {value}: not within {least}..={most}")]
    BadSetting {
        /// Its name.
        name: &'static str,
        /// What it was to be.
        value: u64,
        /// The least that it may be.
        least: u64,
        /// The most that it may be.
        most: u64,
    },
    /// There is a page at the address already.
    #[error("there is a page at {0} already")]
    AlreadyThere(Hva),
    /// The address is not registered with this handler of user faults.
    #[error("{0} is not registered with this handler")]
    NotServed(Hva),
    /// The file behind the address has no page there, or there is no file.
    #[error("no page of a file is there for {0}")]
    NotInFile(Hva),
    /// Faults of this mapping cannot be left to a user's thread.
    #[error("range {0:?}: user faults need anonymous or shared memory, minor ones a shared file")]
    Unservable(Span<Hva>),
    /// Faults of this mapping are left to another handler.
    #[error("range {0:?} is registered with another handler")]
    ServedByOther(Span<Hva>),
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
