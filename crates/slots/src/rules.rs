//! The rules of memslots: requests, their meaning, and why they are refused.
//!
//! The rules are those of KVM's `KVM_SET_USER_MEMORY_REGION`, checked in the same order, so every refusal has
//! the same errno. A [`Region`] is an unchecked request. `Limits::check` turns it into a [`Slot`] that is valid
//! by itself; the [`Transaction`](crate::Transaction) checks that against the existing slots.
//!
//! | check | condition | errno |
//! |---|---|---|
//! | 1 | the id is below the VM's limit | `EINVAL` |
//! | 2 | no unknown flags, not even in a deletion | `EINVAL` |
//! | 3–5 | size, guest address and host address are multiples of 4 KiB; the host range is the user's | `EINVAL` |
//! | 6, 7 | the range does not wrap; at most 2³¹ − 1 pages | `EINVAL` |
//! | 8 | a slot to delete exists | `EINVAL` |
//! | 9 | size, host address and read-only flag of a slot never change: delete it and create another | `EINVAL` |
//! | 10 | no frame belongs to two slots; host addresses may | `EEXIST` |
//! | 11 | the frames are within the guest's address width | `EINVAL` |
//! | 12 | nodes can be allocated (KVM allocates before check 11) | `ENOMEM` |
//!
//! A slot may move to a range that overlaps its old one; slots may be adjacent.

use crate::addr::{Gfn, Gpa, Hva, PAGE_SHIFT, PAGE_SIZE, Position, Span};
use crate::memory_type::MemoryType;
use crate::slot::{Slot, SlotId};
use core::fmt;

/// The most pages of one slot.
pub const MAX_PAGES: u64 = (1 << 31) - 1;

/// An unchecked request, with the fields of `KVM_SET_USER_MEMORY_REGION`.
///
/// ```
/// use slat_slots::{Change, Gpa, Hva, Limits, Region, SlotError, SlotId, SlotMap};
/// let mut slots = SlotMap::<()>::new(Limits::default());
/// let ram = Region { slot: SlotId(0), flags: 0, gpa: Gpa(0), bytes: 2 << 20, hva: Hva(0x7000_0000) };
/// assert_eq!(slots.commit(|tx| tx.set(ram))?, Change::Created);
/// let logged = Region { flags: Region::LOG_DIRTY, ..ram };
/// assert!(matches!(slots.commit(|tx| tx.set(logged))?, Change::Flags(_)));
/// let odd = Region { bytes: 4095, ..ram };
/// assert_eq!(slots.commit(|tx| tx.set(odd)).unwrap_err().errno(), 22, "EINVAL");
/// assert!(matches!(slots.commit(|tx| tx.set(Region::deletion(ram.slot)))?, Change::Deleted(_)));
/// # Ok::<(), SlotError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Id of the slot.
    pub slot: SlotId,
    /// [`LOG_DIRTY`](Self::LOG_DIRTY), [`READONLY`](Self::READONLY).
    pub flags: u32,
    /// Guest address of the slot, in bytes.
    pub gpa: Gpa,
    /// Size in bytes; zero deletes the slot.
    pub bytes: u64,
    /// Host address of the slot.
    pub hva: Hva,
}

impl Region {
    /// Logs guest writes.
    pub const LOG_DIRTY: u32 = 1;
    /// Refuses guest writes; they become MMIO.
    pub const READONLY: u32 = 2;

    /// The request that deletes `slot`.
    pub fn deletion(slot: SlotId) -> Self {
        Self { slot, flags: 0, gpa: Gpa(0), bytes: 0, hva: Hva(0) }
    }

    fn refused(&self, rule: Rule) -> SlotError {
        SlotError { id: self.slot, gpas: Span::sized(self.gpa, self.bytes), rule }
    }
}

impl From<Slot> for Region {
    fn from(slot: Slot) -> Self {
        let log = if slot.log_dirty { Self::LOG_DIRTY } else { 0 };
        let readonly = if slot.readonly { Self::READONLY } else { 0 };
        let gpas = slot.gpas();
        Self { slot: slot.id, flags: log | readonly, gpa: gpas.start, bytes: gpas.len(), hva: slot.hva }
    }
}

/// The change that a request has made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A new slot.
    Created,
    /// This slot was deleted.
    Deleted(Slot),
    /// This slot was moved, and its flags may have changed.
    Moved(Slot),
    /// This slot's flags have changed.
    Flags(Slot),
    /// Nothing, since the slot was already as requested.
    Nothing,
}

/// Limits of the slots of an address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Upper bound of ids (exclusive).
    pub ids: u32,
    /// Upper bound of guest frames (exclusive).
    pub frames: u64,
    /// Bounds of host addresses. Do not apply to private memory.
    pub hvas: Span<Hva>,
    /// Whether all slots must be ordinary memory, since the table format has no other memory types.
    pub write_back_only: bool,
}

impl Default for Limits {
    /// KVM's limits on x86: 32,764 ids, 52 bits of guest address. Any host address.
    fn default() -> Self {
        Self { ids: 32_764, frames: 1 << 40, hvas: Span::new(Hva(0), Hva(u64::MAX)), write_back_only: false }
    }
}

impl Limits {
    /// Checks 1 to 7. Returns the slot that `region` describes, or `None` for a deletion.
    pub(crate) fn check(&self, region: &Region) -> Result<Option<Slot>, SlotError> {
        let Region { slot: id, flags, gpa, bytes, hva } = *region;
        let unknown = flags & !(Region::LOG_DIRTY | Region::READONLY);
        let rule = if id.0 >= self.ids {
            Rule::Id { limit: self.ids }
        } else if unknown != 0 {
            Rule::UnknownFlags(unknown)
        } else if !bytes.is_multiple_of(PAGE_SIZE) {
            Rule::Size
        } else if gpa.offset() != 0 {
            Rule::GuestAddress
        } else if !self.allows(hva, bytes) {
            Rule::HostAddress(hva)
        } else if gpa.0.checked_add(bytes).is_none() {
            Rule::Wraps
        } else if bytes >> PAGE_SHIFT > MAX_PAGES {
            Rule::TooLong
        } else {
            let slot = Slot {
                readonly: flags & Region::READONLY != 0,
                log_dirty: flags & Region::LOG_DIRTY != 0,
                ..Slot::new(id, gpa.gfn(), bytes >> PAGE_SHIFT, hva)
            };
            return Ok((bytes != 0).then_some(slot));
        };
        Err(region.refused(rule))
    }

    /// Whether a slot of this size may be at `hva`: a host address in bounds, or inside one private memory.
    pub(crate) fn allows(&self, hva: Hva, bytes: u64) -> bool {
        let end = hva.0.checked_add(bytes);
        let bounds = hva.private_memory().map_or(self.hvas, |(memory, _)| memory.names());
        hva.offset() == 0 && hva >= bounds.start && end.is_some_and(|end| end <= bounds.end.0)
    }

    /// Check 11.
    pub(crate) fn check_reach(&self, slot: &Slot) -> Result<(), SlotError> {
        if slot.gfns.end.0 > self.frames { Err(slot.refused(Rule::Reach(Gfn(self.frames)))) } else { Ok(()) }
    }
}

/// Why a slot operation was refused: the slot, its addresses, and the rule. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotError {
    /// Id in the request.
    pub id: SlotId,
    /// Guest addresses in the request; empty if it had none.
    pub gpas: Span<Gpa>,
    /// The rule that the request broke.
    pub rule: Rule,
}

/// The rule that a request broke; the texts say what is required.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Rule {
    /// Ids are below the VM's limit.
    Id {
        /// [`Limits::ids`].
        limit: u32,
    },
    /// Only known flags are set. These are not.
    UnknownFlags(u32),
    /// A slot's size is a multiple of 4 KiB.
    Size,
    /// A slot has at least one page. (An empty [`Region`] is a deletion.)
    Empty,
    /// The guest address is a multiple of 4 KiB.
    GuestAddress,
    /// The host address is a multiple of 4 KiB, and guests may use its whole range.
    HostAddress(Hva),
    /// The range does not extend beyond the last guest address.
    Wraps,
    /// A slot has at most [`MAX_PAGES`].
    TooLong,
    /// The slot to delete or change exists.
    Missing,
    /// The id of a new slot is free.
    Exists,
    /// Size, host address, read-only flag, execute permission and memory type never change. This is the
    /// existing slot.
    Fixed(Slot),
    /// No frame belongs to two slots. This is the other slot.
    Overlaps(Slot),
    /// All frames are below this one, which guest addresses do not reach.
    Reach(Gfn),
    /// The VM's table format has this memory type.
    MemoryType(MemoryType),
    /// The frames to cut are part of the slot. These are not.
    Part(Span<Gfn>),
    /// A slot with private memory has shared memory at a host address and private memory in a
    /// [`PrivateMemory`](crate::PrivateMemory). It cannot be moved, logged or read-only (KVM's rule).
    Private,
    /// Each frame has a slot with private memory. This is the first that has none.
    NotPrivate(Gfn),
    /// The host has memory for nodes and dirty logs.
    NoMemory,
}

impl SlotError {
    /// Returns the Linux error number of this refusal.
    pub const fn errno(&self) -> i32 {
        const ENOMEM: i32 = 12;
        const EEXIST: i32 = 17;
        const EINVAL: i32 = 22;
        match self.rule {
            Rule::Overlaps(_) | Rule::Exists => EEXIST,
            Rule::NoMemory => ENOMEM,
            _ => EINVAL,
        }
    }

    pub(crate) fn missing(id: SlotId) -> Self {
        Self { id, gpas: Span::new(Gpa(0), Gpa(0)), rule: Rule::Missing }
    }
}

impl Slot {
    pub(crate) fn refused(&self, rule: Rule) -> SlotError {
        SlotError { id: self.id, gpas: self.gpas(), rule }
    }

    /// Its guest addresses, in bytes; truncated if they exceed 64 bits.
    pub fn gpas(&self) -> Span<Gpa> {
        let address = |gfn: Gfn| Gpa(u64::try_from(u128::from(gfn.0) << PAGE_SHIFT).unwrap_or(u64::MAX));
        Span::new(address(self.gfns.start), address(self.gfns.end))
    }
}

impl fmt::Display for SlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memslot {}", self.id)?;
        if !self.gpas.is_empty() {
            write!(f, " at {}", Range(self.gpas))?;
        }
        f.write_str(": ")?;
        match self.rule {
            Rule::Id { limit } => write!(f, "this VM's ids are below {limit}"),
            Rule::UnknownFlags(flags) => write!(f, "unknown flags {flags:#x}"),
            Rule::Size => f.write_str("its size is not a multiple of 4 KiB"),
            Rule::Empty => f.write_str("it has no pages"),
            Rule::GuestAddress => f.write_str("its guest address is not a multiple of 4 KiB"),
            Rule::HostAddress(hva) => write!(f, "host address {hva} is unaligned or reaches out of bounds"),
            Rule::Wraps => f.write_str("it reaches past the last guest address"),
            Rule::TooLong => write!(f, "it has more than {MAX_PAGES} pages"),
            Rule::Missing => f.write_str("there is none of this id"),
            Rule::Exists => f.write_str("there is one of this id"),
            Rule::Fixed(old) => {
                write!(f, "it is {} at host address {}", Range(old.gpas()), old.hva)?;
                f.write_str(if old.readonly { ", read-only" } else { "" })?;
                f.write_str("; size, host address, permissions and memory type cannot change")
            }
            Rule::Overlaps(other) => write!(f, "it overlaps memslot {} at {}", other.id, Range(other.gpas())),
            Rule::Reach(end) => write!(f, "guest addresses end at {}", Gpa(end.0 << PAGE_SHIFT)),
            Rule::MemoryType(memory) => {
                write!(f, "this VM's page-table format has no memory type {memory:?}")
            }
            Rule::Part(part) => write!(f, "frames {:#x}..{:#x} are no part of it", part.start.0, part.end.0),
            Rule::Private => {
                f.write_str("with shared and private memory it has a host address and a backing, and is not moved, logged or read-only")
            }
            Rule::NotPrivate(gfn) => {
                write!(f, "frame {gfn} has no private memory; create its memslot with some")
            }
            Rule::NoMemory => f.write_str("out of memory for memslots"),
        }
    }
}

impl core::error::Error for SlotError {}

/// Why a [`SharedSlots::commit_with`](crate::SharedSlots::commit_with) failed. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommitError<E> {
    /// A slot operation was refused. The embedder's operation was not called.
    Slots(SlotError),
    /// The embedder's operation failed.
    Refused(E),
}

impl<E> From<SlotError> for CommitError<E> {
    fn from(error: SlotError) -> Self {
        Self::Slots(error)
    }
}

impl<E: fmt::Display> fmt::Display for CommitError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slots(error) => error.fmt(f),
            Self::Refused(error) => write!(f, "the memslots stay as they are: {error}"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> core::error::Error for CommitError<E> {}

/// For a transaction without such an operation.
impl From<CommitError<core::convert::Infallible>> for SlotError {
    fn from(error: CommitError<core::convert::Infallible>) -> Self {
        match error {
            CommitError::Slots(error) => error,
            CommitError::Refused(never) => match never {},
        }
    }
}

/// Displays a range of addresses in error messages.
struct Range<T>(Span<T>);

impl<T: Position + fmt::Display> fmt::Display for Range<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.0.start, self.0.end)
    }
}
