//! Contents of a twin's pages: a function of a seed, a page and a version.

use crate::uffd::PAGE;
use std::io::{self, Read, Write};

/// Number of words in a page.
pub const WORDS: usize = PAGE / 8;

/// Expected version of each page. `None`: zeros.
pub type Versions = Vec<Option<u32>>;

/// An image that two numbers define.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    /// Seed of its contents.
    pub seed: u64,
    /// Number of its pages.
    pub pages: usize,
}

impl Image {
    /// Returns a word of a page at a version; version 0 is the template's. Eight words in a row are the same, so that
    /// the page can be compressed. A quarter of the template is zero.
    pub fn word(&self, page: usize, version: u32, word: usize) -> u64 {
        if version == 0 && self.is_zero(page) {
            return 0;
        }
        mix(self.seed ^ (page as u64) << 32 ^ u64::from(version) << 8 ^ (word as u64 / 8) << 56) | 1
    }

    /// Returns whether the template's page is zero; such pages come in stretches of 16.
    pub fn is_zero(&self, page: usize) -> bool {
        mix(self.seed ^ 0xABCD ^ (page as u64 / 16)).is_multiple_of(4)
    }

    /// Writes the template's image.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        (0..self.pages).try_for_each(|page| {
            (0..WORDS).try_for_each(|word| to.write_all(&self.word(page, 0, word).to_ne_bytes()))
        })
    }

    /// Reads the template's image.
    pub fn read(self) -> impl Read {
        let mut bytes = Vec::with_capacity(self.pages * PAGE);
        self.write(&mut bytes).expect("memory takes all");
        io::Cursor::new(bytes)
    }
}

/// Returns whether the words are those of a page at a version. `None`: zeros.
pub fn is_page(image: &Image, page: usize, version: Option<u32>, words: &[u64; WORDS]) -> bool {
    match version {
        None => words.iter().all(|word| *word == 0),
        Some(version) => {
            (0..WORDS).step_by(8).all(|at| words[at..at + 8] == [image.word(page, version, at); 8])
        }
    }
}

/// The finalizer of splitmix64.
pub fn mix(mut word: u64) -> u64 {
    word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ word >> 31
}
