//! Mappings: the meaning of each range of addresses. Faults fill the page table from the mappings.

use crate::error::MmError;
use crate::fault_queue::Served;
use crate::file::File;
use crate::pages::{hvas_of, page_of};
use slat::{Access, Gfn, Hva, Level, PAGE_SIZE, Span};
use std::sync::Arc;

/// Addresses that may be mapped: from 64 KiB, so that null pointers fault, up to 128 TiB.
pub(crate) const ADDRESSES: Span<Hva> = Span::new(Hva(0x1_0000), Hva(1 << 47));
/// All addresses from 0, for operations on whole regions.
pub(crate) const EVERYWHERE: Span<Hva> = Span::new(Hva(0), ADDRESSES.end);

/// Allowed accesses of a mapping. Fetches count as reads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Prot {
    /// No access; the pages stay.
    None,
    /// Read access.
    Read,
    /// Read and write access.
    ReadWrite,
}

impl Prot {
    /// Whether `access` is allowed.
    pub const fn allows(self, access: Access) -> bool {
        match self {
            Self::None => false,
            Self::Read => !matches!(access, Access::Write),
            Self::ReadWrite => true,
        }
    }
}

/// Where the contents of a mapping come from.
#[derive(Clone, Debug)]
pub enum Backing {
    /// Zeroes, private to this address space.
    Anonymous,
    /// The file's own pages: all mappings of the file see every write.
    Shared {
        /// The file.
        file: Arc<File>,
        /// Offset in the file at which the mapping begins, in bytes.
        offset: u64,
    },
    /// The file's pages; a write copies the page first.
    Private {
        /// The file.
        file: Arc<File>,
        /// Offset in the file at which the mapping begins, in bytes.
        offset: u64,
    },
}

/// Where to put a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Exactly this address. Fails if something is mapped in the range.
    Fixed(Hva),
    /// This address if the range is free, else above it, else anywhere.
    Near(Hva),
    /// Any free range.
    Anywhere,
}

/// One mapping.
#[derive(Clone, Debug)]
pub(crate) struct Vma {
    pub(crate) span: Span<Hva>,
    pub(crate) prot: Prot,
    pub(crate) backing: Backing,
    /// Which faults a user's thread serves, if any.
    pub(crate) served: Option<Served>,
    /// Whether KSM may merge its pages, as set by [`Advice`](crate::Advice).
    pub(crate) mergeable: bool,
    pub(crate) stage: Stage,
}

/// The use of a mapping that a change in progress allows to other threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Everything: no change is in progress.
    Here,
    /// Faults wait until the change sets another stage.
    Busy,
    /// Nothing is mapped here any more. The range is reserved until its entries are empty.
    Gone,
}

impl Vma {
    /// Whether it maps a file's own pages, without copying.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.backing, Backing::Shared { .. })
    }

    /// Whether KSM may merge its pages: it was allowed to, and the pages are private.
    pub(crate) fn is_mergeable(&self) -> bool {
        self.mergeable && !self.is_shared()
    }

    /// Returns the index of `page` in its file.
    pub(crate) fn file_page(&self, page: Gfn, offset: u64) -> u64 {
        page.0 - page_of(self.span.start).0 + offset / PAGE_SIZE
    }

    /// Whether it covers the 2 MiB around `page`.
    pub(crate) fn covers_huge(&self, page: Gfn) -> bool {
        self.span.covers(&hvas_of(Span::sized(page.base(Level::M2), Level::M2.pages())))
    }

    /// Returns a reserved range.
    pub(crate) fn kept(span: Span<Hva>) -> Self {
        let (prot, backing, stage) = (Prot::None, Backing::Anonymous, Stage::Gone);
        Self { span, prot, backing, served: None, mergeable: false, stage }
    }

    /// Returns its part in `span`, which it overlaps.
    pub(crate) fn part(&self, span: Span<Hva>) -> Self {
        let span = self.span.clamp(&span);
        let mut backing = self.backing.clone();
        if let Backing::Shared { offset, .. } | Backing::Private { offset, .. } = &mut backing {
            *offset += span.start.0 - self.span.start.0;
        }
        Self { span, backing, ..self.clone() }
    }
}

/// Checks that the range has whole pages and can be mapped.
pub(crate) fn aligned(span: Span<Hva>) -> Result<Span<Hva>, MmError> {
    let fits = !span.is_empty() && ADDRESSES.covers(&span);
    let whole = span.start.offset() == 0 && span.end.offset() == 0;
    if fits && whole { Ok(span) } else { Err(MmError::BadRange(span)) }
}
