//! What can go wrong in a primary MMU. Each error leaves the address space as whole as it was.

use slat::{Access, Again, HostError, Hva, Level, Span, table::NoMemory};

/// Why an operation was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MmError {
    /// The operating system refused a call; the number is its `errno`.
    Os {
        /// The call.
        call: &'static str,
        /// Its `errno`.
        errno: i32,
    },
    /// An arena is made of whole blocks of 2 MiB; this many bytes hold none, or more than can be addressed.
    BadLimit(u64),
    /// So many nodes do not share the arena: there are 1 to 255, and each has a block of 2 MiB.
    BadNodes(u8),
    /// The arena is full: no page of this size is left.
    OutOfFrames(Level),
    /// The arena is full: no table can be linked.
    OutOfTables,
    /// The range is empty, not made of 4 KiB pages, or reaches past 128 TiB.
    BadRange(Span<Hva>),
    /// Something is mapped in the range already.
    Occupied(Span<Hva>),
    /// No gap of this many bytes is left between the mappings.
    NoRoom(u64),
    /// The address space has exited.
    Exited,
    /// Somebody would have to wait, and may not: what was not done yet is as it was. Try again.
    Again,
    /// Nothing is mapped at the address.
    NotMapped(Hva),
    /// What is mapped there does not allow this access.
    Denied(Hva, Access),
    /// The mapping reaches past the end of its file, and so does this address.
    PastEnd(Hva),
    /// An offset into a file that is not a multiple of 4 KiB.
    BadOffset(u64),
    /// A file in another arena than the address space.
    ForeignFile,
    /// An address space in another arena than KSM.
    ForeignSpace,
    /// Swap for another arena than the address space's.
    ForeignSwap,
    /// Another swap uses the file.
    SwapInUse,
    /// The file for swap is there, and holds something else.
    NotSwap,
    /// What is there in place of a file for swap is a folder, a device, a FIFO or a socket.
    NotAFile,
    /// The page that belongs at the address could not be read back from swap; the number is the device's `errno`. It is
    /// there still: another try may succeed.
    SwapIo {
        /// Where it was wanted.
        hva: Hva,
        /// What the device said.
        errno: i32,
    },
    /// The page that belongs at the address came back from swap as something else.
    SwapCorrupt(Hva),
    /// A setting outside of what is possible.
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
    AlreadyThere(Hva),
    /// The address is not registered with this handler of user faults.
    NotServed(Hva),
    /// The file behind the address has no page there, or there is no file.
    NotInFile(Hva),
    /// Faults of this mapping cannot be left to a user's thread.
    Unservable(Span<Hva>),
    /// Faults of this mapping are left to another handler.
    ServedByOther(Span<Hva>),
}

impl core::fmt::Display for MmError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Os { call, errno } => write!(f, "{call}: {}", std::io::Error::from_raw_os_error(*errno)),
            Self::BadLimit(bytes) => {
                write!(f, "an arena of {bytes} bytes: not possible (the least is 2 MiB)")
            }
            Self::BadNodes(nodes) => {
                write!(f, "an arena of {nodes} nodes: not possible (each has at least 2 MiB)")
            }
            Self::OutOfFrames(level) => write!(f, "out of memory: the arena has no {level:?} page left"),
            Self::OutOfTables => f.write_str("out of memory: the arena has no room for page tables"),
            Self::BadRange(span) => write!(f, "range {span:?}: empty, unaligned or out of reach"),
            Self::Occupied(span) => write!(f, "range {span:?}: something is mapped there"),
            Self::NoRoom(bytes) => write!(f, "no gap of {bytes} bytes in the address space"),
            Self::Exited => f.write_str("the address space has exited"),
            Self::Again => Again.fmt(f),
            Self::NotMapped(hva) => write!(f, "nothing is mapped at {hva}"),
            Self::Denied(hva, access) => write!(f, "the mapping at {hva} does not allow {access:?}"),
            Self::PastEnd(hva) => write!(f, "{hva} lies past the end of the mapped file"),
            Self::BadOffset(offset) => write!(f, "file offset {offset}: not a multiple of 4 KiB"),
            Self::ForeignFile => f.write_str("the file lives in another arena"),
            Self::ForeignSpace => f.write_str("the address space lives in another arena"),
            Self::ForeignSwap => f.write_str("the swap stores pages of another arena"),
            Self::SwapInUse => f.write_str("the swap file is in use"),
            Self::NotSwap => f.write_str("the file holds something else than swap"),
            Self::NotAFile => f.write_str("is there, and no file"),
            Self::SwapIo { hva, errno } => {
                let why = std::io::Error::from_raw_os_error(*errno);
                write!(f, "the page at {hva} cannot be read back from swap: {why}")
            }
            Self::SwapCorrupt(hva) => write!(f, "the page at {hva} is corrupt in swap"),
            Self::BadSetting { name, value, least, most } => {
                write!(f, "{name} {value}: not within {least}..={most}")
            }
            Self::AlreadyThere(hva) => write!(f, "there is a page at {hva} already"),
            Self::NotServed(hva) => write!(f, "{hva} is not registered with this handler"),
            Self::NotInFile(hva) => write!(f, "no page of a file is there for {hva}"),
            Self::Unservable(span) => {
                write!(
                    f,
                    "range {span:?}: user faults need anonymous or shared memory, minor ones a shared file"
                )
            }
            Self::ServedByOther(span) => write!(f, "range {span:?} is registered with another handler"),
        }
    }
}

impl core::error::Error for MmError {}

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
