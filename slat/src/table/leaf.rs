//! What a page may be used for, and what one leaf maps.

use crate::addr::Pfn;
use core::fmt::Debug;
pub use slat_slots::MemoryType;

named! {
    /// What an access wants, or what an entry allows.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum Access {
        /// A data load.
        Read "read",
        /// A data store.
        Write "write",
        /// An instruction fetch.
        Fetch "fetch",
    }
}

/// A set of allowed kinds of access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Perms(u8);

impl Perms {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Loads.
    pub const READ: Self = Self(1);
    /// Stores.
    pub const WRITE: Self = Self(2);
    /// Fetches.
    pub const EXECUTE: Self = Self(4);
    /// Loads and fetches.
    pub const RX: Self = Self(5);
    /// Everything.
    pub const RWX: Self = Self(7);

    /// What each of the three says.
    #[inline(always)]
    pub const fn of(read: bool, write: bool, execute: bool) -> Self {
        Self(read as u8 | (write as u8) << 1 | (execute as u8) << 2)
    }

    /// What allows `access`, and nothing else.
    #[inline]
    pub(crate) const fn to(access: Access) -> Self {
        match access {
            Access::Read => Self::READ,
            Access::Write => Self::WRITE,
            Access::Fetch => Self::EXECUTE,
        }
    }

    /// Whether `access` is allowed.
    #[inline]
    pub const fn allows(self, access: Access) -> bool {
        self.0 & Self::to(access).0 != 0
    }

    /// Both sets together.
    #[inline]
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set less `other`.
    #[inline]
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The set as a number below eight, for a word that keeps it.
    #[inline]
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// The set from [`bits`](Self::bits), in the lowest three of `bits`.
    #[inline]
    pub(crate) const fn from_bits(bits: u8) -> Self {
        Self(bits & Self::RWX.0)
    }
}

impl Debug for Perms {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for (access, letter) in [(Access::Read, "r"), (Access::Write, "w"), (Access::Fetch, "x")] {
            f.write_str(if self.allows(access) { letter } else { "-" })?;
        }
        Ok(())
    }
}

/// A leaf, decoded: what one entry maps, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// First frame of the page.
    pub pfn: Pfn,
    /// What the hardware lets through.
    pub perms: Perms,
    /// How it is cached.
    pub memory: MemoryType,
    /// Whether the *host* allowed writes when this leaf was made. With `perms` less: the VMM tracks writes
    /// (dirty logging), and the fault that asks gets the permission back by one CAS.
    pub host_writable: bool,
    /// The Accessed bit.
    pub accessed: bool,
    /// The Dirty bit.
    pub dirty: bool,
}

impl Leaf {
    /// A page of ordinary memory that may be used in any way, and is young and dirty: hardware need set no bit in it. What differs
    /// is said beside it: `Leaf { perms: Perms::RX, ..Leaf::plain(pfn) }`.
    pub const fn plain(pfn: Pfn) -> Self {
        Self {
            pfn,
            perms: Perms::RWX,
            memory: MemoryType::WriteBack,
            host_writable: true,
            accessed: true,
            dirty: true,
        }
    }
}
