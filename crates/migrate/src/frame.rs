//! The messages of the stream: [`crate::wire`] says when each is sent, and how it is encoded.

use slat::{Gfn, SlotId, Span};

/// The version of the stream.
pub(crate) const VERSION: u32 = 3;
/// Most pages of one frame.
pub(crate) const MOST_PAGES: u64 = 64;
/// Most ranges of guest memory.
pub(crate) const MOST_RANGES: u64 = 1 << 16;

/// Guest memory of one slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRange {
    /// The slot's id. Ids are unique.
    pub slot: SlotId,
    /// Its frames at the receiver, page by page of the slot: at least 1, fewer than 2³².
    pub gfns: Span<Gfn>,
}

/// A message of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Frame {
    /// Begins each connection. [`Identity`](Self::Identity), [`Received`](Self::Received) and
    /// [`Range`](Self::Range)s follow, and an [`EndOfRound`](Self::EndOfRound) with number 0.
    Hello {
        /// Number of ranges.
        ranges: u64,
    },
    /// A range of guest memory.
    Range(MemoryRange),
    /// Pages whose contents follow, at most 64, with the checksum over both.
    Pages(Span<Gfn>, u64),
    /// Pages of zeroes, at most 64, with the checksum over their place.
    Zeroes(Span<Gfn>, u64),
    /// All pages of a round were sent.
    EndOfRound(Receipt),
    /// All pages of the last round were sent; the guest is halted.
    End(Receipt),
    /// The receiver has this round; the sender's, in the frames after `Hello`: the receiver has confirmed it.
    Received(Receipt),
    /// The guest is the receiver's.
    Go,
    /// The migration is cancelled.
    Cancel,
    /// The identity of the migration.
    Identity(u128),
    /// The receiver's number for this connection.
    Ticket(u128),
    /// The sender has read this ticket, and agrees with the receiver about what is complete. The receiver's: the ticket of
    /// the last connection that has begun.
    Begin(u128),
    /// The receiver has memory for this migration: rounds may come.
    Welcome,
    /// The receiver cannot receive this guest. The reason follows: this many bytes, with this checksum.
    Refused(u32, u64),
}

/// A round, as seen by one side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Receipt {
    /// Number of the round in its migration, from 1; 0 for the beginning of a connection, and for no round.
    pub round: u64,
    /// Number of pages, including zero pages.
    pub pages: u32,
    /// Checksum over its frames, its number, and whether it is the last.
    pub sum: u64,
}
