//! A guest that reads and writes words at random in a range of its own.

use super::{Findings, fill};
use crate::cpu::{Core, Program, Step};
use crate::oracle::Oracle;
use slat::{Fault, Format, Gfn, Gpa, Host, PAGE_SIZE, Span};

/// See the module's header. Stops after a number of accesses; run it again for as many more.
#[derive(Debug)]
pub struct Pattern {
    gfns: Span<Gfn>,
    oracle: Oracle,
    state: u64,
    accesses: u64,
    left: u64,
    /// What was found so far.
    pub findings: Findings,
}

impl Pattern {
    /// Accesses in `gfns`, in an order that `seed` decides, `accesses` at a time.
    pub fn new(gfns: Span<Gfn>, seed: u64, accesses: u64) -> Self {
        let oracle = Oracle::new(gfns.len() as usize);
        Self { gfns, oracle, state: seed | 1, accesses, left: accesses, findings: Findings::default() }
    }

    /// An xorshift generator: small, even, and the same on every machine.
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }
}

impl Program for Pattern {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        if self.left == 0 {
            self.left = self.accesses;
            return Ok(Step::Stop);
        }
        // The generator goes on only when the instruction is done: a fault runs the same one again.
        let mut state = self.state;
        let page = self.gfns.start + Self::random(&mut state) % self.gfns.len();
        let gpa = Gpa(page.gpa().0 + Self::random(&mut state) % (PAGE_SIZE / 8) * 8);
        let mut bytes = [0; 8];
        if Self::random(&mut state).is_multiple_of(2) {
            fill(&mut bytes, gpa, state);
            core.store(gpa, &bytes)?;
            self.oracle.wrote(gpa, &bytes);
        } else {
            core.load(gpa, &mut bytes)?;
            self.findings.check(&mut self.oracle, gpa, &bytes);
        }
        self.state = state;
        self.left -= 1;
        Ok(Step::Next)
    }
}
