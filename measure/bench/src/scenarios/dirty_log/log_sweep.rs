//! The guest: one access to each of its pages, in order, a load or a store as the pass has it.

use crate::scenarios::threads_prelude::*;
use crate::threads::mapped_slot::is_drawn;
use slat_vcpu::cpu::{Core, Program, Step};

/// One time over all pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pass {
    /// Other numbers, other pages that are stored to.
    pub number: u64,
    /// Of 100 accesses, so many are stores.
    pub percent: u32,
    /// Frames from one access to the next.
    pub step: u64,
}

/// The pages that a log has reported, against those that the guest has written. They are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// Written by the guest.
    pub written: u64,
    /// Of those, not reported.
    pub lost: u64,
    /// Reported, and not written.
    pub spurious: u64,
}

impl Pass {
    /// A store to every page.
    pub const fn of_stores(number: u64) -> Self {
        Self { number, percent: 100, step: 1 }
    }

    /// Whether its access to `gfn` is a store. The same in every run, and in no pattern.
    pub fn stores_to(self, gfn: Gfn) -> bool {
        gfn.0.is_multiple_of(self.step)
            && (self.percent >= 100 || is_drawn(gfn.0 ^ self.number << 40, self.percent * 10))
    }

    /// Compares what a log has reported, a bit a frame from frame 0 on, with the pages that the pass stored to.
    pub fn compare(self, reported: &[u64]) -> Verdict {
        let mut verdict = Verdict::default();
        for frame in 0..reported.len() * 64 {
            let reported = reported[frame / 64] >> (frame % 64) & 1 == 1;
            let written = self.stores_to(Gfn(frame as u64));
            verdict.written += u64::from(written);
            verdict.lost += u64::from(written && !reported);
            verdict.spurious += u64::from(reported && !written);
        }
        verdict
    }
}

/// A pass as it goes.
#[derive(Debug)]
pub struct Sweep {
    /// The remaining pages.
    pub pages: Span<Gfn>,
    pub pass: Pass,
}

impl Program for Sweep {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        let gfn = self.pages.start;
        if self.pages.is_empty() {
            return Ok(Step::Stop);
        }
        if self.pass.stores_to(gfn) {
            core.store(gfn.gpa(), &gfn.0.to_le_bytes())?;
        } else {
            core.load(gfn.gpa(), &mut [0; 8])?;
        }
        self.pages.start = (gfn + self.pass.step).min(self.pages.end);
        Ok(Step::Next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_store_to_as_many_pages_as_they_say_and_to_others_each_time() {
        let stored = |number, percent, step| {
            let pass = Pass { number, percent, step };
            (0..10_000).map(Gfn).filter(move |&gfn| pass.stores_to(gfn)).collect::<Vec<_>>()
        };
        assert_eq!((stored(1, 100, 1).len(), stored(1, 0, 1).len()), (10_000, 0));
        assert_eq!(stored(1, 100, 512).len(), 20);
        assert!((2_700..3_300).contains(&stored(1, 30, 1).len()));
        assert_ne!(stored(1, 30, 1), stored(2, 30, 1));
        assert_eq!(stored(2, 30, 1), stored(2, 30, 1));
    }

    #[test]
    fn what_is_lost_and_what_is_spurious_is_counted() {
        let pass = Pass { number: 1, percent: 100, step: 2 };
        assert_eq!(pass.compare(&[0; 3]), Verdict { written: 96, lost: 96, spurious: 0 });
        let mut reported = [0x5555_5555_5555_5555; 3];
        assert_eq!(pass.compare(&reported), Verdict { written: 96, lost: 0, spurious: 0 });
        reported[1] |= 0b1010;
        reported[2] = 0;
        assert_eq!(pass.compare(&reported), Verdict { written: 96, lost: 32, spurious: 2 });
    }
}
