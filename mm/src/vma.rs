//! Mappings: which ranges of addresses mean what. The page table is only a cache of what these say, filled by
//! faults.

use crate::error::MmError;
use crate::file::File;
use crate::pte::{hvas_of, page_of};
use crate::user_fault::Served;
use slat::{Access, Gfn, Hva, Level, PAGE_SIZE, Span};
use std::sync::Arc;

/// The addresses that may be mapped: all but the first 64 KiB, so that null pointers fault, up to 128 TiB.
pub(crate) const ADDRESSES: Span<Hva> = Span::new(Hva(0x1_0000), Hva(1 << 47));
/// All of them and those below: where whole regions are wanted.
pub(crate) const EVERYWHERE: Span<Hva> = Span::new(Hva(0), ADDRESSES.end);

/// What a mapping allows. Fetches count as reads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Prot {
    /// No access; the pages are kept.
    None,
    /// Reads.
    Read,
    /// Reads and writes.
    ReadWrite,
}

impl Prot {
    /// Whether it allows `access`.
    pub const fn allows(self, access: Access) -> bool {
        match self {
            Self::None => false,
            Self::Read => !matches!(access, Access::Write),
            Self::ReadWrite => true,
        }
    }
}

/// Where a mapping's contents come from.
#[derive(Clone, Debug)]
pub enum Backing {
    /// Zeroes, of this address space alone.
    Anonymous,
    /// The file's own pages: every address space that maps them sees every write.
    Shared {
        /// The file.
        file: Arc<File>,
        /// Where in the file the mapping begins, in bytes.
        offset: u64,
    },
    /// The file's pages until one is written: that one is copied first.
    Private {
        /// The file.
        file: Arc<File>,
        /// Where in the file the mapping begins, in bytes.
        offset: u64,
    },
}

/// Where to put a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Exactly there, or nowhere. What is there already is not replaced.
    Fixed(Hva),
    /// There if the range is free, else above it, else anywhere.
    Near(Hva),
    /// Wherever there is room.
    Anywhere,
}

/// One mapping.
#[derive(Clone, Debug)]
pub(crate) struct Vma {
    pub(crate) span: Span<Hva>,
    pub(crate) prot: Prot,
    pub(crate) backing: Backing,
    /// Which faults a user's thread serves.
    pub(crate) served: Option<Served>,
    /// Whether its pages may be merged with others: said by [`Advice`](crate::Advice).
    pub(crate) mergeable: bool,
    pub(crate) stage: Stage,
}

/// What a change that is under way lets others do with a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Everything: there is no such change.
    Here,
    /// Faults wait until the change says something else.
    Busy,
    /// Nothing is mapped here any more. The place is kept until its entries are empty.
    Gone,
}

impl Vma {
    /// Whether its pages are a file's own, never copied.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.backing, Backing::Shared { .. })
    }

    /// Whether KSM may touch its pages: it was said so, and they are its own.
    pub(crate) fn is_mergeable(&self) -> bool {
        self.mergeable && !self.is_shared()
    }

    /// The index of `page` in the file behind it.
    pub(crate) fn file_page(&self, page: Gfn, offset: u64) -> u64 {
        page.0 - page_of(self.span.start).0 + offset / PAGE_SIZE
    }

    /// Whether all of the 2 MiB around `page` belongs to it.
    pub(crate) fn covers_huge(&self, page: Gfn) -> bool {
        self.span.covers(&hvas_of(Span::sized(page.base(Level::M2), Level::M2.pages())))
    }

    /// A place that is kept.
    pub(crate) fn kept(span: Span<Hva>) -> Self {
        let (prot, backing, stage) = (Prot::None, Backing::Anonymous, Stage::Gone);
        Self { span, prot, backing, served: None, mergeable: false, stage }
    }

    /// The part of it in `span`, which it overlaps.
    pub(crate) fn part(&self, span: Span<Hva>) -> Self {
        let span = self.span.clamp(&span);
        let mut backing = self.backing.clone();
        if let Backing::Shared { offset, .. } | Backing::Private { offset, .. } = &mut backing {
            *offset += span.start.0 - self.span.start.0;
        }
        Self { span, backing, ..self.clone() }
    }
}

/// The range, if it is one of whole pages that can be mapped.
pub(crate) fn aligned(span: Span<Hva>) -> Result<Span<Hva>, MmError> {
    let fits = !span.is_empty() && ADDRESSES.covers(&span);
    let whole = span.start.offset() == 0 && span.end.offset() == 0;
    if fits && whole { Ok(span) } else { Err(MmError::BadRange(span)) }
}
