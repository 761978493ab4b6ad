//! Errors of a migration or of one of its connections.

use crate::frame::{Frame, MOST_PAGES, MOST_RANGES, Receipt, VERSION};
use slat::{DirtyPage, Gfn, Span};
use std::io::{self, ErrorKind};

/// Why a migration failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError<E> {
    /// An error of the guest, from [`Source`](crate::Source) or [`Target`](crate::Target).
    #[error(transparent)]
    Guest(E),
    /// The sender has used all tries of a round. Its guest runs. The log has every page that the receiver lacks, and the
    /// source's session names that receiver: another [`PreCopy::send`](crate::PreCopy::send) to it continues from there.
    /// To another receiver, it begins anew.
    #[error("round {round} failed {tries} times: {error}")]
    Failed {
        /// Number of the round, from 1.
        round: u64,
        /// Number of tries.
        tries: u32,
        /// The last error.
        error: WireError,
    },
    /// The receiver has refused a connection, or found it closed. It keeps what it has received: serve another
    /// connection.
    #[error("the receiver refused the stream: {0}")]
    Refused(WireError),
    /// The receiver cannot receive this guest, and says why. The guest runs at the sender. Another try would be refused too.
    #[error("the receiver refuses this guest: {0}")]
    RefusedThere(String),
    /// The source harvested a page that is in none of its ranges, by slot and page number. The guest runs at the sender.
    #[error("page {} of memslot {} is in no range that the source gave", .0.page, .0.slot)]
    NotAnnounced(DirtyPage),
    /// [`Source::progress`](crate::Source::progress) asked for it, or the sender told the receiver.
    #[error("the migration was cancelled")]
    Cancelled,
}

/// Why a connection cannot be used any more. Its unfinished round does not count.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The other side closed the connection.
    #[error("the other side closed the connection")]
    Closed,
    /// The stream could not be opened, read or written.
    #[error(transparent)]
    Io(io::Error),
    /// The stream does not begin like a migration.
    #[error("a stream that begins with {0:#x} is no migration")]
    NotOurs(u64),
    /// The migration has another version.
    #[error("version {} of the stream; this side has {}", .0, VERSION)]
    Version(u32),
    /// The frame has an unknown kind.
    #[error("no frame is of kind {0}")]
    Kind(u32),
    /// The frame has a wrong number of pages, or extends beyond the last guest frame.
    #[error("a frame of {} pages; from 1 to {} are possible, below guest address 2^64", .0, MOST_PAGES)]
    Length(u64),
    /// A field that this frame does not use is not zero.
    #[error("{0:?} with an unused field that is not zero")]
    Unused(Frame),
    /// Pages or their place differ from what was sent.
    #[error("the frames {:#x}..{:#x} came damaged", .0.start.0, .0.end.0)]
    Damaged(Span<Gfn>),
    /// Pages are not inside one range of guest memory.
    #[error("the frames {:#x}..{:#x} are in no slot", .0.start.0, .0.end.0)]
    Place(Span<Gfn>),
    /// Ranges of guest memory are not in order, overlap, or name a slot twice.
    #[error("the frames {:#x}..{:#x} overlap others, or are not in order", .0.start.0, .0.end.0)]
    Overlap(Span<Gfn>),
    /// The sender has more memory than the receiver accepts.
    #[error("the sender has {sender} bytes of memory, the receiver {receiver}")]
    TooLarge {
        /// The sender's bytes.
        sender: u64,
        /// The receiver's limit in bytes.
        receiver: u64,
    },
    /// The receiver's memory was created for other ranges.
    #[error(
        "the sender's memory has other ranges than the memory that was created here: receive this guest in another receiver"
    )]
    OtherMachine,
    /// The sender has more ranges of memory than the receiver accepts.
    #[error("the sender has {} ranges of memory, the receiver accepts {}", .0, MOST_RANGES)]
    TooManyRanges(u64),
    /// The receiver does not have the rounds that the sender has seen confirmed: it was restarted, or has another
    /// guest. The sender begins anew, at most as often as [`PreCopy::tries`](crate::PreCopy::tries) says.
    #[error(
        "the receiver has round {} of this migration, the sender has seen round {} confirmed: the receiver was restarted, \
         or has received another guest", has.round, confirmed.round
    )]
    Forgotten {
        /// The receiver's last complete round; round 0 for none.
        has: Receipt,
        /// The last round that it has confirmed to this sender.
        confirmed: Receipt,
    },
    /// The guest runs at the receiver already, or its memory has failed: the receiver serves no other connection.
    #[error("this receiver's migration is over: receive this guest in another receiver")]
    Over,
    /// The receiver cannot receive this guest, and says why.
    #[error("the receiver refuses this guest: {0}")]
    Refused(String),
    /// A frame out of turn.
    #[error("{0:?} has no place here")]
    Unexpected(Frame),
    /// The sides disagree about a round.
    #[error("round {}: {} pages with checksum {:#x} here, round {}: {} with {:#x} there",
        here.round, here.pages, here.sum, there.round, there.pages, there.sum)]
    Differs {
        /// This side's view.
        here: Receipt,
        /// The other side's view.
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
    /// The connection cannot be used any more; another may be.
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
        match error.into() {
            // The receiver has said that another connection would not help.
            WireError::Refused(why) => Self::Over(MigrateError::RefusedThere(why)),
            error => Self::Wire(error),
        }
    }
}

impl WireError {
    /// Whether each connection of this sender to this receiver would be refused for the same reason.
    pub(crate) fn is_final(&self) -> bool {
        use WireError::{OtherMachine, Over, Overlap, TooLarge, TooManyRanges, Version};
        matches!(self, Version(_) | Overlap(_) | TooLarge { .. } | OtherMachine | TooManyRanges(_) | Over)
    }
}
