//! What a format of L1's tables must say: where an entry is, what it means, and what L1 is told of a refusal.

use crate::addr::{Gfn, Gpa, INDEX_BITS, Level, PAGE_SHIFT};
use crate::table::entry::Word;
use crate::table::format::{Access, MemoryType, Perms};
use core::fmt::Debug;

/// An access by L2 to one of its guest-physical addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct L1Access {
    /// The L2 guest-physical address.
    pub gpa: Gpa,
    /// What is done there.
    pub access: Access,
    /// Whether L2's code runs as a user: of consequence for fetches, where T tells users' from supervisors'.
    pub user: bool,
    /// Where this is an access by the walk of L2's own page tables: what that walk is made for.
    pub walk_for: Option<Access>,
    /// What hardware said of the access beside: handed on to L1. Bits 7 and 9 to 16 of an EPT violation's qualification; else 0.
    pub carried: u64,
}

impl L1Access {
    /// A supervisor's access of the final address.
    pub const fn new(gpa: Gpa, access: Access) -> Self {
        Self { gpa, access, user: false, walk_for: None, carried: 0 }
    }

    /// What the access was begun for: its kind; of a walk, what the walk is made for.
    pub fn purpose(&self) -> Access {
        self.walk_for.unwrap_or(self.access)
    }
}

/// What T allows a supervisor, and a user. The same where T does not tell them apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct L1Rights {
    /// A supervisor.
    pub perms: Perms,
    /// A user.
    pub user: Perms,
}

impl L1Rights {
    /// Everything: before any entry was read.
    pub const ALL: Self = Self::plain(Perms::RWX);

    /// The same for users and supervisors.
    pub const fn plain(perms: Perms) -> Self {
        Self { perms, user: perms }
    }

    /// Fetches by users are told apart.
    pub(super) const fn with_user_execute(perms: Perms, on: bool) -> Self {
        let execute = if on { Perms::EXECUTE } else { Perms::NONE };
        Self { perms, user: perms.without(Perms::EXECUTE).with(execute) }
    }

    /// What both allow.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        let perms = Perms::from_bits(self.perms.bits() & other.perms.bits());
        Self { perms, user: Perms::from_bits(self.user.bits() & other.user.bits()) }
    }

    /// What a user, or a supervisor, may do.
    pub const fn of(self, user: bool) -> Perms {
        if user { self.user } else { self.perms }
    }

    /// What users and supervisors may both do.
    pub(super) const fn of_both(self) -> Perms {
        Perms::from_bits(self.perms.bits() & self.user.bits())
    }

    /// The same without some rights.
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
    /// An entry has a bit or a value that is reserved: EPT misconfiguration, AMD's RSV.
    Reserved,
    /// The entries along the path do not allow the access.
    Rights,
    /// A is clear in the leaf, and hardware does not set it: Arm's access flag fault, RISC-V's `Svade`.
    NotAccessed,
    /// An entry, or the root, names an address beyond the physical size that L1 has set (Arm).
    AddressSize,
    /// An entry of T is in no memslot of L1; or hardware has to set A or D in a memslot that is read-only, where that is an error.
    NoMemory,
}

/// An access that T refuses: it is L1's to deal with. [`L1Format::injection`] makes of it what L1's hardware would say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct L1Fault {
    /// The access.
    pub access: L1Access,
    /// Why.
    pub why: Refusal,
    /// The level of the entry that decided: of the leaf, where rights are wanting; of the root, where none was read.
    pub level: Level,
    /// What the entries above allow together, and the leaf's where rights are wanting.
    pub rights: L1Rights,
    /// The L1 frame of the table page that holds the entry; `None` where the address or the root was refused before any was read.
    pub table: Option<Gfn>,
}

/// What one entry of T says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct L1Entry {
    /// The first L1 frame of the page, or the frame of the next table.
    pub gfn: Gfn,
    /// Whether it maps a page. An entry of the lowest level is taken for one that does.
    pub is_leaf: bool,
    /// What it allows.
    pub rights: L1Rights,
    /// How its page is cached: the widest of our types that is no wider than T's.
    pub memory: MemoryType,
    /// A: bits that hardware sets when it goes through the entry.
    pub touch: u64,
    /// D: bits that hardware sets, too, when it stores through the leaf.
    pub touch_store: u64,
}

/// A format of L1's tables, with a root: T as one value. Two that are equal translate alike.
///
/// `Copy` and small: it belongs into what a shadow table is looked up by. An implementation reads bits, and may say of hostile ones
/// what it likes: a walk trusts nothing that it says.
pub trait L1Format: Copy + Eq + Debug + Send + Sync + 'static {
    /// What L1's hardware says of a refusal.
    type Injection: Copy + Eq + Debug;

    /// Whether setting A or D in a read-only memslot is an error ([`Refusal::NoMemory`]). Else the bit stays clear and the access goes
    /// on, as on a machine whose bus drops stores to ROM.
    const ROM_IS_AN_ERROR: bool;

    /// The bits of an entry of the lowest level that name its frame, and nothing else does: one field, the frame's lowest bit at its
    /// lowest. A flush then compares entries without decoding each. None where there is no such field.
    const LEAF_FRAME: u64 = 0;

    /// Whether the vCPU goes on under this table after a refusal: L1 is not told by an exit, but by a fault of its own.
    const GOES_ON: bool = false;

    /// Where the root begins in L1's memory, and the level of its entries.
    fn root(&self) -> (Gpa, Level);

    /// Where a walk for the address begins, and the level: the root, unless the processor has the entries of that in registers.
    fn start(&self, gpa: Gpa) -> (Gpa, Level) {
        let _ = gpa;
        self.root()
    }

    /// Whether an entry has four bytes, which are the lower half of the word that [`entry`](Self::entry) is given; not eight.
    fn is_short(&self) -> bool {
        false
    }

    /// How many pages of 4 KiB a leaf of this level maps.
    fn pages(&self, level: Level) -> u64 {
        level.pages()
    }

    /// Why the address is refused before any entry is read.
    fn refuses(&self, gpa: Gpa) -> Option<Refusal>;

    /// The number of the address's entry in its table of `level`. A root may have more than 512.
    fn index(&self, gpa: Gpa, level: Level) -> usize {
        let index = gpa.0 >> (level.shift() + PAGE_SHIFT);
        (if level == self.root().1 { index } else { index & ((1 << INDEX_BITS) - 1) }) as usize
    }

    /// What an access demands: some formats take each access by L2's own walk for a store. A demand for [`Perms::WRITE`] sets D.
    fn demands(&self, access: &L1Access) -> Perms {
        Perms::to(access.access)
    }

    /// What an entry found at `level` says.
    fn entry(&self, entry: Word, level: Level) -> Result<L1Entry, Refusal>;

    /// What the entries of a path, which allow this together, allow in the end.
    fn grants(&self, path: L1Rights) -> L1Rights {
        path
    }

    /// Whether L1's hardware, when it refuses an access through this table, forgets what it has of the same address through `other`.
    fn forgets_with(&self, other: &Self) -> bool {
        let _ = other;
        false
    }

    /// What L1 is told.
    fn injection(&self, fault: &L1Fault) -> Self::Injection;
}

/// Bits `low..high` of an entry; none where there are none.
pub(super) const fn bits(low: u32, high: u32) -> u64 {
    let high = if high > 64 { 64 } else { high };
    if low >= high { 0 } else { u64::MAX >> (64 - (high - low)) << low }
}

/// The frame of the address in bits 12 to 51 of an entry.
pub(super) const fn frame(entry: u64) -> Gfn {
    Gfn((entry & bits(PAGE_SHIFT, 52)) >> PAGE_SHIFT)
}

/// An x86 memory type, as EPT entries and the PAT say it; `None` where it is reserved. Write-through and write-protected memory is
/// taken for uncached.
pub(super) const fn x86_memory_type(number: u64) -> Option<MemoryType> {
    match number {
        6 => Some(MemoryType::WriteBack),
        1 => Some(MemoryType::WriteCombining),
        0 | 4 | 5 => Some(MemoryType::Uncached),
        _ => None,
    }
}
