//! Content of pages that are about to be filled.

use super::plan::Job;
use crate::cache::{Chunk, Source};
use crate::uffd::PAGE;
use std::ops::Range;

/// Location of content.
pub(super) enum Content {
    /// The content is zeros.
    Zeros,
    Bytes(Chunk),
    /// In the memory that clones share.
    Shared,
}

impl Content {
    pub fn of(found: Option<(Chunk, Source)>) -> (Self, Source) {
        found.map_or((Self::Zeros, Source::Zero), |(bytes, source)| (Self::Bytes(bytes), source))
    }
}

/// Content of consecutive pages of the image.
pub(super) struct Loaded<'a> {
    pub content: Content,
    pub source: Source,
    pub pages: Range<usize>,
    /// Offset of the first page in the content, in bytes.
    pub from: usize,
    /// The fill ahead that needs the same content.
    pub job: Option<&'a Job>,
}

impl Loaded<'_> {
    pub fn of_image(bytes: Chunk, pages: Range<usize>, source: Source) -> Self {
        Self { content: Content::Bytes(bytes), source, pages, from: 0, job: None }
    }

    /// Returns whether it has the content of these pages.
    pub fn has(&self, pages: &Range<usize>) -> bool {
        self.pages.start <= pages.start && pages.end <= self.pages.end
    }

    /// Refers to the content of some of its pages.
    pub fn piece(&self, pages: Range<usize>) -> Piece<'_> {
        let from = self.from + (pages.start - self.pages.start) * PAGE;
        Piece { pages, content: &self.content, from, write: false }
    }
}

/// Pages to fill.
#[derive(Clone)]
pub(super) struct Piece<'a> {
    pub pages: Range<usize>,
    pub content: &'a Content,
    /// Offset of the first page in the content, in bytes.
    pub from: usize,
    /// The guest is about to write to the pages.
    pub write: bool,
}
