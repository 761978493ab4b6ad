//! The rules of memslots: what may be asked for, what it amounts to, and why it may be refused.
//!
//! They are those of KVM's `KVM_SET_USER_MEMORY_REGION`, checked in the same order, so that a VMM finds its habits
//! kept and every refusal has one errno. A [`Region`] is the request as a VMM makes it, perhaps nonsense;
//! `Limits::check` makes it a [`Slot`] that is sound by itself; the
//! [`Transaction`](crate::Transaction) compares that with the slots there are.
//!
//! | check | what must hold | errno |
//! |---|---|---|
//! | 1 | the id is below the VM's limit | `EINVAL` |
//! | 2 | no unknown flags, in a deletion neither | `EINVAL` |
//! | 3–5 | size, guest address and host address are multiples of 4 KiB; the host range is the user's | `EINVAL` |
//! | 6, 7 | the range does not wrap; at most 2³¹ − 1 pages | `EINVAL` |
//! | 8 | what is deleted exists | `EINVAL` |
//! | 9 | size, host address and read-only flag of a slot never change: delete it and create another | `EINVAL` |
//! | 10 | no frame belongs to two slots; host addresses may | `EEXIST` |
//! | 11 | the frames lie in reach of guest addresses | `EINVAL` |
//! | 12 | nodes can be had (KVM asks for memory before it looks at reach) | `ENOMEM` |
//!
//! A slot may move over its own old range; slots may touch.

use crate::addr::{Gfn, Gpa, Hva, PAGE_SHIFT, PAGE_SIZE, Position, Span};
use crate::memory_type::MemoryType;
use crate::slot::{Slot, SlotId};
use core::fmt;

/// The most pages of one slot.
pub const MAX_PAGES: u64 = (1 << 31) - 1;

/// A request, field by field as in `KVM_SET_USER_MEMORY_REGION`. Anything may be wrong with it.
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
    /// Which slot.
    pub slot: SlotId,
    /// [`LOG_DIRTY`](Self::LOG_DIRTY), [`READONLY`](Self::READONLY).
    pub flags: u32,
    /// Where the guest sees it.
    pub gpa: Gpa,
    /// Its size; zero deletes the slot.
    pub bytes: u64,
    /// The host address behind it.
    pub hva: Hva,
}

impl Region {
    /// Writes are to be logged.
    pub const LOG_DIRTY: u32 = 1;
    /// Guest writes are refused; they surface as MMIO.
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

/// What a request amounted to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A new slot.
    Created,
    /// This slot is gone.
    Deleted(Slot),
    /// This slot has other frames now, and perhaps other flags.
    Moved(Slot),
    /// This slot has other flags now.
    Flags(Slot),
    /// Everything was so already.
    Nothing,
}

/// What the slots of one address space may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Ids are below this.
    pub ids: u32,
    /// Guest frames are below this.
    pub frames: u64,
    /// Where host addresses of a slot may lie. Backings are not meant.
    pub hvas: Span<Hva>,
    /// Whether a slot can be of ordinary memory only, since the table's format knows no other type.
    pub write_back_only: bool,
}

impl Default for Limits {
    /// KVM's on x86: 32,764 ids, 52 bits of guest address. Any host address.
    fn default() -> Self {
        Self { ids: 32_764, frames: 1 << 40, hvas: Span::new(Hva(0), Hva(u64::MAX)), write_back_only: false }
    }
}

impl Limits {
    /// Checks 1 to 7: the slot that `region` describes, or nothing where it asks for a deletion.
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

    /// Whether a slot of this size may lie at `hva`: a host address in bounds, or all of it in one backing.
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

/// Why a slot operation was refused: which slot, where, and the rule. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotError {
    /// The slot that the request named.
    pub id: SlotId,
    /// The guest addresses that it named; empty where it named none.
    pub gpas: Span<Gpa>,
    /// The rule that it broke.
    pub rule: Rule,
}

/// See [`SlotError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Rule {
    /// Ids are below the VM's limit.
    Id {
        /// See [`Limits::ids`].
        limit: u32,
    },
    /// There are no such flags.
    UnknownFlags(u32),
    /// A slot has whole pages of 4 KiB.
    Size,
    /// A slot has one page at least. (A [`Region`] of none is a deletion.)
    Empty,
    /// Its guest address is a multiple of 4 KiB.
    GuestAddress,
    /// Its host address is a multiple of 4 KiB, and all of its range may be used by guests.
    HostAddress(Hva),
    /// It does not reach past the last guest address there is.
    Wraps,
    /// It has [`MAX_PAGES`] at most.
    TooLong,
    /// What is deleted or changed exists.
    Missing,
    /// What is created by that name does not.
    Exists,
    /// Size, host address, read-only flag, execute permission and memory type never change. This is what the slot is.
    Fixed(Slot),
    /// No frame belongs to two slots. This is the other.
    Overlaps(Slot),
    /// It lies below the first frame that guest addresses do not reach.
    Reach(Gfn),
    /// The format of the VM's tables knows this memory type.
    MemoryType(MemoryType),
    /// What is cut out of a slot is a part of it. This is what was to be cut out.
    Part(Span<Gfn>),
    /// A slot with two kinds of memory has shared memory at a host address and private memory in a backing. It neither moves nor
    /// logs, and is not read-only (KVM's rule).
    Private,
    /// Each of these frames has a slot with private memory. This is the first that has none.
    NotPrivate(Gfn),
    /// The host has memory for the set's own nodes and for dirty logs.
    NoMemory,
}

impl SlotError {
    /// The same answer as a Linux error number, for callers that return one.
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

    /// Its guest addresses, in bytes; cut where they cannot be told in 64 bits.
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

/// Why a transaction with an operation of the embedder's own came to nothing: see
/// [`SharedSlots::commit_with`](crate::SharedSlots::commit_with). Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommitError<E> {
    /// A slot operation was refused. The embedder was not asked.
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

/// Of a transaction without such an operation.
impl From<CommitError<core::convert::Infallible>> for SlotError {
    fn from(error: CommitError<core::convert::Infallible>) -> Self {
        match error {
            CommitError::Slots(error) => error,
            CommitError::Refused(never) => match never {},
        }
    }
}

/// A range of addresses, as error messages show it.
struct Range<T>(Span<T>);

impl<T: Position + fmt::Display> fmt::Display for Range<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.0.start, self.0.end)
    }
}
