//! The operations of programs.

#[cfg(doc)]
use super::pages::NONE;
use super::pages::Span;

/// An operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// A guest access, which faults until it succeeds.
    Access {
        /// The page.
        gfn: u8,
        /// A store.
        write: bool,
        /// The host sleeps before it answers, so the fault asks it outside a section.
        sleeps: bool,
        /// Large leaves are allowed.
        large: bool,
    },
    /// The host changes some pages.
    Invalidate {
        /// The range.
        range: Range,
        /// The reason.
        why: Why,
        /// The walk leaves its section after each entry.
        yields: bool,
    },
    /// A large leaf becomes a table, in place.
    Split {
        /// Any page of it.
        gfn: u8,
    },
    /// A table becomes a large leaf, in place.
    Recover {
        /// Any page of it.
        gfn: u8,
    },
    /// Zaps everything by a new root.
    ZapAll,
    /// Clears Accessed.
    Age {
        /// The page.
        gfn: u8,
    },
    /// Gives guest frames other host pages, counted from `hva`, or no slot.
    Commit {
        /// The frames.
        gfns: Span,
        /// The first host page, or [`NONE`].
        hva: u8,
    },
    /// The VMM holds or refreshes a frame, and uses it.
    Hold {
        /// The frame.
        gfn: u8,
        /// Whether it is written.
        write: bool,
    },
    /// A thread writes to a parked host page, and therefore copies it.
    Copy {
        /// The page.
        page: u8,
    },
    /// The slot of region 0 logs from now on.
    BeginLog,
    /// Harvests its log, and copies the pages.
    Harvest,
}

/// The range that an invalidation publishes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Range {
    /// Guest frames.
    Gfns(Span),
    /// Host pages, whatever frames they back.
    Hvas(Span),
}

/// The kind of an invalidation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Why {
    /// Frames are taken back; whole tables go too.
    Unmap,
    /// Frames are taken back; tables stay.
    Clear,
    /// As [`Unmap`](Self::Unmap), of read-only pages, but the debt is leaked: the host changes its entries before the flush,
    /// which the end of the invalidation pays, and gives the frames back after that.
    Leaked,
    /// The host withdraws write permission.
    Protect,
    /// Write permission is withdrawn page by page, and the pages are released before the flush; they are shared from
    /// then on.
    Park,
    /// Stores to guest frames are tracked from now on: they are counted, and write permission is withdrawn.
    Track,
    /// Read-only pages are replaced by others with the same contents, reported one by one.
    ChangePte,
}

impl Why {
    /// Returns whether leaves stay without write permission.
    pub(crate) fn withdraws(self) -> bool {
        matches!(self, Self::Protect | Self::Park | Self::Track)
    }

    /// Returns whether whole tables are unhooked.
    pub(crate) fn unhooks(self) -> bool {
        matches!(self, Self::Unmap | Self::Leaked)
    }
}
