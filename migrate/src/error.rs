//! Why a migration, or one connection of it, is over.

use crate::wire::{Frame, MOST_PAGES, Receipt, VERSION};
use slat::{Gfn, Span};
use std::io::{self, ErrorKind};

/// Why there is no migration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError<E> {
    /// The guest, its memory or its log: what [`Source`](crate::Source) or [`Target`](crate::Target) has returned.
    #[error(transparent)]
    Guest(E),
    /// The sender has tried a round as often as it may. Its guest runs, and its log knows of every page that the receiver
    /// does not have: another [`PreCopy::send`](crate::PreCopy::send) to the same receiver goes on from there.
    #[error("round {round} failed {tries} times: {error}")]
    Failed {
        /// The number of the round, from 1.
        round: u64,
        /// How often it was tried.
        tries: u32,
        /// What was wrong the last time.
        error: WireError,
    },
    /// The receiver has refused a connection, or found it closed. It keeps what it has received: serve another connection.
    #[error("the receiver refused the stream: {0}")]
    Refused(WireError),
    /// [`Source::progress`](crate::Source::progress) asked for it, or the sender said so to the receiver.
    #[error("the migration was cancelled")]
    Cancelled,
}

/// Why a connection is no good any more. What its round has brought does not count.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The other side is gone, in the middle of it.
    #[error("the other side closed the connection")]
    Closed,
    /// The stream could not be opened, read or written.
    #[error(transparent)]
    Io(io::Error),
    /// What came first is no migration.
    #[error("a stream that begins with {0:#x} is no migration")]
    NotOurs(u64),
    /// A migration by other rules.
    #[error("version {} of the stream; this side has {}", .0, VERSION)]
    Version(u32),
    /// No frame is of this kind.
    #[error("no frame is of kind {0}")]
    Kind(u32),
    /// A frame of so many pages, or one that reaches past the last guest frame.
    #[error("a frame of {} pages; from 1 to {} are possible, below guest address 2^64", .0, MOST_PAGES)]
    Length(u64),
    /// A field that has no meaning in this frame is not zero.
    #[error("{0:?} with an unused field that is not zero")]
    Unused(Frame),
    /// Pages that are not those that were sent, or not where they were.
    #[error("the frames {:#x}..{:#x} came damaged", .0.start.0, .0.end.0)]
    Damaged(Span<Gfn>),
    /// Pages that are not in one range of guest memory.
    #[error("the frames {:#x}..{:#x} are in no slot", .0.start.0, .0.end.0)]
    Place(Span<Gfn>),
    /// The ranges of guest memory are not in order, or overlap, or a slot occurs twice.
    #[error("the frames {:#x}..{:#x} overlap others, or are not in order", .0.start.0, .0.end.0)]
    Overlap(Span<Gfn>),
    /// More memory than the receiver takes.
    #[error("the sender has {sender} bytes of memory, the receiver {receiver}")]
    TooLarge {
        /// Bytes that the sender has.
        sender: u64,
        /// Bytes that the receiver takes at most.
        receiver: u64,
    },
    /// The memory is not that of the connections before.
    #[error("the sender is another machine now")]
    OtherMachine,
    /// Not the frame that has to come now.
    #[error("{0:?} has no place here")]
    Unexpected(Frame),
    /// The sides do not agree on what was in this round.
    #[error("round {}: {} pages with checksum {:#x} here, round {}: {} with {:#x} there",
        here.round, here.pages, here.sum, there.round, there.pages, there.sum)]
    Differs {
        /// What this side has seen.
        here: Receipt,
        /// What the other one has.
        there: Receipt,
    },
}

impl From<io::Error> for WireError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

/// Why a round was not received.
pub(crate) enum Interrupted<E> {
    /// The connection is no good any more: another one may be.
    Wire(WireError),
    /// The migration is over.
    Over(MigrateError<E>),
}

impl<E> Interrupted<E> {
    pub(crate) fn guest(error: E) -> Self {
        Self::Over(MigrateError::Guest(error))
    }
}

impl<E, T: Into<WireError>> From<T> for Interrupted<E> {
    fn from(error: T) -> Self {
        Self::Wire(error.into())
    }
}
