//! A guest that reads and writes random words in its own range.

use super::{Findings, fill};
use crate::cpu::{Core, Program, Step};
use crate::oracle::Oracle;
use slat::{Fault, Format, Gfn, Gpa, Host, PAGE_SIZE, Span};

/// Random accesses in a range. Stops after a number of accesses; each run makes as many again.
#[derive(Debug)]
pub struct Pattern {
    gfns: Span<Gfn>,
    oracle: Oracle,
    random: fastrand::Rng,
    accesses: u64,
    left: u64,
    /// Results so far.
    pub findings: Findings,
}

impl Pattern {
    /// Creates a guest that accesses `gfns` in an order from `seed`, `accesses` at a time.
    pub fn new(gfns: Span<Gfn>, seed: u64, accesses: u64) -> Self {
        let oracle = Oracle::new(gfns.len() as usize);
        let random = fastrand::Rng::with_seed(seed);
        Self { gfns, oracle, random, accesses, left: accesses, findings: Findings::default() }
    }
}

impl Program for Pattern {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        if self.left == 0 {
            self.left = self.accesses;
            return Ok(Step::Stop);
        }
        // The generator advances only when the instruction completes: after a fault the same one runs again.
        let mut random = self.random.clone();
        let page = self.gfns.start + random.u64(..self.gfns.len());
        let gpa = Gpa(page.gpa().0 + random.u64(..PAGE_SIZE / 8) * 8);
        let mut bytes = [0; 8];
        if random.bool() {
            fill(&mut bytes, gpa, random.u64(..));
            core.store(gpa, &bytes)?;
            self.oracle.wrote(gpa, &bytes);
        } else {
            core.load(gpa, &mut bytes)?;
            self.findings.check(&mut self.oracle, gpa, &bytes);
        }
        self.random = random;
        self.left -= 1;
        Ok(Step::Next)
    }
}
