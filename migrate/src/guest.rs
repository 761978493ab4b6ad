//! What a migration needs of the guest: [`Source`] here, [`Target`] there.

use slat::{DirtyPage, DirtyWord, Gfn, SlotId, Span};
use std::error::Error;
use std::ops::ControlFlow;

/// Guest memory of one slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRange {
    /// The slot's id. Ids are unique.
    pub slot: SlotId,
    /// Its frames: at least one, and less than 2³².
    pub gfns: Span<Gfn>,
}

/// How far a round is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The number of the round, from 1.
    pub round: u64,
    /// The guest stands still.
    pub last: bool,
    /// Pages of the round.
    pub pages: u64,
    /// Of them, pages that were given to the stream. 0 in the first call for a round.
    pub sent: u64,
}

/// The guest that leaves: its memory, its dirty log, its vCPUs. All calls come from the thread that calls
/// [`PreCopy::send`](crate::PreCopy::send), and may sleep.
///
/// With the engine's own log, [`VmLog`](crate::VmLog) does the work of the four functions of the log. With KVM's, a word of
/// `KVM_GET_DIRTY_LOG` is a [`DirtyWord`], and `give_back` is a bitmap of your own to which the next `harvest` is added.
pub trait Source {
    /// What can go wrong. An error ends the migration; the guest then runs on.
    type Error: Error + 'static;

    /// The guest memory to migrate. It must be the same at each call.
    fn ranges(&self) -> Vec<MemoryRange>;

    /// Begins to log writes. The first harvest after it tells of **every** page that may hold anything but zeroes: of all pages
    /// for instance. Where writes are logged already, nothing is to be done: what was harvested and committed is at the
    /// receiver.
    fn start_log(&mut self) -> Result<(), Self::Error>;

    /// Takes the pages that were written since the last harvest. A store that is made after this returns is in the log again.
    fn harvest(&mut self) -> Result<Vec<DirtyWord>, Self::Error>;

    /// The receiver has all pages that were harvested.
    fn commit(&mut self);

    /// It does not: the pages that were harvested and not committed are dirty again, if there are any.
    fn give_back(&mut self);

    /// Reads whole pages from `first` on, as many as `contents` has room for. They lie in one slot, one after another.
    fn read(&mut self, first: DirtyPage, contents: &mut [u8]) -> Result<(), Self::Error>;

    /// Stops the vCPUs and what else writes to the guest's memory. When this returns, every store is in memory and in the log.
    /// After an error [`resume`](Self::resume) is not called.
    fn halt(&mut self) -> Result<(), Self::Error>;

    /// Lets the guest run again after [`halt`](Self::halt): the migration has failed, or a round of it.
    fn resume(&mut self);

    /// The guest writes faster than the stream takes: it may run `100 - percent` percent of the time from now on. 0 ends it.
    /// Called only with [`PreCopy::auto_converge`](crate::PreCopy::auto_converge).
    fn slow_down(&mut self, percent: u8) {
        let _ = percent;
    }

    /// Called at the beginning of each round, and after each 64 pages at most. A break cancels the migration: the guest runs on,
    /// and the receiver is told. A callback that is served by another thread, such as a cancel button, is a flag that is read here.
    fn progress(&mut self, progress: Progress) -> ControlFlow<()> {
        let _ = progress;
        ControlFlow::Continue(())
    }
}

/// The memory that the guest comes to. What is written here is written by the host: mark it in the machine's own dirty log if
/// it is to migrate onwards.
pub trait Target {
    /// What can go wrong. An error ends the migration for this receiver.
    type Error: Error + 'static;

    /// Makes the memory, all zeroes. Called once, before anything is written. The ranges are in order of their frames, they do not
    /// overlap, they end at or below guest address 2⁶⁴, and are no larger in all than the receiver's limit.
    fn create(&mut self, ranges: &[MemoryRange]) -> Result<(), Self::Error>;

    /// Writes `contents` to these frames, which lie in one range.
    fn write(&mut self, gfns: Span<Gfn>, contents: &[u8]) -> Result<(), Self::Error>;

    /// Makes these frames zero. They lie in one range.
    fn zero(&mut self, gfns: Span<Gfn>) -> Result<(), Self::Error>;
}
