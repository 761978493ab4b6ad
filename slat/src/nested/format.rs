//! The trait of L1's table formats: where an entry is, what it means, and how a refusal is injected into L1.

use crate::addr::INDEX_BITS;
use crate::{Access, Gfn, Gpa, Level, MemoryType, PAGE_SHIFT, Perms, Word};
use core::fmt::Debug;

/// An access by L2 to one of its guest-physical addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct L1Access {
    /// The L2 guest-physical address.
    pub gpa: Gpa,
    /// Kind of the access.
    pub access: Access,
    /// Whether L2's code runs as a user. Matters for fetches, if T distinguishes users from supervisors.
    pub user: bool,
    /// For an access by the walk of L2's own page tables: the access that the walk is made for.
    pub walk_for: Option<Access>,
    /// Further bits for L1: bits 7 and 9 to 16 of an EPT violation's qualification; else 0.
    pub carried: u64,
}

impl L1Access {
    /// An access by a supervisor to the final address.
    pub const fn new(gpa: Gpa, access: Access) -> Self {
        Self { gpa, access, user: false, walk_for: None, carried: 0 }
    }

    /// The access that started this one: of a walk, what the walk is made for; else its own kind.
    pub fn purpose(&self) -> Access {
        self.walk_for.unwrap_or(self.access)
    }
}

/// Rights of supervisors and users. Equal if T does not distinguish them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct L1Rights {
    /// Rights of a supervisor.
    pub perms: Perms,
    /// Rights of a user.
    pub user: Perms,
}

impl L1Rights {
    /// All rights: the value before any entry was read.
    pub const ALL: Self = Self::plain(Perms::RWX);

    /// Equal rights for users and supervisors.
    pub const fn plain(perms: Perms) -> Self {
        Self { perms, user: perms }
    }

    /// Rights with a separate bit for fetches by users.
    pub(super) const fn with_user_execute(perms: Perms, on: bool) -> Self {
        let execute = if on { Perms::EXECUTE } else { Perms::NONE };
        Self { perms, user: perms.without(Perms::EXECUTE).with(execute) }
    }

    /// Returns the rights that both allow.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        let perms = Perms::from_bits(self.perms.bits() & other.perms.bits());
        Self { perms, user: Perms::from_bits(self.user.bits() & other.user.bits()) }
    }

    /// Returns the rights of a user, or of a supervisor.
    pub const fn of(self, user: bool) -> Perms {
        if user { self.user } else { self.perms }
    }

    /// Returns the rights that users and supervisors share.
    pub(super) const fn of_both(self) -> Perms {
        Perms::from_bits(self.perms.bits() & self.user.bits())
    }

    /// Returns the rights without `perms`.
    pub(super) const fn without(self, perms: Perms) -> Self {
        Self { perms: self.perms.without(perms), user: self.user.without(perms) }
    }
}

/// Why T refuses an access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// An entry is not present, or the address has bits that T does not translate.
    NotPresent,
    /// An entry has a reserved bit or value: EPT misconfiguration, AMD's RSV.
    Reserved,
    /// The entries along the path do not allow the access.
    Rights,
    /// A is clear in the leaf, and hardware does not set it: Arm's access flag fault, RISC-V's `Svade`.
    NotAccessed,
    /// An entry, or the root, names an address beyond the physical size that L1 has set (Arm).
    AddressSize,
    /// An entry of T is in no memslot of L1; or A or D must be set in a read-only one, and that is an error.
    NoMemory,
}

/// An access that T refuses. L1 handles it; [`L1Format::injection`] encodes it as L1's hardware would.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct L1Fault {
    /// The access.
    pub access: L1Access,
    /// The reason.
    pub why: Refusal,
    /// Level of the refusing entry: of the leaf, if rights are missing; of the root, if no entry was read.
    pub level: Level,
    /// Rights of the entries above together, and of the leaf if rights are missing.
    pub rights: L1Rights,
    /// L1 frame of the table page that holds the entry; `None` if the address or the root was refused first.
    pub table: Option<Gfn>,
}

/// A decoded entry of T.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct L1Entry {
    /// The first L1 frame of the page, or the frame of the next table.
    pub gfn: Gfn,
    /// Whether it maps a page. The walk treats an entry of the lowest level as a leaf in any case.
    pub is_leaf: bool,
    /// Its rights.
    pub rights: L1Rights,
    /// Memory type of its page: the most permissive of the engine's types that is no more permissive than T's.
    pub memory: MemoryType,
    /// A: bits that hardware sets when it walks through the entry.
    pub touch: u64,
    /// D: bits that hardware also sets when it stores through the leaf.
    pub touch_store: u64,
}

/// A format of L1's tables, with a root: T as one value. Equal values translate alike.
///
/// `Copy` and small: it is part of a shadow's key. For hostile entries an implementation may return anything: the walk
/// trusts no result.
pub trait L1Format: Copy + Eq + Debug + Send + Sync + 'static {
    /// L1's hardware report of a refusal.
    type Injection: Copy + Eq + Debug;

    /// Whether setting A or D in a read-only memslot is an error ([`Refusal::NoMemory`]). Otherwise the bit stays clear
    /// and the access continues, as on a bus that drops stores to ROM.
    const ROM_IS_AN_ERROR: bool = false;

    /// The bits of an entry of the lowest level that name its frame, and nothing else: one field, with the frame's
    /// lowest bit lowest. A flush then compares entries without decoding each. 0 if there is no such field.
    const LEAF_FRAME: u64 = 0;

    /// Whether the vCPU continues under this table after a refusal: L1 gets a fault, not an exit.
    const GOES_ON: bool = false;

    /// Returns the root's address in L1's memory, and the level of its entries.
    fn root(&self) -> (Gpa, Level);

    /// Returns where a walk begins, and its level: the root, unless registers hold the root's entries.
    fn start(&self, gpa: Gpa) -> (Gpa, Level) {
        let _ = gpa;
        self.root()
    }

    /// Whether an entry has four bytes instead of eight: the lower half of the word passed to [`entry`](Self::entry).
    fn is_short(&self) -> bool {
        false
    }

    /// Number of 4 KiB pages that a leaf of this level maps.
    fn pages(&self, level: Level) -> u64 {
        level.pages()
    }

    /// Returns why the address is refused before any entry is read.
    fn refuses(&self, gpa: Gpa) -> Option<Refusal>;

    /// Returns the index of the address's entry in its table of `level`. A root may have more than 512 entries.
    fn index(&self, gpa: Gpa, level: Level) -> usize {
        let index = gpa.0 >> (level.shift() + PAGE_SHIFT);
        (if level == self.root().1 { index } else { index & ((1 << INDEX_BITS) - 1) }) as usize
    }

    /// Rights that an access demands. Some formats treat accesses by L2's own walk as stores. [`Perms::WRITE`] sets D.
    fn demands(&self, access: &L1Access) -> Perms {
        Perms::to(access.access)
    }

    /// Decodes an entry found at `level`.
    fn entry(&self, entry: Word, level: Level) -> Result<L1Entry, Refusal>;

    /// Returns the rights of a path whose entries allow `path` together.
    fn grants(&self, path: L1Rights) -> L1Rights {
        path
    }

    /// Whether L1's hardware, when it refuses an access through this table, also flushes the address under `other`.
    fn forgets_with(&self, other: &Self) -> bool {
        let _ = other;
        false
    }

    /// Returns what L1 is told.
    fn injection(&self, fault: &L1Fault) -> Self::Injection;
}

/// Bits `low..high` of an entry; 0 if the range is empty.
pub(super) const fn bits(low: u32, high: u32) -> u64 {
    let high = if high > 64 { 64 } else { high };
    if low >= high { 0 } else { u64::MAX >> (64 - (high - low)) << low }
}

/// The frame of the address in bits 12 to 51 of an entry.
pub(super) const fn frame(entry: u64) -> Gfn {
    Gfn((entry & bits(PAGE_SHIFT, 52)) >> PAGE_SHIFT)
}

/// An x86 memory type, as EPT entries and the PAT encode it; `None` if reserved. Write-through and write-protected
/// count as uncached.
pub(super) const fn x86_memory_type(number: u64) -> Option<MemoryType> {
    match number {
        6 => Some(MemoryType::WriteBack),
        1 => Some(MemoryType::WriteCombining),
        0 | 4 | 5 => Some(MemoryType::Uncached),
        _ => None,
    }
}
