//! Entries of the primary table: the words of the page-table format, with slat-mm's meaning.
//!
//! | entry | word | a fault on it |
//! |---|---|---|
//! | empty | hole | fills it by the mapping |
//! | mapped, writable | leaf | nothing to do |
//! | mapped, not writable | leaf | on a write: the frame may be shared, see [`crate::fault`] |
//! | parked | frozen, with the frame as its mark | maps it again: it was behind `PROT_NONE` |
//! | protnone | tracked, with the leaf as it was | a hint: maps it again, here or on the faulting node ([`crate::numa`]) |
//! | swapped | frozen, with the copy's number and a shadow as its mark | reads the copy back ([`crate::swap`]) |
//!
//! A parked page keeps its frame while no access is allowed: the format has no present leaf without read
//! permission. A protnone page also keeps its write permission: accesses are allowed, but NUMA balancing wants
//! to see which CPU makes the next one. A swapped page has no frame and no permissions: the mapping decides
//! when it comes back.

use crate::swap::{Shadow, SwapEntry};
use slat::table::formats::X64;
use slat::table::{Kind, Version, Word};
use slat::{Format, Gfn, HostPage, Leaf, Level, MemoryType, Perms, Pfn};

/// One entry, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pte {
    Empty,
    Mapped {
        pfn: Pfn,
        writable: bool,
    },
    Parked(Pfn),
    Protnone {
        pfn: Pfn,
        writable: bool,
    },
    /// Only for pages of 4 KiB.
    Swapped {
        entry: SwapEntry,
        shadow: Shadow,
    },
}

/// Set in the mark of a swapped entry, above the shadow and the copy's number in the lowest 32 bits. The mark
/// of a parked entry is a frame of 40 bits.
const SWAPPED: u64 = 1 << (u32::BITS + Shadow::BITS);
const _: () =
    assert!(SWAPPED > 1 << 40 && SWAPPED < 1 << (Version::BITS - 1), "the engine's own marks are above");

impl Pte {
    /// Decodes the word of an entry at `level`.
    #[inline]
    pub(crate) fn of(word: Word, level: Level) -> Self {
        match word.kind::<X64>(level) {
            Kind::Leaf => Self::Mapped { pfn: X64::pfn(word), writable: X64::writable(word) },
            Kind::Frozen(mark) if mark & SWAPPED != 0 => Self::Swapped {
                entry: SwapEntry(mark as u32),
                shadow: Shadow::new((mark >> u32::BITS) as u32),
            },
            Kind::Frozen(mark) => Self::Parked(Pfn(mark)),
            Kind::Withdrawn => {
                let leaf = word.withdrawn_leaf();
                Self::Protnone { pfn: leaf.pfn, writable: leaf.host_writable }
            }
            Kind::Hole(_) | Kind::Mmio(_) | Kind::Table(_) => Self::Empty,
        }
    }

    /// Encodes the entry for `level`.
    pub(crate) fn word(self, level: Level) -> Word {
        match self {
            Self::Empty => Word::hole(Version::default()),
            Self::Parked(pfn) => Word::frozen(pfn.0),
            Self::Mapped { pfn, writable } => X64::leaf(&leaf(pfn, writable), level),
            Self::Protnone { pfn, writable } => Word::withdrawn(&leaf(pfn, writable)),
            Self::Swapped { entry, shadow } => {
                Word::frozen(SWAPPED | u64::from(shadow.bits()) << u32::BITS | u64::from(entry.0))
            }
        }
    }

    /// Encodes the entry with its Accessed bit clear.
    pub(crate) fn idle_word(self, level: Level) -> Word {
        let word = self.word(level);
        if X64::is_present(word) { Word(word.0 & !X64::ACCESSED) } else { word }
    }

    /// Returns the first frame that it holds a reference to.
    pub(crate) fn pfn(self) -> Option<Pfn> {
        match self {
            Self::Empty | Self::Swapped { .. } => None,
            Self::Mapped { pfn, .. } | Self::Parked(pfn) | Self::Protnone { pfn, .. } => Some(pfn),
        }
    }

    /// Returns the same entry with another frame, if it has one.
    pub(crate) fn with_frame(self, pfn: Pfn) -> Self {
        match self {
            Self::Empty | Self::Swapped { .. } => self,
            Self::Mapped { writable, .. } => Self::Mapped { pfn, writable },
            Self::Parked(_) => Self::Parked(pfn),
            Self::Protnone { writable, .. } => Self::Protnone { pfn, writable },
        }
    }

    /// Returns the same entry without write permission.
    pub(crate) fn read_only(self) -> Self {
        match self {
            Self::Mapped { pfn, .. } => Self::Mapped { pfn, writable: false },
            Self::Protnone { pfn, .. } => Self::Protnone { pfn, writable: false },
            other => other,
        }
    }

    /// Returns the same entry behind `PROT_NONE`.
    pub(crate) fn parked(self) -> Self {
        self.pfn().map_or(self, Self::Parked)
    }

    /// Returns `page` as secondary MMUs see it, from an entry at `level`.
    #[inline]
    pub(crate) fn host_page(self, page: Gfn, level: Level) -> Option<HostPage> {
        match self {
            Self::Mapped { pfn, writable } => Some(HostPage {
                pfn: pfn + (page.0 - page.base(level).0),
                level,
                writable,
                ..HostPage::PLAIN
            }),
            Self::Empty | Self::Parked(_) | Self::Protnone { .. } | Self::Swapped { .. } => None,
        }
    }
}

fn leaf(pfn: Pfn, writable: bool) -> Leaf {
    let perms = if writable { Perms::RWX } else { Perms::RX };
    Leaf {
        pfn,
        perms,
        memory: MemoryType::WriteBack,
        host_writable: writable,
        accessed: true,
        dirty: writable,
    }
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
            Pte::Protnone { pfn, writable: true },
            Pte::Protnone { pfn, writable: false },
        ];
        for pte in all {
            for level in [Level::K4, Level::M2] {
                assert_eq!(Pte::of(pte.word(level), level), pte);
                assert_eq!(pte.host_page(Gfn(0), level).is_some(), matches!(pte, Pte::Mapped { .. }));
            }
        }
        for (entry, shadow) in [(0, 0), (u32::MAX, 0), (0, u32::MAX), (0x1234_5678, 0x2_aaaa)] {
            let pte = Pte::Swapped { entry: SwapEntry(entry), shadow: Shadow::new(shadow) };
            assert_eq!(Pte::of(pte.word(Level::K4), Level::K4), pte);
            assert_eq!((pte.pfn(), pte.host_page(Gfn(0), Level::K4)), (None, None));
            assert_eq!(
                (pte.parked(), pte.read_only(), pte.with_frame(pfn)),
                (pte, pte, pte),
                "the entry stays swapped"
            );
        }
    }
}
