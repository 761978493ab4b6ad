//! What runs on the software vCPUs: programs that touch memory and check what they read.
//!
//! | guest | what it does |
//! |---|---|
//! | [`Replay`] | replays a memory trace of a real program |
//! | [`Phases`], for [`Replay`] | uses some of its memory at a time, and sweeps over all of it |
//! | [`Pattern`] | reads and writes at random in a range: the shortest way to a race |
//!
//! Both know what every byte should be ([`crate::oracle`]); what they find is in [`Findings`].

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

/// What a guest has found out about its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// Reads whose every byte was as written.
    pub verified: u64,
    /// Reads that could not be checked, because the oracle's memory is bounded.
    pub unchecked: u64,
    /// Reads with a byte that no store wrote there.
    pub corrupt: u64,
    /// The first of those: where, what was expected, what was found.
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

    /// Both together.
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

/// Fills `bytes` with what write number `number`, from 1, writes at `gpa`: no two writes alike, here or in another
/// guest's range; no long runs; nothing like untouched memory.
fn fill(bytes: &mut [u8], gpa: Gpa, number: u64) {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ gpa.0.wrapping_mul(0xd6e8_feb8_6659_fd93);
    let word = mixed.rotate_left(29) ^ number;
    for (part, bytes) in bytes.chunks_mut(8).enumerate() {
        let word = word.wrapping_add(part as u64).to_le_bytes();
        bytes.copy_from_slice(&word[..bytes.len()]);
    }
}
