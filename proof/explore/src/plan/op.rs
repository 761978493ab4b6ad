//! One operation of a CPU's program.
//!
//! Every operation is valid in every state: one that cannot be done, such as moving an absent memslot, is skipped. So
//! a program can be shrunk by removing operations.

use slat::{Access, Gfn, Reason, Span};

/// A change of a range of host pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The pages move to other frames with their contents.
    Move,
    /// The pages become read-only.
    Protect,
    /// The pages are discarded with their contents.
    Drop,
    /// The region becomes one huge page.
    Collapse,
    /// No change.
    Nothing,
}

/// The way in which the host announces the change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Telling {
    /// `Vm::invalidate`, `apply`, `settle`.
    Invalidate,
    /// The same, by a thread that holds the lock of the pages only while it changes them. So invalidations of one page
    /// overlap.
    Overlapping,
    /// `Vm::around`, page by page if the reason asks for it.
    Around,
    /// `Vm::around` by a thread that may not wait.
    AroundWithoutWaiting,
}

/// One operation. Times are in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// The guest accesses a frame.
    Touch(Gfn, Access),
    /// The guest computes and answers kicks.
    Compute(u64),
    /// The guest computes and answers no kicks.
    Linger(u64),
    /// The vCPU leaves the guest; the next access enters it again.
    Leave,
    /// Maps frames before the guest uses them.
    Prefault(Span<Gfn>),
    /// Idles.
    Rest(u64),
    /// Idles until the time is a multiple of this: a rendezvous of all CPUs.
    Align(u64),
    /// The host changes pages of one region.
    Change {
        /// The first page.
        first: u64,
        /// Number of pages.
        pages: u64,
        /// The change.
        change: Change,
        /// The reason passed to the engine.
        why: Reason,
        /// The way in which it is announced.
        telling: Telling,
        /// The host sleeps this long between the flush and its own change.
        sleeps: u64,
    },
    /// The host replaces a page's frame by a read-only one with the same contents, and reports the new frame
    /// (`change_pte`).
    Replace(u64, u64),
    /// The VMM zaps guest frames, without a reason of the host.
    Zap(Span<Gfn>, Reason),
    /// Write-protects frames.
    WriteProtect(Span<Gfn>),
    /// Tracks stores to frames for this long.
    Track(Span<Gfn>, u64),
    /// Holds a frame for this access, and uses it for this long.
    Keep(Gfn, Access, u64),
    /// Reads and clears Accessed bits in one of the available ways.
    Age(Span<Gfn>),
    /// The host asks whether pages are young and clears the bits; flushes if the second field is true.
    Young(u64, u64, bool),
    /// Splits large leaf entries.
    Split(Span<Gfn>),
    /// Collapses small pages into large leaf entries.
    Recover(Span<Gfn>),
    /// Replaces the root.
    ZapAll,
    /// Frees dead table pages.
    Collect,
    /// Sets another budget of table pages, then the first one again.
    Budget(u64),
    /// Harvests all logs; commits if true.
    Harvest(bool),
    /// Harvests the log of one memslot; commits if true.
    HarvestSlot(u32, bool),
    /// Harvests the ring of one vCPU; commits if true.
    HarvestRing(u32, bool),
    /// Holds a snapshot of the memslots for this long.
    Hold(u64),
    /// Creates a memslot in a window.
    Create(u32, usize),
    /// Deletes a memslot.
    Delete(u32),
    /// Moves a memslot to another window.
    Move(u32, usize),
    /// Exchanges two memslots in one transaction.
    Exchange(u32, u32),
    /// Turns a memslot's log on or off.
    Log(u32, bool),
    /// A device writes to a host page.
    Device(u64),
    /// Walks the tables without a lock.
    Walk(Span<Gfn>),
}
