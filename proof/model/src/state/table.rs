//! Table pages and their entries.

/// Number of table pages.
pub const NODES: usize = 8;

/// A leaf. A leaf of a region maps this frame and the next one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Leaf {
    /// `generation * PAGES + host page`.
    pub pfn: u8,
    /// The hardware may write.
    pub write: bool,
    /// The host allowed writes, so a fault may restore `write`.
    pub host_write: bool,
    /// Set by the hardware, or by an install for a write.
    pub dirty: bool,
}

/// The contents of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Word {
    /// A hole, with the number of the last invalidation that covered it.
    Hole(u8),
    /// The same, and there was no slot as of that number.
    Mmio(u8),
    /// A link.
    Table(u8),
    /// A mapped page, or a mapped region.
    Leaf(Leaf),
    /// Owned for a moment by a thread.
    Frozen(u8),
}

impl Word {
    pub(crate) fn number(&mut self) -> Option<&mut u8> {
        match self {
            Self::Hole(version) | Self::Mmio(version) => Some(version),
            _ => None,
        }
    }

    /// Returns the number of an absent word that may be filled.
    pub(crate) fn version(self) -> Option<u8> {
        match self {
            Self::Hole(version) | Self::Mmio(version) => Some(version),
            _ => None,
        }
    }
}

/// A table page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    /// In no table, and in no list.
    pub free: bool,
    /// Its level.
    pub level: u8,
    /// Its entries.
    pub entries: [Word; 2],
}

pub(super) const FREE: Node = Node { free: true, level: 0, entries: [Word::Hole(0); 2] };
