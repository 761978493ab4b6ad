//! The traits by which a migration accesses the guest: [`Source`] at the sender, [`Target`] at the receiver.

use crate::error::WireError;
use crate::frame::MemoryRange;
use crate::identity::Session;
use slat::{DirtyPage, DirtyWord, Gfn, Span};
use std::error::Error;
use std::ops::ControlFlow;

/// Progress of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Number of the round, from 1.
    pub round: u64,
    /// Whether the guest is halted.
    pub last: bool,
    /// Pages in the round.
    pub pages: u64,
    /// Pages written to the stream so far; 0 in the first call for a round.
    pub sent: u64,
}

/// The guest at the sender: its memory, dirty log and vCPUs. All calls come from the thread that called
/// [`PreCopy::send`](crate::PreCopy::send), and may sleep.
///
/// For the engine's log, [`VmLog`](crate::VmLog) implements the four functions of the log. For KVM's log, a
/// word of `KVM_GET_DIRTY_LOG` is a [`DirtyWord`]; `give_back` stores it in a bitmap that the next `harvest`
/// includes.
pub trait Source {
    /// Errors of the guest. An error ends the migration; the guest then continues here. Another migration of it begins
    /// anew, with every page.
    type Error: Error + 'static;

    /// Returns the guest memory to migrate, at least one range, the same on each call.
    fn ranges(&self) -> Vec<MemoryRange>;

    /// Returns the session that the source keeps beside its log. See [`Session`].
    fn session(&mut self) -> &mut Session;

    /// Starts logging writes, if they are not logged yet, and makes **every** page that may be non-zero dirty, for
    /// example all pages: the next harvest must contain them, whatever was harvested and committed before. Called when
    /// a migration begins, and again when it begins anew, since the receiver has nothing of it or was replaced. Not
    /// called when a migration continues.
    fn mark_all(&mut self) -> Result<(), Self::Error>;

    /// Takes the pages written since the last harvest. A store after this returns is logged again.
    ///
    /// A page belongs to the range with its slot's id, at its page number there, whatever its guest frame is now. The
    /// migration fails with [`MigrateError::NotAnnounced`](crate::MigrateError::NotAnnounced) if there is no such page.
    ///
    /// Fail if the log may lack some: if logging was off since the last harvest, or something else has taken marks from
    /// the log. The receiver would lack these pages, and nothing in the stream would show it. [`VmLog`](crate::VmLog)
    /// does so; for another log, [`Session::forget`] before the next call is enough.
    fn harvest(&mut self) -> Result<Vec<DirtyWord>, Self::Error>;

    /// The receiver has all harvested pages: forget them.
    fn commit(&mut self);

    /// Makes pages that were harvested and not committed dirty again, if there are any.
    fn give_back(&mut self);

    /// Reads whole pages from `first` on, as many as fit `contents`. They are consecutive pages of one slot.
    /// If slots move, find them by slot and page number or by host address: their guest frame is that of the harvest.
    fn read(&mut self, first: DirtyPage, contents: &mut [u8]) -> Result<(), Self::Error>;

    /// Stops the vCPUs and everything else that writes guest memory. When this returns, every store is in
    /// memory and in the log. After an error or a panic of this, [`resume`](Self::resume) is not called.
    fn halt(&mut self) -> Result<(), Self::Error>;

    /// Lets the guest run again after [`halt`](Self::halt), since a round or the migration has failed.
    fn resume(&mut self);

    /// Limits the guest to `100 - percent` percent of the time, since it writes faster than the stream sends. 0
    /// removes the limit. Called only with [`PreCopy::auto_converge`](crate::PreCopy::auto_converge).
    fn slow_down(&mut self, percent: u8) {
        let _ = percent;
    }

    /// Called at the start of each round, and at least every 64 pages. `Break` cancels the migration: the guest
    /// continues here, and the receiver is told. To cancel from another thread, check a flag here.
    fn progress(&mut self, progress: Progress) -> ControlFlow<()> {
        let _ = progress;
        ControlFlow::Continue(())
    }
}

/// The guest's memory at the receiver. These writes are the host's: mark them in the target's dirty log if it
/// will be migrated further.
pub trait Target {
    /// Errors of the target. An error ends the migration for this receiver.
    type Error: Error + 'static;

    /// Creates the memory, filled with zeroes. Called once, before any write. If another migration follows in the same
    /// memory, the receiver calls [`zero`](Self::zero) for all of it first. The ranges are in order of
    /// frames, do not overlap, end at or below guest address 2⁶⁴, and together do not exceed the receiver's
    /// limit.
    fn create(&mut self, ranges: &[MemoryRange]) -> Result<(), Self::Error>;

    /// Writes `contents` to these frames, which are in one range.
    fn write(&mut self, gfns: Span<Gfn>, contents: &[u8]) -> Result<(), Self::Error>;

    /// Makes these frames zero. They are in one range.
    fn zero(&mut self, gfns: Span<Gfn>) -> Result<(), Self::Error>;

    /// Called when a connection was refused and [`Receiver::receive`](crate::Receiver::receive) waits for another one. A
    /// sender hears the reason too, if the whole guest is refused.
    fn refused(&mut self, why: &WireError) {
        let _ = why;
    }
}
