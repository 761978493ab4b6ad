//! Kinds of access, permissions, and decoded leaves.

use crate::addr::Pfn;
use core::fmt::Debug;
pub use slat_slots::MemoryType;

named! {
    /// A kind of access.
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
    /// No access.
    pub const NONE: Self = Self(0);
    /// Loads.
    pub const READ: Self = Self(1);
    /// Stores.
    pub const WRITE: Self = Self(2);
    /// Fetches.
    pub const EXECUTE: Self = Self(4);
    /// Loads and fetches.
    pub const RX: Self = Self(5);
    /// All access.
    pub const RWX: Self = Self(7);

    /// Returns the set of the given permissions.
    #[inline(always)]
    pub const fn of(read: bool, write: bool, execute: bool) -> Self {
        Self(read as u8 | (write as u8) << 1 | (execute as u8) << 2)
    }

    /// Returns the set that allows `access` only.
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

    /// Returns the union of both sets.
    #[inline]
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns this set without `other`.
    #[inline]
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the set as a number below eight, to store in a word.
    #[inline]
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// Returns the set from the lowest three bits of `bits`; inverse of [`bits`](Self::bits).
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

/// A decoded leaf: the page that one entry maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// The first frame of the page.
    pub pfn: Pfn,
    /// The access that the hardware permits.
    pub perms: Perms,
    /// The memory type.
    pub memory: MemoryType,
    /// Whether the *host* allowed writes when this leaf was made. If `perms` lacks write, the VMM tracks writes (dirty
    /// logging), and the next store's fault restores the permission by one CAS.
    pub host_writable: bool,
    /// The Accessed bit.
    pub accessed: bool,
    /// The Dirty bit.
    pub dirty: bool,
}

impl Leaf {
    /// A leaf for write-back memory with all permissions, young and dirty, so hardware sets no bit in it. Set the
    /// fields that differ: `Leaf { perms: Perms::RX, ..Leaf::plain(pfn) }`.
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
