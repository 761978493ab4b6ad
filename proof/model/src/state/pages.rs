//! Pages, ranges of pages, and frames.

/// Number of guest frames, and of host pages behind them.
pub const PAGES: u8 = 4;
/// No node, no slot, no host page.
pub const NONE: u8 = 255;

/// A range of pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Span {
    /// The first page.
    pub start: u8,
    /// The page after the last.
    pub end: u8,
}

impl Span {
    /// Pages `start..end`.
    pub const fn new(start: u8, end: u8) -> Self {
        Self { start, end }
    }

    /// Whether it has page `page`.
    pub fn has(self, page: u8) -> bool {
        self.start <= page && page < self.end
    }

    pub(crate) fn is_empty(self) -> bool {
        self.start >= self.end
    }

    pub(crate) fn overlaps(self, other: Self) -> bool {
        !self.is_empty() && !other.is_empty() && self.start < other.end && other.start < self.end
    }

    pub(crate) fn covers(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    pub(crate) fn hull(self, other: Self) -> Self {
        if self.is_empty() {
            other
        } else if other.is_empty() {
            self
        } else {
            Self::new(self.start.min(other.start), self.end.max(other.end))
        }
    }
}

/// The frames of a host page are `page, page + 4, …`.
pub(crate) const fn frame(generation: u8, page: u8) -> u8 {
    generation * PAGES + page
}

/// Returns the region of host page `hva`.
pub(crate) fn region(hva: u8) -> usize {
    (hva / 2).into()
}

/// The members of a small set.
pub(crate) fn bits(set: u8) -> impl Iterator<Item = u8> {
    (0..8).filter(move |bit| set >> bit & 1 != 0)
}
