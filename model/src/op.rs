//! What programs are made of.

#[cfg(doc)]
use crate::world::NONE;
use crate::world::Span;

/// What a program is made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// A guest access that faults until it can go on.
    Access {
        /// The page.
        gfn: u8,
        /// A store.
        write: bool,
        /// The host sleeps before it answers: it is asked outside of any section.
        sleeps: bool,
        /// Large leaves are allowed.
        large: bool,
    },
    /// The host changes some pages.
    Invalidate {
        /// Which.
        range: Range,
        /// What for.
        why: Why,
        /// The walk leaves its section after each entry.
        rests: bool,
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
    /// Everything goes, by a new root.
    ZapAll,
    /// Accessed is cleared.
    Age {
        /// The page.
        gfn: u8,
    },
    /// Guest frames get another host page each, counted from `hva`; or no slot any more.
    Commit {
        /// The frames.
        gfns: Span,
        /// The first host page, or [`NONE`].
        hva: u8,
    },
    /// The VMM holds a frame, or asks for it anew, and uses it.
    Hold {
        /// The frame.
        gfn: u8,
        /// It is written.
        write: bool,
    },
    /// A thread writes to a host page that is parked: it copies the page.
    Copy {
        /// The page.
        page: u8,
    },
    /// The slot of region 0 logs from now on.
    BeginLog,
    /// Its log is taken, and what was in it is copied.
    Harvest,
}

/// What an invalidation publishes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Range {
    /// Guest frames.
    Gfns(Span),
    /// Host pages, whatever frames they back.
    Hvas(Span),
}

/// What an invalidation does.
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
    /// Write permission is withdrawn page by page, and the pages are let go of before the flush: they are shared from then on.
    Park,
    /// Stores to guest frames are tracked from now on: they are counted, and write permission is withdrawn.
    Track,
    /// Read-only pages are replaced by others with the same contents, told one by one.
    ChangePte,
}

impl Why {
    /// Whether leaves lose their write permission, and stay.
    pub(crate) fn withdraws(self) -> bool {
        matches!(self, Self::Protect | Self::Park | Self::Track)
    }

    /// Whether whole tables go.
    pub(crate) fn unhooks(self) -> bool {
        matches!(self, Self::Unmap | Self::Leaked)
    }
}
