//! A format that the engine does not know.

use slat::table::Word;
use slat::table::formats::Npt4;
use slat::{Format, Leaf, Level, Pfn};

/// A format that a hypervisor's author adds: here, the nested format of AMD under another name.
#[derive(Clone, Copy, Default, Debug)]
pub struct Own;

// SAFETY: every word is made and read as `Npt4` does it.
unsafe impl Format for Own {
    const NAME: &'static str = "own";
    const LEVELS: u8 = Npt4::LEVELS;
    const MAX_LEAF: Level = Npt4::MAX_LEAF;
    const TABLE_MASK: u64 = Npt4::TABLE_MASK;
    const TABLE_BITS: u64 = Npt4::TABLE_BITS;
    const PRESENT: u64 = Npt4::PRESENT;
    const ADDRESS: u64 = Npt4::ADDRESS;
    const WRITE: u64 = Npt4::WRITE;
    const HOST_WRITE: u64 = Npt4::HOST_WRITE;
    const ACCESSED: u64 = Npt4::ACCESSED;
    const DIRTY: u64 = Npt4::DIRTY;

    fn link(pfn: Pfn, level: Level) -> Word {
        Npt4::link(pfn, level)
    }

    fn leaf(leaf: &Leaf, level: Level) -> Word {
        Npt4::leaf(leaf, level)
    }

    fn read_leaf(word: Word) -> Leaf {
        Npt4::read_leaf(word)
    }
}
