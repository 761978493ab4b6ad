//! One step of a CPU's program.
//!
//! Every operation makes sense in every state: what cannot be done there (a memslot moves that does not exist) is passed
//! over. So programs can be shrunk by leaving operations out.

use slat::{Access, Gfn, Span, Why};

/// What becomes of a range of the host's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// They move to other frames, with their contents.
    Move,
    /// They lose write permission.
    Protect,
    /// They go, with their contents.
    Drop,
    /// The region becomes one huge page.
    Collapse,
    /// Nothing, after all.
    Nothing,
}

/// How the change is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Telling {
    /// `Vm::invalidate`, `apply`, `settle`.
    Invalidate,
    /// `Vm::around`, page by page where the reason is such.
    Around,
    /// The same, by one who may not wait.
    AroundWithoutWaiting,
}

/// See the module's header. Times are in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// The guest accesses a frame.
    Touch(Gfn, Access),
    /// The guest computes, and heeds kicks.
    Compute(u64),
    /// The guest computes, and heeds none.
    Linger(u64),
    /// Leaves the guest; enters it again for the next access.
    Leave,
    /// Maps frames before the guest uses them.
    Prefault(Span<Gfn>),
    /// Does nothing.
    Rest(u64),
    /// The host changes pages of one region.
    Change {
        /// The first page.
        first: u64,
        /// How many.
        pages: u64,
        /// What becomes of them.
        change: Change,
        /// The reason given.
        why: Why,
        /// How.
        telling: Telling,
        /// The host sleeps for so long between the flush and its own change.
        sleeps: u64,
    },
    /// The host puts another frame with the same contents in a page's place, read-only, and tells where it is.
    Replace(u64, u64),
    /// The VMM zaps guest frames, with no reason of the host's.
    Zap(Span<Gfn>, Why),
    /// Takes write permission from frames.
    WriteProtect(Span<Gfn>),
    /// Tracks stores to frames for so long.
    Track(Span<Gfn>, u64),
    /// Holds a frame for this access, and uses it for so long.
    Keep(Gfn, Access, u64),
    /// Asks for Accessed bits and clears them, in one of the ways that there are.
    Age(Span<Gfn>),
    /// The host asks whether pages are young, and clears the bits; flushes if the second is true.
    Young(u64, u64, bool),
    /// Splits large pages.
    Split(Span<Gfn>),
    /// Makes large pages of small ones.
    Recover(Span<Gfn>),
    /// Replaces the root.
    ZapAll,
    /// Takes dead tables apart.
    Collect,
    /// Another budget for tables, in pages; then the first one again.
    Budget(u64),
    /// Harvests all logs; commits if so.
    Harvest(bool),
    /// Harvests one slot's log; commits if so.
    HarvestSlot(u32, bool),
    /// Harvests one vCPU's ring; commits if so.
    HarvestRing(u32, bool),
    /// A snapshot of the memslots is held for so long.
    Hold(u64),
    /// A memslot is created in a window.
    Create(u32, usize),
    /// A memslot goes.
    Delete(u32),
    /// A memslot moves to another window.
    Move(u32, usize),
    /// Two memslots change places, in one transaction.
    Exchange(u32, u32),
    /// A memslot logs from now on, or no longer.
    Log(u32, bool),
    /// A device writes to a page of the host's.
    Device(u64),
    /// Walks the tables without a lock.
    Walk(Span<Gfn>),
}
