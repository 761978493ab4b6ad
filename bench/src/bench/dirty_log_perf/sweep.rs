//! The guest: one access to each of its pages, in order, a load or a store as the pass has it.

use slat::{Fault, Format, Gfn, Host, Span};
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

impl Pass {
    /// A store to every page.
    pub const fn of_stores(number: u64) -> Self {
        Self { number, percent: 100, step: 1 }
    }

    /// Whether its access to `gfn` is a store. The same in every run, and in no pattern.
    pub fn stores_to(self, gfn: Gfn) -> bool {
        let mixed = (gfn.0 ^ self.number << 40).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        gfn.0.is_multiple_of(self.step) && (self.percent >= 100 || (mixed >> 32) % 100 < self.percent.into())
    }
}

/// A pass as it goes.
#[derive(Debug)]
pub struct Sweep {
    /// What is left.
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
}
