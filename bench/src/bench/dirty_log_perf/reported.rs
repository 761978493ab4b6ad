//! The pages that logs have reported, one bit a frame, and their comparison with the pages that the guest wrote.

use super::sweep::Pass;
use slat::{Gfn, Span};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Frames of a word.
const FRAMES: u64 = 64;

/// A bit for each frame from frame 0 on: see the module's header.
pub struct Reported(Vec<AtomicU64>);

/// Pages, counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// Written by the guest.
    pub written: u64,
    /// Of those, not reported.
    pub lost: u64,
    /// Reported, and not written.
    pub spurious: u64,
}

impl Reported {
    /// Nothing yet, of so many frames.
    pub fn nothing(frames: u64) -> Self {
        Self((0..frames.div_ceil(FRAMES)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Adds 64 frames' bits; `first` is a multiple of 64.
    pub fn add(&self, first: Gfn, bits: u64) {
        self.0[(first.0 / FRAMES) as usize].fetch_or(bits, Relaxed);
    }

    /// Adds what is in `bits`, from frame 0 on.
    pub fn add_all(&self, bits: &[u64]) {
        (0..).step_by(FRAMES as usize).zip(bits).for_each(|(first, &bits)| self.add(Gfn(first), bits));
    }

    /// Forgets everything.
    pub fn forget(&self) {
        self.0.iter().for_each(|word| word.store(0, Relaxed));
    }

    /// Compares the reported pages of `gfns` with the pages that `pass` stored to.
    pub fn compare(&self, gfns: Span<Gfn>, pass: Pass) -> Verdict {
        let mut verdict = Verdict::default();
        for gfn in (gfns.start.0..gfns.end.0).map(Gfn) {
            let told = self.0[(gfn.0 / FRAMES) as usize].load(Relaxed) >> (gfn.0 % FRAMES) & 1 == 1;
            let written = pass.stores_to(gfn);
            verdict.written += u64::from(written);
            verdict.lost += u64::from(written && !told);
            verdict.spurious += u64::from(told && !written);
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_and_what_is_spurious_is_counted() {
        let (told, gfns) = (Reported::nothing(130), Span::new(Gfn(0), Gfn(130)));
        let pass = Pass { number: 1, percent: 100, step: 2 };
        assert_eq!(told.compare(gfns, pass), Verdict { written: 65, lost: 65, spurious: 0 });
        for first in [0, 64, 128] {
            told.add(Gfn(first), 0x5555_5555_5555_5555);
        }
        assert_eq!(told.compare(gfns, pass), Verdict { written: 65, lost: 0, spurious: 0 });
        told.add_all(&[0, 0b1010, 0]);
        assert_eq!(told.compare(gfns, pass).spurious, 2);
        told.forget();
        assert_eq!(told.compare(gfns, pass).lost, 65);
    }
}
