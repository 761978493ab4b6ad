//! What an entry of the primary table says: the page-table format's words, with our meaning.
//!
//! | entry | word | a fault on it |
//! |---|---|---|
//! | empty | hole | asks the mapping what belongs there |
//! | mapped, writable | leaf | nothing to do |
//! | mapped, not writable | leaf | a write: the frame may be shared, see [`crate::fault`] |
//! | parked | frozen, the frame as its mark | maps it again: it was behind `PROT_NONE` |
//!
//! A parked page keeps its frame while no access is allowed: the format has no present leaf without reads.

use slat::table::formats::X64;
use slat::table::{Kind, Version, Word};
use slat::{Format, Gfn, HostPage, Hva, Leaf, Level, PAGE_SHIFT, Perms, Pfn, Span};

/// One entry, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pte {
    Empty,
    Mapped { pfn: Pfn, writable: bool },
    Parked(Pfn),
}

impl Pte {
    /// The entry found at `level`.
    #[inline]
    pub(crate) fn of(word: Word, level: Level) -> Self {
        match word.kind::<X64>(level) {
            Kind::Leaf => Self::Mapped { pfn: X64::pfn(word), writable: X64::writable(word) },
            Kind::Frozen(mark) => Self::Parked(Pfn(mark)),
            Kind::Hole(_) | Kind::Mmio(_) | Kind::Tracked | Kind::Table(_) => Self::Empty,
        }
    }

    /// Encodes it for `level`.
    pub(crate) fn word(self, level: Level) -> Word {
        match self {
            Self::Empty => Word::hole(Version::default()),
            Self::Parked(pfn) => Word::frozen(pfn.0),
            Self::Mapped { pfn, writable } => {
                let perms = if writable { Perms::RWX } else { Perms::RX };
                X64::leaf(
                    &Leaf { pfn, perms, host_writable: writable, accessed: true, dirty: writable },
                    level,
                )
            }
        }
    }

    /// The frame that it holds a reference to.
    pub(crate) fn pfn(self) -> Option<Pfn> {
        match self {
            Self::Empty => None,
            Self::Mapped { pfn, .. } | Self::Parked(pfn) => Some(pfn),
        }
    }

    /// The same with another frame.
    pub(crate) fn with_frame(self, pfn: Pfn) -> Self {
        match self {
            Self::Empty => Self::Empty,
            Self::Mapped { writable, .. } => Self::Mapped { pfn, writable },
            Self::Parked(_) => Self::Parked(pfn),
        }
    }

    /// The same without write permission.
    pub(crate) fn read_only(self) -> Self {
        match self {
            Self::Mapped { pfn, .. } => Self::Mapped { pfn, writable: false },
            other => other,
        }
    }

    /// The same behind `PROT_NONE`.
    pub(crate) fn parked(self) -> Self {
        self.pfn().map_or(Self::Empty, Self::Parked)
    }

    /// What a secondary MMU is told about `page`, in an entry of `level`.
    #[inline]
    pub(crate) fn host_page(self, page: Gfn, level: Level) -> Option<HostPage> {
        match self {
            Self::Mapped { pfn, writable } => {
                Some(HostPage { pfn: pfn + (page.0 - page.base(level).0), level, writable })
            }
            Self::Empty | Self::Parked(_) => None,
        }
    }
}

/// The number of the page at `hva`, as a table counts them. The engine's name for a table's input is gfn, also
/// where the table is a primary MMU's.
#[inline]
pub(crate) const fn page_of(hva: Hva) -> Gfn {
    Gfn(hva.0 >> PAGE_SHIFT)
}

/// Where a page begins.
pub(crate) const fn hva_of(page: Gfn) -> Hva {
    Hva(page.0 << PAGE_SHIFT)
}

/// The pages of an aligned range.
pub(crate) const fn pages_of(hvas: Span<Hva>) -> Span<Gfn> {
    Span::new(page_of(hvas.start), page_of(hvas.end))
}

/// The addresses of pages.
pub(crate) const fn hvas_of(pages: Span<Gfn>) -> Span<Hva> {
    Span::new(hva_of(pages.start), hva_of(pages.end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_survives_the_word_at_both_levels() {
        let pfn = Pfn(0x12_3456_7800);
        let all = [
            Pte::Empty,
            Pte::Mapped { pfn, writable: true },
            Pte::Mapped { pfn, writable: false },
            Pte::Parked(pfn),
        ];
        for pte in all {
            for level in [Level::K4, Level::M2] {
                assert_eq!(Pte::of(pte.word(level), level), pte);
            }
        }
    }
}
