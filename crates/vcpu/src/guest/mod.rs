//! Guests of the software vCPUs: programs that access memory and check what they read.
//!
//! | guest | accesses |
//! |---|---|
//! | [`Replay`] | replays a memory trace of a real program |
//! | [`Phases`], for [`Replay`] | uses part of its memory at a time, and sweeps over all of it |
//! | [`Pattern`] | reads and writes at random in a range, to find races quickly |
//!
//! Each knows the expected value of every byte ([`crate::oracle`]), and reports in [`Findings`].

mod layout;
mod pattern;
mod phases;
mod replay;

pub use layout::{Layout, Region};
pub use pattern::Pattern;
pub use phases::{Phases, PhasesSettings};
pub use replay::{Replay, Want};

use crate::oracle::{Oracle, Verdict};
use slat::Gpa;

/// Results of a guest's checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// Reads with every byte as written.
    pub verified: u64,
    /// Reads that were not checked, since the oracle's memory is bounded.
    pub unchecked: u64,
    /// Reads with a wrong byte.
    pub corrupt: u64,
    /// The first wrong byte: address, expected value, found value.
    pub first: Option<(Gpa, u8, u8)>,
}

impl Findings {
    fn check(&mut self, oracle: &mut Oracle, gpa: Gpa, bytes: &[u8]) {
        match oracle.check(gpa, bytes) {
            Verdict::Match => self.verified += 1,
            Verdict::Unchecked => self.unchecked += 1,
            Verdict::Corrupt { gpa, expected, found } => {
                self.corrupt += 1;
                self.first = self.first.or(Some((gpa, expected, found)));
            }
        }
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            verified: self.verified + other.verified,
            unchecked: self.unchecked + other.unchecked,
            corrupt: self.corrupt + other.corrupt,
            first: self.first.or(other.first),
        }
    }
}

/// Fills `bytes` with the contents of write number `number`, from 1, at `gpa`. Contents differ between writes
/// and between guests, have no long runs, and are never zero like untouched memory.
fn fill(bytes: &mut [u8], gpa: Gpa, number: u64) {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ gpa.0.wrapping_mul(0xd6e8_feb8_6659_fd93);
    let word = mixed.rotate_left(29) ^ number;
    for (part, bytes) in bytes.chunks_mut(8).enumerate() {
        let word = word.wrapping_add(part as u64).to_le_bytes();
        bytes.copy_from_slice(&word[..bytes.len()]);
    }
}
