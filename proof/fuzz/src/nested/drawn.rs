//! Random words of tables.

use crate::Input;
use slat::Gfn;

/// The parts of the drawn words of one format: the bits of a link and of a leaf, and the position of the frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drawn {
    pub(super) link: u64,
    pub(super) leaf: u64,
    /// The bit of a leaf above the lowest level.
    pub(super) large: u64,
    /// Optional bits of a leaf.
    pub(super) some: u64,
    pub(super) shift: u32,
}

impl Drawn {
    /// Draws a word that may be an entry of a table of `level` above the lowest.
    pub(super) fn word(self, input: &mut Input<'_>, level: u64) -> u64 {
        let frame = input.below(40);
        let link = self.link | frame << self.shift;
        match input.below(16) {
            0..6 if level > 0 => link,
            0..9 => self.leaf_of(frame, level),
            9..12 => self.leaf_of(frame, level) & !(input.word() & self.some),
            12 => 0,
            13 => link ^ 1 << input.below(64),
            14 => self.leaf_of(frame, level) ^ 1 << input.below(64),
            _ => input.word(),
        }
    }

    /// Returns a leaf of `level` above the lowest. It maps more frames than L1 has, so the frame is truncated.
    pub(super) fn leaf_of(self, frame: u64, level: u64) -> u64 {
        match level {
            0 => self.leaf | frame << self.shift,
            // On Arm the bit is set in entries that are not blocks.
            level if self.large == 2 => self.leaf & !2 | (frame & !511) << (9 * (level - 1)) << self.shift,
            level => self.leaf | self.large | (frame & !511) << (9 * (level - 1)) << self.shift,
        }
    }

    /// Returns the link to a frame.
    pub(super) fn link_to(self, frame: Gfn) -> u64 {
        self.link | frame.0 << self.shift
    }
}
